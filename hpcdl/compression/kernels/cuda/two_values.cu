// One bit per entry: signs alone, or two values per segment; a thread makes a byte.

// lanes (3, chunks, LANES): sums of negative entries and of the others, and number of negative ones.
extern "C" __global__ void sum_lanes(const T* vector, const Index* edges, double* lanes, Index chunks) {
    for (Index at = first_thread(); at < chunks * LANES; at += all_threads()) {
        double below = 0, above = 0, count = 0;
        for (Index i = edges[at / LANES] + at % LANES; i < edges[at / LANES + 1]; i += LANES) {
            const T x = vector[i];
            const bool negative = x < 0;
            below += negative ? x : (T)0;
            above += negative ? (T)0 : x;
            count += negative;
        }
        lanes[at] = below;
        lanes[chunks * LANES + at] = above;
        lanes[2 * chunks * LANES + at] = count;
    }
}

// totals (chunks, 3).
extern "C" __global__ void sum_chunks(double* lanes, const Index* edges, double* totals, Index chunks) {
    for (Index at = first_thread(); at < 3 * chunks; at += all_threads()) {
        const Index chunk = at % chunks;
        totals[3 * chunk + at / chunks] = sum_of_lanes(lanes + at * LANES, edges[chunk + 1] - edges[chunk]);
    }
}

// values (segments, 2): of negative entries and of the others.
extern "C" __global__ void encode(T* vector, const Index* cuts, const T* values, unsigned char* packed, Index n,
                                  Index segments) {
    for (Index byte = first_thread(); byte * 8 < n; byte += all_threads()) {
        Index segment = segment_of(cuts, segments, byte * 8);
        unsigned int bits = 0;
        for (Index i = byte * 8; i < n && i < byte * 8 + 8; ++i) {
            while (cuts[segment + 1] <= i) ++segment;
            const T x = vector[i];
            const bool negative = x < 0;
            bits |= (unsigned int)negative << (i & 7);
            vector[i] = x - values[2 * segment + !negative];
        }
        packed[byte] = (unsigned char)bits;
    }
}

extern "C" __global__ void decode(const unsigned char* packed, const Index* cuts, const T* values, T* into, Index n,
                                  Index segments) {
    for (Index byte = first_thread(); byte * 8 < n; byte += all_threads()) {
        Index segment = segment_of(cuts, segments, byte * 8);
        for (Index i = byte * 8; i < n && i < byte * 8 + 8; ++i) {
            while (cuts[segment + 1] <= i) ++segment;
            into[i] += values[2 * segment + !(packed[byte] >> (i & 7) & 1)];
        }
    }
}

// Signs alone. A zero is -1 at odd positions if turn is 0, and at even ones if it is 1. Sets wrong if a value is not finite.
extern "C" __global__ void encode_signs(T* vector, unsigned char* packed, int* wrong, Index n, Index turn) {
    for (Index byte = first_thread(); byte * 8 < n; byte += all_threads()) {
        unsigned int bits = 0;
        for (Index i = byte * 8; i < n && i < byte * 8 + 8; ++i) {
            const T x = vector[i];
            const bool negative = x < 0 || (x == 0 && ((i ^ turn) & 1));
            bits |= (unsigned int)negative << (i & 7);
            if (x - x != 0) *wrong = 1;
            vector[i] = negative ? x + 1 : x - 1;
        }
        packed[byte] = (unsigned char)bits;
    }
}

extern "C" __global__ void decode_signs(const unsigned char* packed, T* into, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) into[i] += packed[i >> 3] >> (i & 7) & 1 ? -1 : 1;
}
