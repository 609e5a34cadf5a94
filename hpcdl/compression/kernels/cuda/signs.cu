// Signs of entries, one bit each; a thread makes a byte.

// A zero is -1 at odd positions if turn is 0, and at even ones if it is 1. Sets wrong if a value is not finite.
extern "C" __global__ void encode(T* vector, unsigned char* packed, int* wrong, Index n, Index turn) {
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

extern "C" __global__ void decode(const unsigned char* packed, T* into, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) into[i] += packed[i >> 3] >> (i & 7) & 1 ? -1 : 1;
}
