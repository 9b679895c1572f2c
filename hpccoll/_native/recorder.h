/* The ring of a rank's last calls, and that of events of its timeline (hpccoll/observe/form.py says where what is). */

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
    int16_t state, form; /* a State; whether its caller waits, a Form of repeats.h */
    int32_t step, chunk, chunks, peer, family;
    int64_t bytes_done, bytes_total;
    uint32_t code;
    int32_t instruction;
    uint64_t thread;
    uint32_t plan, steps, error, collective;
    word_t after;
} Record;

_Static_assert(sizeof(Record) == 160, "hpccoll/observe/form.py has the same");

/* Something that lasted from `begin_ns` to `end_ns`: an operation of a program, a wait, a part of the user's program.
 * `kind`: the code of an operation, else one of form.py, as WAITED. */
#define WAITED 65

typedef struct {
    word_t before;
    int64_t begin_ns, end_ns, sequence, nbytes;
    uint32_t text; /* a number in the table: words, or what a plan's steps are */
    int32_t kind, step, peer;
    uint64_t thread;
    word_t after;
} Event;

_Static_assert(sizeof(Event) == 72, "hpccoll/observe/form.py has the same");

typedef struct {
    PyObject_HEAD
    Py_buffer memory;
    word_t *written; /* how many records have been begun */
    Record *records;
    int64_t count;
    Event *events; /* NULL: no timeline is wanted */
    word_t *events_written;
    int64_t event_count;
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

/* Writes an event; `before` and `after` are set here, and the thread is this one.  With or without the GIL. */
void ring_put(Ring *self, const Event *event);

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
