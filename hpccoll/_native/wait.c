/* Giving the core away. */

#include "wait.h"

#include <sched.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

/* As in hpccoll/cores.py. */
#define LONG_YIELD_S 400e-6
#define SOON 0.2
#define CROWDED_S 2e-3
#define MOST_CROWDED_S 0.2
#define NAP_NS 20000

static _Thread_local long nap_ns = NAP_NS;
/* Of this process, whose threads share its cores: when the last long yield or the naps end, and how long it naps. */
static _Atomic double calm_since, crowded_s;

static void
nap(void)
{
    const struct timespec time = {0, nap_ns};
#ifdef __linux__
    int slack_ns = prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL); /* 50 us, by which a sleep may be longer */
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
#endif
    nanosleep(&time, NULL);
#ifdef __linux__
    if (slack_ns > 0)
        prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns, 0UL, 0UL, 0UL);
#endif
}

void
nap_for(double seconds)
{
    nap_ns = (long)(1e9 * seconds);
}

double
give_core(double now)
{
    double calm = now - atomic_load_explicit(&calm_since, memory_order_relaxed);
    if (calm < 0.0) {
        nap();
        return now_s();
    }
    sched_yield();
    double then = now_s();
    if (then - now > LONG_YIELD_S) {
        double naps = 2.0 * atomic_load_explicit(&crowded_s, memory_order_relaxed);
        naps = naps < CROWDED_S ? CROWDED_S : naps < MOST_CROWDED_S ? naps : MOST_CROWDED_S;
        naps = calm < SOON * (then - now) ? naps : 0.0;
        atomic_store_explicit(&crowded_s, naps, memory_order_relaxed);
        atomic_store_explicit(&calm_since, then + naps, memory_order_relaxed);
    }
    return then;
}
