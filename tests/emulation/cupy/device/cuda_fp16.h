/* The 16-bit floating point type of CUDA, as much as CuPy's float16 needs; arithmetic is done in float. */
#ifndef STANDIN_CUDA_FP16_H
#define STANDIN_CUDA_FP16_H

#include "prelude.hpp"

namespace standin {
#include "../../nccl/floats.h"
}

struct __half_raw {
    unsigned short x;
};

struct __half {
    unsigned short bits;

    __half() = default;
    __half(float value) : bits(standin::to_half(value)) {}
    explicit __half(double value) : __half((float)value) {}
    explicit __half(int value) : __half((float)value) {}
    explicit __half(unsigned value) : __half((float)value) {}
    explicit __half(long long value) : __half((float)value) {}
    explicit __half(unsigned long long value) : __half((float)value) {}
    explicit __half(bool value) : __half((float)value) {}
    explicit __half(const __half_raw &raw) : bits(raw.x) {}
    operator float() const { return standin::from_half(bits); }
    operator __half_raw() const { return {bits}; }
};
typedef __half half;

inline half __float2half(float value) { return half(value); }
inline half __float2half_rn(float value) { return half(value); }
inline float __half2float(half value) { return value; }
inline unsigned short __half_as_ushort(half value) { return value.bits; }
inline half __ushort_as_half(unsigned short bits) { return half(__half_raw{bits}); }

#endif
