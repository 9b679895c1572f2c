/* Rounding float32 to bfloat16 and float16, and back; see wire.h. */

#include "wire.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

typedef uint16_t Short __attribute__((aligned(1), may_alias));
typedef uint32_t Long __attribute__((aligned(1), may_alias));

#define INFINITE 0x7f800000u
#define MAGNITUDE 0x7fffffffu

int
wire_named(const char *name)
{
    static const char *const names[] = {[NO_WIRE] = "", [BFLOAT16] = "bfloat16", [FLOAT16] = "float16"};
    for (int wire = NO_WIRE; wire <= FLOAT16; ++wire)
        if (strcmp(name, names[wire]) == 0)
            return wire;
    return -1;
}

static float
as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t
as_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void
round_to_bfloat16(const Long *from, Short *to, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits = from[i];
        uint32_t nearest = bits + 0x7fffu + (bits >> 16 & 1);
        uint32_t quiet = bits | 0x400000u; /* rounding could make infinity of a NaN, or zero */
        to[i] = (uint16_t)(((bits & MAGNITUDE) > INFINITE ? quiet : nearest) >> 16);
    }
}

static void
widen_bfloat16(const Short *from, Long *to, int64_t count)
{
    for (int64_t i = 0; i < count; ++i)
        to[i] = (uint32_t)from[i] << 16;
}

static uint16_t
float16_of(uint32_t bits)
{
    uint32_t size = bits & MAGNITUDE, found;
    if (size > INFINITE)
        found = 0x7e00;
    else if (size >= 0x477ff000u) /* 65520, which is nearer to 65536 than to the largest */
        found = 0x7c00;
    else if (size >= 0x38800000u) { /* 2**-14, the smallest of full precision */
        uint32_t shifted = size - 0x38000000u;
        found = (shifted + 0xfffu + (shifted >> 13 & 1)) >> 13;
    }
    else /* the last bit of 0.5 is worth as much as that of such a float16 */
        found = as_bits(as_float(size) + 0.5f) - 0x3f000000u;
    return (uint16_t)(found | (bits >> 16 & 0x8000u));
}

static uint32_t
of_float16(uint16_t half)
{
    uint32_t size = (uint32_t)(half & 0x7fff) << 13;
    uint32_t found = as_bits(as_float(size) * as_float(0x77800000u)); /* 2**112 */
    if ((half & 0x7c00) == 0x7c00)
        found = size | INFINITE;
    return found | (uint32_t)(half & 0x8000) << 16;
}

#if defined(__x86_64__)
static int
has_instructions(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* How many of the elements have been done: whole vectors. */
__attribute__((target("avx,f16c"))) static int64_t
round_vectors(const char *from, char *to, int64_t count)
{
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 values = _mm256_loadu_ps((const float *)(from + CARRIED_BYTES * i));
        _mm_storeu_si128((__m128i *)(to + WIRE_BYTES * i), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    }
    return i;
}

__attribute__((target("avx,f16c"))) static int64_t
widen_vectors(const char *from, char *to, int64_t count)
{
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m128i values = _mm_loadu_si128((const __m128i *)(from + WIRE_BYTES * i));
        _mm256_storeu_ps((float *)(to + CARRIED_BYTES * i), _mm256_cvtph_ps(values));
    }
    return i;
}
#endif

static void
round_to_float16(const char *from, char *to, int64_t count)
{
    int64_t i = 0;
#if defined(__x86_64__)
    if (has_instructions())
        i = round_vectors(from, to, count);
#endif
    for (; i < count; ++i)
        ((Short *)to)[i] = float16_of(((const Long *)from)[i]);
}

static void
widen_float16(const char *from, char *to, int64_t count)
{
    int64_t i = 0;
#if defined(__x86_64__)
    if (has_instructions())
        i = widen_vectors(from, to, count);
#endif
    for (; i < count; ++i)
        ((Long *)to)[i] = of_float16(((const Short *)from)[i]);
}

void
wire_round(Wire wire, const char *from, char *to, int64_t count)
{
    if (wire == BFLOAT16)
        round_to_bfloat16((const Long *)from, (Short *)to, count);
    else
        round_to_float16(from, to, count);
}

void
wire_widen(Wire wire, const char *from, char *to, int64_t count)
{
    if (wire == BFLOAT16)
        widen_bfloat16((const Short *)from, (Long *)to, count);
    else
        widen_float16(from, to, count);
}
