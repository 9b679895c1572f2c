/* The arithmetic of NCCL's reduction kernels.
 *
 * Integers wrap.  16-bit floats are rounded after each operation; 8-bit floats are combined in half precision and
 * then rounded and saturated, as NCCL does since compute capability 9.0.  MIN and MAX of floats drop NaN, and -0 is
 * less than +0.  AVG of floats multiplies each rank's elements by 1/ranks first; AVG of integers divides the
 * (wrapped) sum, towards zero.
 */
#include "nccl_standin.h"

#include "floats.h"

size_t size_of(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8: case ncclUint8: case ncclFloat8e4m3: case ncclFloat8e5m2: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 0;
    }
}

static inline double least(double left, double right)
{
    if (left != left || right != right)
        return left == left ? left : right;
    return left == right ? (signbit(left) ? left : right) : left < right ? left : right;
}

static inline double greatest(double left, double right)
{
    if (left != left || right != right)
        return left == left ? left : right;
    return left == right ? (signbit(left) ? right : left) : left > right ? left : right;
}

static inline double apply(enum reduction reduction, double left, double right)
{
    return reduction == MIN ? least(left, right) : greatest(left, right);
}

/* C has no function over types.  SIGNED is the type to compare in, TYPE wraps. */
#define INTEGERS(NAME, TYPE, SIGNED)                                                                          \
    static void NAME(enum reduction reduction, TYPE *out, const TYPE *left, const TYPE *right, size_t count)  \
    {                                                                                                         \
        if (reduction == SUM)                                                                                 \
            for (size_t i = 0; i < count; i++) out[i] = (TYPE)(left[i] + right[i]);                           \
        else if (reduction == PROD)                                                                           \
            for (size_t i = 0; i < count; i++) out[i] = (TYPE)((uint64_t)left[i] * (uint64_t)right[i]);       \
        else if (reduction == MAX)                                                                            \
            for (size_t i = 0; i < count; i++) out[i] = (SIGNED)left[i] > (SIGNED)right[i] ? left[i] : right[i]; \
        else                                                                                                  \
            for (size_t i = 0; i < count; i++) out[i] = (SIGNED)left[i] < (SIGNED)right[i] ? left[i] : right[i]; \
    }

#define FLOATS(NAME, TYPE)                                                                                    \
    static void NAME(enum reduction reduction, TYPE *out, const TYPE *left, const TYPE *right, size_t count)  \
    {                                                                                                         \
        if (reduction == SUM)                                                                                 \
            for (size_t i = 0; i < count; i++) out[i] = left[i] + right[i];                                   \
        else if (reduction == PROD)                                                                           \
            for (size_t i = 0; i < count; i++) out[i] = left[i] * right[i];                                   \
        else                                                                                                  \
            for (size_t i = 0; i < count; i++) out[i] = (TYPE)apply(reduction, left[i], right[i]);            \
    }

/* Types that are combined in float and rounded each time: float has more than twice their digits, so that this is
 * the correctly rounded result. */
#define SHORT_FLOATS(NAME, TYPE, FROM, TO)                                                                    \
    static void NAME(enum reduction reduction, TYPE *out, const TYPE *left, const TYPE *right, size_t count)  \
    {                                                                                                         \
        if (reduction == SUM)                                                                                 \
            for (size_t i = 0; i < count; i++) out[i] = TO(FROM(left[i]) + FROM(right[i]));                   \
        else if (reduction == PROD)                                                                           \
            for (size_t i = 0; i < count; i++) out[i] = TO(FROM(left[i]) * FROM(right[i]));                   \
        else                                                                                                  \
            for (size_t i = 0; i < count; i++) out[i] = TO((float)apply(reduction, FROM(left[i]), FROM(right[i]))); \
    }

static inline uint8_t half_to_e4m3(float value)
{
    return to_e4m3(from_half(to_half(value)));
}

static inline uint8_t half_to_e5m2(float value)
{
    return to_e5m2(from_half(to_half(value)));
}

