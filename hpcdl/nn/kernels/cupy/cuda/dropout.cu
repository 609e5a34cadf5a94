// Dropout with counter-based random numbers: Philox4x32-10 (Salmon et al. 2011). A mask depends on the key, the number
// of forwards since the key was set and the array index, not on the thread that computes it.

struct Four {
    unsigned int v[4];
};

__device__ inline Four philox(unsigned int c0, unsigned int c1, unsigned int c2, unsigned int k0, unsigned int k1) {
    unsigned int c3 = 0;
    for (int round = 0; round < 10; ++round) {
        const unsigned long long a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;
        c0 = (unsigned int)(b >> 32) ^ c1 ^ k0;
        c1 = (unsigned int)b;
        c2 = (unsigned int)(a >> 32) ^ c3 ^ k1;
        c3 = (unsigned int)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// state: two words of key, and the number of forwards.
extern "C" __global__ void seed(unsigned int* state, Index low, Index high) {
    if (first_thread() == 0) {
        state[0] = (unsigned int)low;
        state[1] = (unsigned int)high;
        state[2] = 0;
    }
}

extern "C" __global__ void advance(unsigned int* state) {
    if (first_thread() == 0) ++state[2];
}

// mask: 1 where a value is kept; ratio is the fraction that is dropped.
extern "C" __global__ void dropout_forward(const T* x, T* y, unsigned char* mask, const unsigned int* state, Index n,
                                           double ratio) {
    const unsigned int least = (unsigned int)(ratio * 16777216.0);
    const A scale = (A)(1 / (1 - ratio));
    for (Index i = first_thread(); i * 4 < n; i += all_threads()) {
        const Four random = philox((unsigned int)i, (unsigned int)(i >> 32), state[2], state[0], state[1]);
        for (int k = 0; k < 4 && i * 4 + k < n; ++k) {
            const bool kept = random.v[k] >> 8 >= least;
            mask[i * 4 + k] = kept;
            y[i * 4 + k] = kept ? put(get(x[i * 4 + k]) * scale) : put(0);
        }
    }
}

extern "C" __global__ void dropout_backward(const T* dy, const unsigned char* mask, T* dx, Index n, double ratio) {
    const A scale = (A)(1 / (1 - ratio));
    for (Index i = first_thread(); i < n; i += all_threads()) dx[i] = mask[i] ? put(get(dy[i]) * scale) : put(0);
}
