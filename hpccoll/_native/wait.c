/* Giving the core away. */

#include "wait.h"

#include <sched.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

/* As in hpccoll/cores.py. */
#define LONG_YIELD_S 50e-6
#define CROWDED_S 0.2
#define NAP_NS 20000

static _Thread_local long nap_ns = NAP_NS;
static _Atomic double crowded_until; /* of this process, whose threads share its cores */

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
    if (now < atomic_load_explicit(&crowded_until, memory_order_relaxed)) {
        nap();
        return now_s();
    }
    sched_yield();
    double then = now_s();
    if (then - now > LONG_YIELD_S)
        atomic_store_explicit(&crowded_until, then + CROWDED_S, memory_order_relaxed);
    return then;
}