INTEGERS(combine_int8, uint8_t, int8_t)
INTEGERS(combine_uint8, uint8_t, uint8_t)
INTEGERS(combine_int32, uint32_t, int32_t)
INTEGERS(combine_uint32, uint32_t, uint32_t)
INTEGERS(combine_int64, uint64_t, int64_t)
INTEGERS(combine_uint64, uint64_t, uint64_t)
FLOATS(combine_float, float)
FLOATS(combine_double, double)
SHORT_FLOATS(combine_half, uint16_t, from_half, to_half)
SHORT_FLOATS(combine_bfloat, uint16_t, from_bfloat, to_bfloat)
SHORT_FLOATS(combine_e4m3, uint8_t, from_e4m3, half_to_e4m3)
SHORT_FLOATS(combine_e5m2, uint8_t, from_e5m2, half_to_e5m2)

void combine(enum reduction reduction, ncclDataType_t type, void *out, const void *left, const void *right,
             size_t count)
{
    switch (type) {
    case ncclInt8: combine_int8(reduction, out, left, right, count); break;
    case ncclUint8: combine_uint8(reduction, out, left, right, count); break;
    case ncclInt32: combine_int32(reduction, out, left, right, count); break;
    case ncclUint32: combine_uint32(reduction, out, left, right, count); break;
    case ncclInt64: combine_int64(reduction, out, left, right, count); break;
    case ncclUint64: combine_uint64(reduction, out, left, right, count); break;
    case ncclFloat16: combine_half(reduction, out, left, right, count); break;
    case ncclFloat32: combine_float(reduction, out, left, right, count); break;
    case ncclFloat64: combine_double(reduction, out, left, right, count); break;
    case ncclBfloat16: combine_bfloat(reduction, out, left, right, count); break;
    case ncclFloat8e4m3: combine_e4m3(reduction, out, left, right, count); break;
    default: combine_e5m2(reduction, out, left, right, count);
    }
}

void scale(ncclDataType_t type, void *out, const void *in, uint64_t scalar, size_t count)
{
    char factors[512];
    size_t size = size_of(type), most = sizeof factors / size;
    for (size_t i = 0; i < most; i++)
        memcpy(factors + i * size, &scalar, size);
    for (size_t done = 0; done < count;) {
        size_t part = count - done < most ? count - done : most;
        combine(PROD, type, (char *)out + done * size, (const char *)in + done * size, factors, part);
        done += part;
    }
}

#define DIVIDE(TYPE)                                                                                          \
    for (size_t i = 0; i < count; i++) ((TYPE *)data)[i] = (TYPE)(((TYPE *)data)[i] / (TYPE)divisor)

void divide(ncclDataType_t type, void *data, uint64_t divisor, size_t count)
{
    switch (type) {
    case ncclInt8: DIVIDE(int8_t); break;
    case ncclUint8: DIVIDE(uint8_t); break;
    case ncclInt32: DIVIDE(int32_t); break;
    case ncclUint32: DIVIDE(uint32_t); break;
    case ncclInt64: DIVIDE(int64_t); break;
    case ncclUint64: DIVIDE(uint64_t); break;
    default: break;
    }
}

struct operator average(ncclDataType_t type, int ranks)
{
    struct operator operator = {.reduction = SUM, .divisor = (uint64_t)ranks};
    double part = 1.0 / ranks;
    float shorter = (float)part;
    switch (type) {
    case ncclFloat16: operator.scalar = to_half(shorter); break;
    case ncclBfloat16: operator.scalar = to_bfloat(shorter); break;
    case ncclFloat8e4m3: operator.scalar = to_e4m3(shorter); break;
    case ncclFloat8e5m2: operator.scalar = to_e5m2(shorter); break;
    case ncclFloat32: memcpy(&operator.scalar, &shorter, sizeof shorter); break;
    case ncclFloat64: memcpy(&operator.scalar, &part, sizeof part); break;
    default: operator.divides = true; return operator;
    }
    operator.scales = true;
    return operator;
}
