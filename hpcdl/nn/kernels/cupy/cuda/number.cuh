// Common header of all kernels, compiled once per NUMBER: 0 float, 1 double, 2 bfloat16, 3 half. T stores activations;
// A is the type of arithmetic, parameters, their gradients and statistics. No kernel uses block barriers or atomics:
// results do not depend on timing, and tests can run the threads one after another on a CPU.

#if NUMBER == 0
typedef float T;
typedef float A;
#elif NUMBER == 1
typedef double T;
typedef double A;
#else
typedef unsigned short T;
typedef float A;
#endif

typedef long long Index;

#define PACK ((int)(16 / sizeof(T)))  // elements per 16-byte load

template <int V>
struct alignas(V * sizeof(T)) Vector {
    T v[V];
};

__device__ inline A get(T stored) {
#if NUMBER < 2
    return stored;
#elif NUMBER == 2
    return __uint_as_float((unsigned int)stored << 16);
#elif defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(stored));
    return value;
#else
    return float_of_half(stored);
#endif
}

// Rounded to nearest, ties to even.
__device__ inline T put(A value) {
#if NUMBER < 2
    return value;
#elif NUMBER == 2
    const unsigned int bits = __float_as_uint(value);
    return value != value ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
#elif defined(__CUDA_ARCH__)
    unsigned short stored;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored) : "f"(value));
    return stored;
#else
    return half_of_float(value);
#endif
}

template <int V>
__device__ inline Vector<V> load(const T* place) {
    return *(const Vector<V>*)place;
}

template <int V>
__device__ inline void store(T* place, const Vector<V>& vector) {
    *(Vector<V>*)place = vector;
}

__device__ inline bool aligned(const void* place) { return ((unsigned long long)place & 15) == 0; }

__device__ inline Index first_thread() { return (Index)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline Index all_threads() { return (Index)gridDim.x * blockDim.x; }

// Rows are pixels; a thread processes V neighbouring channels.
#define EACH_ROW(row, rows) \
    for (Index row = (Index)blockIdx.x * blockDim.y + threadIdx.y; row < (rows); \
         row += (Index)gridDim.x * blockDim.y)
#define EACH_CHANNEL(c, channels, V) \
    for (Index c = (Index)threadIdx.x * V; c < (channels); c += (Index)blockDim.x * V)
