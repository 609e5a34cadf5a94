// A processor instead of a GPU: what the kernels use of CUDA, one thread after the other.
#include <cmath>
#include <cstring>

struct Three {
    unsigned int x = 1, y = 1, z = 1;
};
static Three blockIdx, threadIdx, blockDim, gridDim;

#define __global__
#define __device__

using std::exp;
using std::log;
using std::pow;
using std::sqrt;

static inline float __uint_as_float(unsigned int bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static inline unsigned int __float_as_uint(float value) {
    unsigned int bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

static inline float __fmul_rn(float a, float b) { return a * b; }

static inline double __dmul_rn(double a, double b) { return a * b; }

static inline float float_of_half(unsigned short stored) {
    _Float16 value;
    std::memcpy(&value, &stored, 2);
    return value;
}

static inline unsigned short half_of_float(float value) {
    const _Float16 narrow = (_Float16)value;
    unsigned short stored;
    std::memcpy(&stored, &narrow, 2);
    return stored;
}
