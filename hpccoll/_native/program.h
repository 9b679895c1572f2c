/* A rank's program as C reads it: plans/program.py, flattened by runtime/engine.py. */

#ifndef HPCCOLL_PROGRAM_H
#define HPCCOLL_PROGRAM_H

#include "module.h"

#include <stdint.h>

/* The order is that of CODES in runtime/engine.py; group calls come last. */
typedef enum {
    SEND,
    RECEIVE,
    COMBINE,
    COPY,
    ALLREDUCE,
    REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    ALLGATHER,
    GATHER,
    SCATTER,
    ALLTOALL,
    SCAN,
    EXSCAN,
    CODES
} Code;

#define FIRST_GROUP_CODE ALLREDUCE
enum { INPUT, OUTPUT, SCRATCH, WIRE, MEMORIES }; /* WIRE: elements as they travel between nodes */

/* Elements start, ..., stop - 1 of one of the rank's buffers. */
typedef struct {
    int64_t memory;
    int64_t start;
    int64_t stop;
} Place;

/* A row of the table that Python hands over.  The sources and then the targets of an operation are
 * `sources + targets` places from `place` on; a combination has left and right as its sources. */
typedef struct {
    int64_t code;
    int64_t step;
    int64_t peer; /* of a message: world rank; of a group call: the root's index among the members */
    int64_t place;
    int64_t sources;
    int64_t targets;
    int64_t count; /* a group call has `counts` counts from `count` on */
    int64_t counts;
    int64_t next; /* the operation that waits for the start of this one, or -1 */
} Operation;

typedef struct {
    PyObject_HEAD
    Py_ssize_t length;
    Operation *operations;
    Place *places;
    int64_t *counts;
    int64_t *following_starts; /* operation i releases following[starts[i] .. starts[i + 1] - 1] by its end */
    int64_t *following;
    int32_t *waits; /* how many releases each operation waits for */
    Py_ssize_t group_calls;
    int64_t needed[MEMORIES]; /* elements that each buffer must have */
    int messages, combines;
    int64_t longest_message;
    unsigned int steps; /* the number of their description in the recorder's table; 0: none */
} Program;

static inline int
is_group_call(const Operation *operation)
{
    return operation->code >= FIRST_GROUP_CODE;
}

static inline int
combines(const Operation *operation)
{
    switch (operation->code) {
    case COMBINE: case ALLREDUCE: case REDUCE: case REDUCE_SCATTER: case SCAN: case EXSCAN:
        return 1;
    default:
        return 0;
    }
}

static inline const Place *
sources_of(const Program *program, const Operation *operation)
{
    return program->places + operation->place;
}

static inline const Place *
targets_of(const Program *program, const Operation *operation)
{
    return program->places + operation->place + operation->sources;
}

#endif
