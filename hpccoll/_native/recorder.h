/* The ring of a rank's last calls (hpccoll/observe/form.py says where what is). */

#ifndef HPCCOLL_RECORDER_H
#define HPCCOLL_RECORDER_H

#include "module.h"
#include "wait.h"

#define RECORDED_BYTES 48 /* of a fingerprint */
#define CODES_SEEN 256

enum { ENTERED = 1, AGREED_ON, MOVING, DONE };

/* One call.  A reader takes it when `before` and `after` are the same number. */
typedef struct {
    word_t before;
    unsigned char fingerprint[RECORDED_BYTES];
    int64_t entered_ns, agreed_ns, ended_ns;
    int32_t state, step, chunk, chunks, peer, family;
    int64_t bytes_done, bytes_total;
    uint32_t code;
    int32_t instruction;
    uint64_t thread;
    uint32_t plan, steps, error, collective;
    word_t after;
} Record;

_Static_assert(sizeof(Record) == 160, "hpccoll/observe/form.py has the same");

typedef struct {
    PyObject_HEAD
    Py_buffer memory;
    word_t *written; /* how many records have been begun */
    Record *records;
    int64_t count;
    PyObject *number_of; /* called with a code object it has not been asked for: its number; 0 when there is no room */
    PyObject *inside;    /* code whose file begins so is ours, not the caller's */
    struct {
        PyObject *code; /* `number_of` keeps it */
        uint32_t number;
    } seen[CODES_SEEN];
    int full;
} Ring;

/* Begins a record of a call that this thread makes; NULL with an error where `number_of` raised. */
Record *ring_enter(Ring *self, const unsigned char *fingerprint, int64_t sequence);

static inline int64_t
now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Returns when that was. */
static inline int64_t
record_end(Record *record)
{
    record->state = DONE;
    return record->ended_ns = now_ns();
}

#endif
