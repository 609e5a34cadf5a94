// Entries at positions, all different.

extern "C" __global__ void take(const T* vector, const int* indices, T* values, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) values[i] = vector[indices[i]];
}

extern "C" __global__ void put(T* vector, const int* indices, const T* values, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) vector[indices[i]] = values[i];
}

extern "C" __global__ void add(T* vector, const int* indices, const T* values, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) vector[indices[i]] += values[i];
}

// u = momentum u + scale g, v = v + u, and v in place of g; products are not fused with sums.
extern "C" __global__ void correct(T* gradient, T* velocity, T* accumulated, Index n, double momentum, double scale) {
    for (Index i = first_thread(); i < n; i += all_threads()) {
        velocity[i] = rounded_product((T)momentum, velocity[i]) + rounded_product((T)scale, gradient[i]);
        accumulated[i] += velocity[i];
        gradient[i] = accumulated[i];
    }
}

// Magnitudes as integers: the bits of a number without its sign. A thread reads a chunk of CHUNK entries.

#if NUMBER == 0
typedef unsigned int Word;
#else
typedef unsigned long long Word;
#endif

#define CHUNK 64

__device__ inline Word magnitude(const T* vector, Index i) { return ((const Word*)vector)[i] << 1 >> 1; }

// Number of entries of each chunk with at least the magnitude threshold. Sets wrong for one with at least infinite.
extern "C" __global__ void count(const T* vector, Index* counts, int* wrong, Index n, Index threshold, Index infinite) {
    for (Index chunk = first_thread(); chunk * CHUNK < n; chunk += all_threads()) {
        Index many = 0;
        for (Index i = chunk * CHUNK; i < n && i < (chunk + 1) * CHUNK; ++i) {
            const Word one = magnitude(vector, i);
            many += one >= (Word)threshold;
            if (one >= (Word)infinite) *wrong = 1;
        }
        counts[chunk] = many;
    }
}

// Positions of these entries; offsets (chunks,) tell where those of a chunk begin.
extern "C" __global__ void collect(const T* vector, const Index* offsets, int* found, Index n, Index threshold) {
    for (Index chunk = first_thread(); chunk * CHUNK < n; chunk += all_threads()) {
        Index at = offsets[chunk];
        for (Index i = chunk * CHUNK; i < n && i < (chunk + 1) * CHUNK; ++i)
            if (magnitude(vector, i) >= (Word)threshold) found[at++] = (int)i;
    }
}

// sums (groups of CHUNK counts,).
extern "C" __global__ void sum_groups(const Index* counts, Index* sums, Index n) {
    for (Index group = first_thread(); group * CHUNK < n; group += all_threads()) {
        Index sum = 0;
        for (Index i = group * CHUNK; i < n && i < (group + 1) * CHUNK; ++i) sum += counts[i];
        sums[group] = sum;
    }
}

// offsets (n + 1,): sums of the counts before each, and of all; before (groups,) has those of whole groups.
extern "C" __global__ void add_before(const Index* counts, const Index* before, Index* offsets, Index n) {
    for (Index group = first_thread(); group * CHUNK < n; group += all_threads()) {
        Index sum = before[group];
        for (Index i = group * CHUNK; i < n && i < (group + 1) * CHUNK; ++i) {
            offsets[i] = sum;
            sum += counts[i];
        }
        if ((group + 1) * CHUNK >= n) offsets[n] = sum;
    }
}

// One magnitude from each of m equal pieces, as in magnitudes.py: a thread jumps ahead in Knuth's generator.
extern "C" __global__ void sample(const T* vector, T* found, Index n, Index m, Index seed) {
    for (Index i = first_thread(); i < m; i += all_threads()) {
        unsigned long long factor = 6364136223846793005ull, term = 1442695040888963407ull;
        unsigned long long state = (unsigned long long)seed;
        for (Index steps = i + 1; steps; steps >>= 1) {
            if (steps & 1) state = state * factor + term;
            term *= factor + 1;
            factor *= factor;
        }
        const Index begin = i * n / m, end = (i + 1) * n / m;
        ((Word*)found)[i] = magnitude(vector, begin + (Index)((state >> 33) % (unsigned long long)(end - begin)));
    }
}
