/* The short floating point types: to float and back, rounded to nearest, ties to even, as the GPU converts them. */
#ifndef FLOATS_H
#define FLOATS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00)
        return float_of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400)
        return float_of_bits(sign | ((rest << 13) + ((127 - 15) << 23)));
    float value = (float)rest * 0x1p-24f;
    return sign ? -value : value;
}

static inline uint16_t to_half(float value)
{
    uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000)
        return 0x7fff;
    if (bits >= 0x47800000) /* 65536 */
        return (uint16_t)(sign | 0x7c00);
    if (bits < 0x38800000)  /* below the normal numbers: the addition rounds to a multiple of 2^-24 */
        return (uint16_t)(sign | (bits_of_float(float_of_bits(bits) + 0.5f) - 0x3f000000));
    bits += 0xc8000fff + (bits >> 13 & 1);
    return (uint16_t)(sign | bits >> 13);
}

static inline float from_bfloat(uint16_t value)
{
    return float_of_bits((uint32_t)value << 16);
}

static inline uint16_t to_bfloat(float value)
{
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float from_e5m2(uint8_t value)
{
    return from_half((uint16_t)(value << 8));
}

static inline float from_e4m3(uint8_t value)
{
    int exponent = value >> 3 & 15, fraction = value & 7;
    if ((value & 0x7f) == 0x7f)
        return float_of_bits(0x7fffffff);
    float size = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    return value & 0x80 ? -size : size;
}

/* What is too large becomes the largest finite number, infinity too (__NV_SATFINITE). */
static inline uint8_t to_float8(float value, int fraction_bits, int bias, float most, uint8_t nan)
{
    uint8_t sign = signbit(value) ? 0x80 : 0;
    if (isnan(value))
        return nan;
    float size = fminf(fabsf(value), most);
    if (size == 0)
        return sign;
    int exponent;
    frexpf(size, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    int units = (int)rintf(ldexpf(size, fraction_bits - exponent));
    return (uint8_t)(sign | (((exponent + bias) << fraction_bits) + units - (1 << fraction_bits)));
}

static inline uint8_t to_e4m3(float value)
{
    return to_float8(value, 3, 7, 448.0f, 0x7f);
}

static inline uint8_t to_e5m2(float value)
{
    return to_float8(value, 2, 15, 57344.0f, 0x7f);
}

#endif
