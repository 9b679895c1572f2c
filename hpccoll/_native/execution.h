/* One run of a program on this rank's memory. */

#ifndef HPCCOLL_EXECUTION_H
#define HPCCOLL_EXECUTION_H

#include "group.h"
#include "network.h"
#include "recorder.h"
#include "wire.h"

#include <pthread.h>

typedef struct {
    PyObject_HEAD
    Program *program;
    Network *network;
    Group *group;
    Kernel *kernel;
    Py_buffer memory[MEMORIES];
    char *buffers[MEMORIES];
    int64_t itemsize; /* of all memory but WIRE */
    Wire wire;
    int channel_base, channels;
    pthread_mutex_t lock;
    int has_lock;
    /* Written under the lock, read by anybody. */
    _Atomic int32_t left;
    _Atomic int failed;
    _Atomic int32_t posted; /* messages that MPI has and has not completed */
    _Atomic int32_t active_count;
    _Atomic int32_t *active; /* operations under way, the oldest first */
    /* Under the lock. */
    int32_t *waits, *ready;
    int32_t ready_head, ready_tail;
    Request *requests;  /* by operation */
    GroupCall *calls;   /* in program order */
    int32_t *call_of;   /* by operation */
    double moved_at;
    Ring *ring;        /* where the times of operations go; NULL: nowhere */
    int64_t sequence;  /* of the call */
    int64_t *begun_ns; /* by operation */
    /* Written before `failed`. */
    int mpi_error;
    PyObject *error;
} Execution;

/* `memory`: input, output, scratch and wire.  `type`: that of executions.  Network, group and kernel may be NULL where
 * the program needs none, and `wire` NO_WIRE.  NULL with an error where it cannot run on them. */
Execution *new_execution(PyTypeObject *type, Program *program, PyObject *const *memory, int64_t itemsize,
                         Network *network, Group *group, Kernel *kernel, int channel_base, int channels,
                         Wire wire);
/* Before its first pass: from now on the times of its operations go to the ring, as those of call `sequence`.  -1 with
 * an error. */
int execution_observe(Execution *self, Ring *ring, int64_t sequence);
/* Moves on as far as it goes without waiting; whether anything was done.  With or without the GIL. */
int execution_pass(Execution *self);
/* Complete, or failed. */
int execution_is_over(Execution *self);
int execution_is_complete(Execution *self);

#endif
