// Random ternary levels, two bits each, times one scaler per segment; a thread makes a byte.

// lanes (2, chunks, LANES): sums of squares, and largest magnitudes.
extern "C" __global__ void moment_lanes(const T* vector, const Index* edges, double* lanes, Index chunks) {
    for (Index at = first_thread(); at < chunks * LANES; at += all_threads()) {
        double squares = 0, largest = 0;
        for (Index i = edges[at / LANES] + at % LANES; i < edges[at / LANES + 1]; i += LANES) {
            const double x = vector[i];
            squares += rounded_product(x, x);
            largest = x > largest ? x : -x > largest ? -x : largest;
        }
        lanes[at] = squares;
        lanes[chunks * LANES + at] = largest;
    }
}

// totals (chunks, 2).
extern "C" __global__ void moments_of_chunks(double* lanes, const Index* edges, double* totals, Index chunks) {
    for (Index chunk = first_thread(); chunk < chunks; chunk += all_threads()) {
        double largest = 0;
        for (int i = 0; i < LANES; ++i) {
            const double one = lanes[(chunks + chunk) * LANES + i];
            largest = one > largest ? one : largest;
        }
        totals[2 * chunk] = sum_of_lanes(lanes + chunk * LANES, edges[chunk + 1] - edges[chunk]);
        totals[2 * chunk + 1] = largest;
    }
}

// Number 0 to 2^32 - 1 of an entry: SplitMix64 of its position, as in reproducible.py.
__device__ inline unsigned int draw(Index stream, Index position) {
    unsigned long long word = (unsigned long long)stream + (unsigned long long)(position >> 1) * 0x9E3779B97F4A7C15ull;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    word ^= word >> 31;
    return (unsigned int)(position & 1 ? word >> 32 : word);
}

// position: of the first entry in the whole gradient. Codes: 1 for +, 2 for -.
extern "C" __global__ void encode(T* vector, const Index* cuts, const T* scalers, unsigned char* packed, Index n,
                                  Index segments, Index stream, Index position) {
    for (Index byte = first_thread(); byte * 4 < n; byte += all_threads()) {
        Index segment = segment_of(cuts, segments, byte * 4);
        unsigned int bits = 0;
        for (Index i = byte * 4; i < n && i < byte * 4 + 4; ++i) {
            while (cuts[segment + 1] <= i) ++segment;
            const T x = vector[i], scaler = scalers[segment];
            const bool negative = x < 0;
            const double unit = scaler * (1.0 / 4294967296.0);
            if (draw(stream, position + i) * unit < (negative ? -x : x)) {
                bits |= (negative ? 2u : 1u) << 2 * (i & 3);
                vector[i] = x - (negative ? -scaler : scaler);
            }
        }
        packed[byte] = (unsigned char)bits;
    }
}

extern "C" __global__ void decode(const unsigned char* packed, const Index* cuts, const T* scalers, T* into, Index n,
                                  Index segments) {
    for (Index byte = first_thread(); byte * 4 < n; byte += all_threads()) {
        Index segment = segment_of(cuts, segments, byte * 4);
        for (Index i = byte * 4; i < n && i < byte * 4 + 4; ++i) {
            while (cuts[segment + 1] <= i) ++segment;
            const int code = packed[byte] >> 2 * (i & 3) & 3;
            into[i] += scalers[segment] * (T)((code & 1) - (code >> 1));
        }
    }
}
