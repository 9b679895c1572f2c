/* What NVIDIA's compiler knows without a header, for kernels that g++ compiles for the host.
 *
 * What is missing here is an error of the compiler: nothing is left out in silence.  Barriers, and what is exchanged
 * between lanes, are declared only where the kernel's own text names them (STANDIN_MEETS), because it is this that
 * decides whether its threads get stacks of their own.
 */
#pragma once

#include "../nvrtc/threads.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <initializer_list>
#include <type_traits>
#include <utility>

#include <vector_functions.h>

#define __CUDACC_VER_MAJOR__ 12

/* ---- marks ---- */

#undef __shared__
#undef __constant__
#undef __noinline__
#define __shared__ static thread_local
#define __constant__
#define __managed__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __grid_constant__

constexpr int warpSize = 32;

#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) ((condition) ? (void)0 : standin_fail(710, "assertion failed: " #condition, __FILE__, __LINE__))
#endif

[[noreturn]] inline void __trap()
{
    standin_fail(719, "__trap()", "kernel", 0);
}

/* ---- meeting other threads ---- */

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }

#if STANDIN_MEETS

inline void __syncthreads() { standin_block_barrier(); }
inline int __syncthreads_count(int vote) { return standin_count(vote); }
inline int __syncthreads_or(int vote) { return standin_count(vote) > 0; }
inline int __syncthreads_and(int vote) { return !standin_count(!vote); }
inline void __syncwarp(unsigned lanes = 0xffffffff) { standin_warp_barrier(lanes); }

inline unsigned __ballot_sync(unsigned lanes, int vote) { return standin_ballot(lanes, vote); }
inline int __any_sync(unsigned lanes, int vote) { return standin_ballot(lanes, vote) != 0; }
inline int __all_sync(unsigned lanes, int vote) { return standin_ballot(lanes, !vote) == 0; }

namespace standin {

template <typename T> T shuffle(unsigned lanes, T value, int from, bool inside)
{
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "lanes exchange 2, 4 or 8 bytes");
    standin_shuffle(lanes, &value, sizeof value, inside ? from : -1);
    return value;
}

}  // namespace standin

/* A part of `width` lanes; who would read from outside of it keeps what it has. */
template <typename T> T __shfl_sync(unsigned lanes, T value, int from, int width = warpSize)
{
    int first = standin_lane() / width * width;
    return standin::shuffle(lanes, value, first + (from & (width - 1)), true);
}

template <typename T> T __shfl_up_sync(unsigned lanes, T value, unsigned distance, int width = warpSize)
{
    int from = standin_lane() - (int)distance;
    return standin::shuffle(lanes, value, from, from >= standin_lane() / width * width);
}

template <typename T> T __shfl_down_sync(unsigned lanes, T value, unsigned distance, int width = warpSize)
{
    int from = standin_lane() + (int)distance;
    return standin::shuffle(lanes, value, from, from < (standin_lane() / width + 1) * width);
}

template <typename T> T __shfl_xor_sync(unsigned lanes, T value, int bits, int width = warpSize)
{
    int from = standin_lane() ^ bits;
    return standin::shuffle(lanes, value, from, from < (standin_lane() / width + 1) * width);
}

#endif

/* ---- atomics: kernels on other streams run at the same time ---- */

