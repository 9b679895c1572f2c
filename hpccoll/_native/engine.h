/* Runs executions without the GIL until one is over. */

#ifndef HPCCOLL_ENGINE_H
#define HPCCOLL_ENGINE_H

#include "execution.h"

#define YIELD_S 20e-3 /* as in runtime/wait.py */
/* MPI gets a turn so seldom when none of its messages is waited for, and none before so many seconds without a move:
 * some take longer for it than a block through shared memory does. */
#define TURNS_PER_PROGRESS 16
#define IDLE_S 20e-6

/* The seconds an idle thread keeps its core, then those it gives it away at every turn; then it sleeps. */
typedef struct {
    double spin_s, yield_s;
} Patience;

/* Rung by one thread, it makes another come back. */
typedef struct {
    PyObject_HEAD
    _Atomic int rung;
} Bell;

typedef enum { LATE, OVER, RUNG, RAISED } End;

/* At most so long; RAISED when a signal handler raised.  With the GIL, which it lets go. */
End engine_run(Execution *const *all, Py_ssize_t count, double seconds, const Patience *patience, Bell *bell);
/* Else ValueError. */
int seconds_are_right(double seconds, const Patience *patience);

#endif
