/* Clock, pauses, and 64-bit words that processes share with acquire/release order. */

#ifndef HPCCOLL_WAIT_H
#define HPCCOLL_WAIT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef _Atomic uint64_t word_t;

/* A lock inside one process would order nothing between two of them. */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(word_t) == 8,
               "64-bit atomics must be lock-free");

#define SIGNAL_PERIOD_S 0.05
#define FOREVER_S 1e9

static inline void
cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory"); /* `yield` takes no time on most Arm cores */
#endif
}

static inline double
now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Gives the core to others, and returns the time afterwards.  `now` is the time before.  A yield that took long shows
 * that others compute there.  A kernel may then give the core away for a whole slice of theirs at every yield (Linux
 * 6.18: 3 ms), while who has slept is soon let in: where long yields follow each other soon, naps of 20 us take the place
 * of yields, for 2 ms, then for twice as long each time, up to 0.2 s, while the yields between are long. */
double give_core(double now);
/* From now on this thread sleeps so long, below 1 s, where give_core does not yield. */
void nap_for(double seconds);

/* What was written before a word was stored is there for whoever loads it afterwards, on weakly ordered machines too. */
static inline void
store_word(word_t *at, uint64_t value)
{
    atomic_store_explicit(at, value, memory_order_release);
}

static inline uint64_t
load_word(const word_t *at)
{
    return atomic_load_explicit(at, memory_order_acquire);
}

/* The first of `count` words, `stride` apart, from number `from` on, that is below the value; -1 when
 * none is. */
static inline ptrdiff_t
first_word_below(word_t *at, ptrdiff_t count, ptrdiff_t stride, uint64_t value, ptrdiff_t from)
{
    for (ptrdiff_t i = from; i < count; ++i)
        if (load_word(at + i * stride) < value)
            return i;
    return -1;
}

#endif
