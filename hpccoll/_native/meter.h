/* Counts calls of one kind and how long they took (hpccoll/observe/meter.py says what the numbers are). */

#ifndef HPCCOLL_METER_H
#define HPCCOLL_METER_H

#include "module.h"

#define TIME_BINS 48 /* bin b: from 2^b ns on; the last has all that is longer */

typedef struct {
    int64_t calls, nbytes, inside, between;
    int64_t ns, agreeing_ns, waited_ns, shortest_ns, longest_ns;
} Sums;

/* What one call adds to it; `ns` below 0: not known. */
typedef struct {
    int64_t nbytes, inside, between;
    int64_t ns, agreeing_ns;
} Counted;

/* Read and written with the GIL, so that no number belongs to another call than the others. */
typedef struct {
    PyObject_HEAD
    Sums sums;
    int64_t bins[TIME_BINS];
} Meter;

static inline void
meter_count(Meter *self, const Counted *call)
{
    Sums *sums = &self->sums;
    sums->nbytes += call->nbytes, sums->inside += call->inside, sums->between += call->between;
    if (call->ns >= 0) {
        int bin = 63 - __builtin_clzll((uint64_t)call->ns | 1);
        ++self->bins[bin < TIME_BINS ? bin : TIME_BINS - 1];
        sums->ns += call->ns, sums->agreeing_ns += call->agreeing_ns;
        if (sums->calls == 0 || call->ns < sums->shortest_ns)
            sums->shortest_ns = call->ns;
        if (call->ns > sums->longest_ns)
            sums->longest_ns = call->ns;
    }
    ++sums->calls;
}

#endif
