/* The other 16-bit type, bfloat16, as much as CuPy's needs; arithmetic is done in float. */
#ifndef STANDIN_CUDA_BF16_H
#define STANDIN_CUDA_BF16_H

#include "cuda_fp16.h"

struct __nv_bfloat16 {
    unsigned short bits;

    __nv_bfloat16() = default;
    __nv_bfloat16(float value) : bits(standin::to_bfloat(value)) {}
    operator float() const { return standin::from_bfloat(bits); }
};

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    __nv_bfloat16 value;
    value.bits = bits;
    return value;
}
inline bool __hisnan(__nv_bfloat16 value) { return isnan((float)value); }
inline int __hisinf(__nv_bfloat16 value) { return isinf((float)value) ? (float)value > 0 ? 1 : -1 : 0; }

#endif