namespace standin {

template <typename T, typename Change> T change(T *address, Change changed)
{
    T before, after;
    __atomic_load(address, &before, __ATOMIC_RELAXED);
    do {
        after = changed(before);
    } while (!__atomic_compare_exchange(address, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}

template <typename T> using if_whole = std::enable_if_t<std::is_integral_v<T> && sizeof(T) >= 4, T>;

}  // namespace standin

#define STANDIN_ATOMIC(name, type, result)                                                                             \
    inline type name(type *address, type value)                                                                        \
    {                                                                                                                  \
        return standin::change(address, [=](type before) -> type { return result; });                                  \
    }
#define STANDIN_ATOMIC_WHOLE(name, result)                                                                             \
    STANDIN_ATOMIC(name, int, result)                                                                                  \
    STANDIN_ATOMIC(name, unsigned, result)                                                                             \
    STANDIN_ATOMIC(name, unsigned long long, result)

STANDIN_ATOMIC_WHOLE(atomicAdd, before + value)
STANDIN_ATOMIC(atomicAdd, float, before + value)
STANDIN_ATOMIC(atomicAdd, double, before + value)
STANDIN_ATOMIC_WHOLE(atomicExch, value)
STANDIN_ATOMIC(atomicExch, float, value)
STANDIN_ATOMIC_WHOLE(atomicMin, before < value ? before : value)
STANDIN_ATOMIC(atomicMin, long long, before < value ? before : value)
STANDIN_ATOMIC_WHOLE(atomicMax, before < value ? value : before)
STANDIN_ATOMIC(atomicMax, long long, before < value ? value : before)
STANDIN_ATOMIC_WHOLE(atomicAnd, before & value)
STANDIN_ATOMIC_WHOLE(atomicOr, before | value)
STANDIN_ATOMIC_WHOLE(atomicXor, before ^ value)
STANDIN_ATOMIC(atomicSub, int, before - value)
STANDIN_ATOMIC(atomicSub, unsigned, before - value)
STANDIN_ATOMIC(atomicInc, unsigned, before >= value ? 0 : before + 1)
STANDIN_ATOMIC(atomicDec, unsigned, before == 0 || before > value ? value : before - 1)

template <typename T> standin::if_whole<T> atomicCAS(T *address, T expected, T value)
{
    __atomic_compare_exchange(address, &expected, &value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

/* ---- arithmetic ---- */

namespace standin {

template <typename To, typename From> To same_bits(From value)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

template <typename T, typename U>
using common = std::enable_if_t<std::is_arithmetic_v<T> && std::is_arithmetic_v<U>, std::common_type_t<T, U>>;

}  // namespace standin

/* As on a GPU: of two floats the one that is no NaN. */
template <typename T, typename U> constexpr standin::common<T, U> min(T a, U b)
{
    using Both = standin::common<T, U>;
    if constexpr (std::is_floating_point_v<Both>)
        return fmin((Both)a, (Both)b);
    else
        return (Both)b < (Both)a ? (Both)b : (Both)a;
}

template <typename T, typename U> constexpr standin::common<T, U> max(T a, U b)
{
    using Both = standin::common<T, U>;
    if constexpr (std::is_floating_point_v<Both>)
        return fmax((Both)a, (Both)b);
    else
        return (Both)a < (Both)b ? (Both)b : (Both)a;
}

inline int __float_as_int(float value) { return standin::same_bits<int>(value); }
inline unsigned __float_as_uint(float value) { return standin::same_bits<unsigned>(value); }
inline float __int_as_float(int value) { return standin::same_bits<float>(value); }
inline float __uint_as_float(unsigned value) { return standin::same_bits<float>(value); }
inline long long __double_as_longlong(double value) { return standin::same_bits<long long>(value); }
inline double __longlong_as_double(long long value) { return standin::same_bits<double>(value); }
inline int __double2hiint(double value) { return (int)(__double_as_longlong(value) >> 32); }
inline int __double2loint(double value) { return (int)__double_as_longlong(value); }
inline double __hiloint2double(int high, int low)
{
    return __longlong_as_double((long long)high << 32 | (unsigned)low);
}

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
inline int __clz(int value) { return value ? __builtin_clz((unsigned)value) : 32; }
inline int __clzll(long long value) { return value ? __builtin_clzll((unsigned long long)value) : 64; }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __ffsll(long long value) { return __builtin_ffsll(value); }

/* The compiler is told not to contract, so that these are what their names say. */
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __expf(float value) { return expf(value); }
inline float __logf(float value) { return logf(value); }
inline float __sinf(float value) { return sinf(value); }
inline float __cosf(float value) { return cosf(value); }
inline float __powf(float base, float exponent) { return powf(base, exponent); }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }

inline float rsqrtf(float value) { return 1 / sqrtf(value); }
inline float rsqrt(float value) { return 1 / sqrtf(value); }
inline double rsqrt(double value) { return 1 / sqrt(value); }
inline float rcbrt(float value) { return 1 / cbrtf(value); }
inline double rcbrt(double value) { return 1 / cbrt(value); }
inline float exp10(float value) { return exp10f(value); }
inline float normcdf(float value) { return 0.5f * erfcf(-value * 0.70710678118654752f); }
inline double normcdf(double value) { return 0.5 * erfc(-value * 0.70710678118654752); }

template <typename T> const T &__ldg(const T *address)
{
    return *address;
}

/* ---- from a kernel to what cuLaunchKernel runs ---- */

namespace standin {

template <auto function> struct of;

template <typename... Arguments, void (*function)(Arguments...)> struct of<function> {
    static constexpr size_t sizes[] = {sizeof(Arguments)..., 0};

    template <size_t... place> static void call(void *const *arguments, std::index_sequence<place...>)
    {
        (void)arguments;
        function(*static_cast<Arguments *>(arguments[place])...);
    }

    static void thread(void *const *arguments)
    {
        call(arguments, std::index_sequence_for<Arguments...>());
    }

    static int run(void *const *arguments, const standin_launch *launch)
    {
        return standin_run(thread, arguments, launch, STANDIN_MEETS);
    }
};

template <auto function> constexpr standin_kernel kernel(const char *name)
{
    constexpr int count = (int)(sizeof of<function>::sizes / sizeof(size_t)) - 1;
    return {name, count, of<function>::sizes, of<function>::run};
}

}  // namespace standin
