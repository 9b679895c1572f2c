/* Calls on host arrays that were made before, made again without Python.
 *
 *     known.c     which calls are known, and what is known of them
 *     repeats.c   how one is made again
 *     nodes.c     how the ranks of several nodes agree on it
 *     started.c   one that the caller does not wait for
 *
 * All happens with the GIL, but for waits. */

#ifndef HPCCOLL_REPEATS_H
#define HPCCOLL_REPEATS_H

#include "engine.h"
#include "meter.h"
#include "recorder.h"
#include "spread.h"

#define ARGUMENTS 2
#define KNOWN 256 /* calls kept, in sets of WAYS, by a number made of their keys */
#define WAYS 4
#define FINGERPRINT_BYTES 48
#define ARRIVALS_PER_CALL 2
#define MOST_STARTED 64 /* that are not over */
#define STARTED_BYTES 262144 /* of both arguments: what is more is Python's, whose worker moves it without the GIL */

/* The documented beginning of NumPy's PyArrayObject (the same from NumPy 1.7 on), and its flags. */
typedef struct {
    PyObject_HEAD
    char *data;
    int nd;
    Py_ssize_t *dimensions;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *dtype;
    int flags;
} Array;

enum { C_CONTIGUOUS = 0x1, ALIGNED = 0x100, WRITEABLE = 0x400 };

/* Numbers shared with runtime/counts.py: the next call, those that have agreed, and arrivals. */
enum { NEXT, AGREED, ARRIVALS, NUMBERS };

/* An argument as it is known again; `data` NULL: none, or in place. */
typedef struct {
    PyObject *dtype;
    int64_t count;
    char *data;
    int writeable;
} Sight;

/* How payloads travel along with the agreement: combined node by node, all as they are, or the root's. */
typedef enum { NO_PAYLOAD, REDUCED, GATHERED, FROM_ROOT, WAYS_TO_TRAVEL } Travel;

/* What is the same in all calls that are known as one. */
typedef struct {
    PyObject *collective, *operator;
    long root;
    PyObject *dtypes[ARGUMENTS];
    int64_t counts[ARGUMENTS];
} Key;

/* How a call is made: the caller waits, or starts it. */
enum { BLOCKING, STARTED, FORMS };

typedef struct {
    Key key;
    PyObject *label; /* by which calls are counted */
    int64_t calls;
    int64_t use; /* calls, of which old ones count less */
    unsigned char fingerprint[FINGERPRINT_BYTES];
    unsigned int plan; /* its name in the ring's file */
    int agrees;      /* all ranks agree on it before anything moves */
    int reads, writes; /* which argument is read, which written; -1: none */
    int64_t nbytes[ARGUMENTS]; /* of the arguments */
    int64_t itemsize;  /* of elements as they travel */
    Kernel *kernel;    /* NULL: nothing is combined */
    PyObject *finish;  /* called with the array that was written; or NULL */
    /* Where the payload travels along: bytes of any rank's, and those that this rank gives; of this rank's result: the
     * pieces of `piece` bytes from `offset` on of the ranks first, ..., last - 1, combined or one after the other. */
    Travel travel;
    int64_t each, payload, piece, offset;
    int64_t first, last;
    Program *program; /* else; NULL where the payload travels along */
    Wire wire;
    Meter *meters[FORMS]; /* NULL: calls are not measured */
    Counted counted; /* of a call, but for its times */
} Known;

typedef struct Repeats Repeats;

/* A call that was started. */
typedef struct {
    PyObject_HEAD
    Repeats *repeats;
    Known *known; /* while it is in the queue, where nothing is kept or dropped */
    PyObject *collective;
    PyObject *given, *prepare; /* the caller's arguments; makes a Call of them: NULL once it is over */
    const char *payload;
    char *target;
    long long sequence;
    int64_t half;
    int arrived, agreed, done;
    Spread *spread;       /* what a leader has begun to tell the others, or NULL */
    Execution *execution; /* of its program, once all have agreed; else NULL */
    PyObject *scratch[2];
    double began_s;
    long long agreed_ns; /* when all had agreed; 0: they have not, or nobody asks */
    Record *record;
    Meter *meter; /* of its kind; NULL: it is not measured */
    PyObject *action;  /* what is to be called at the end, or NULL */
    PyObject *running; /* what Python has made of it, or NULL */
} Started;

struct Repeats {
    PyObject_HEAD
    Py_buffer control, numbers, pending;
    char *slots; /* two halves of a slot for each member: fingerprint and text, then its payload */
    int64_t slot_bytes, head_bytes;
    int64_t me, members;
    word_t *words, *arrived; /* word 0: aborted; arrived: of member 0 */
    int64_t stride;          /* words from a member's to the next */
    /* Of several nodes: of each its ranks, those of node i from starts[i] on, and of each rank where it is; the leader's
     * verdict and result, in two halves as the slots; and what is said between the leaders. */
    int64_t node, nodes;
    int64_t *starts;
    int *ranks, *node_of, *member_of;
    word_t *verdict;
    char *results;
    int64_t result_bytes;
    PyObject *leaders;
    int agreement_channel;
    Spread *spread; /* NULL until it is needed, and where Python goes on with it */
    const char **parts; /* of the payloads of all nodes, in `spread` */
    double spin_s, patience_s; /* a wait keeps the core; a call is left to Python */
    PyObject *array_type, *in_place, *nothing;
    PyObject *acquire, *release; /* of the lock that a communicator's calls hold */
    Network *network;
    Group *group; /* NULL until there is one */
    PyObject *scratch[2]; /* of programs, and for elements as they travel: kept between calls */
    Ring *ring;   /* NULL: calls are not recorded */
    Record *record; /* of the call that is made; one at a time, under the lock */
    long long entered_ns, agreed_ns; /* of that call, where it is recorded or measured; agreed 0: it has not */
    int channel, channels, calls_in_flight;
    Known known[KNOWN];
    PyObject *past; /* label -> calls of those that are not kept any more */
    Started *queue[MOST_STARTED];
    int64_t queue_head, queue_tail;
    _Atomic int waiting; /* how many threads wait for one of it here */
    int64_t nap_ns; /* of the worker, next time */
    _Atomic int64_t touched_ns; /* when one was last started, tested, or waited for here */
    int moving; /* a thread is at work on the first of it, perhaps without the GIL */
    word_t awaited; /* the arrival that the first of the queue waits for; 0: the queue is empty; ANYTHING: its program */
};

#define ANYTHING UINT64_MAX

static inline int64_t *
repeats_number(const Repeats *self, int which)
{
    return (int64_t *)self->numbers.buf + which;
}

/* How many calls were started and are not over. */
static inline int64_t
queued(const Repeats *self)
{
    return self->queue_tail - self->queue_head;
}

static inline int64_t
ranks_of(const Repeats *self)
{
    return self->nodes > 1 ? self->starts[self->nodes] : self->members;
}

static inline char *
slot_of(const Repeats *self, int64_t half, int64_t member)
{
    return self->slots + (half * self->members + member) * self->slot_bytes;
}

static inline char *
result_of(const Repeats *self, int64_t half)
{
    return self->results + half * self->result_bytes;
}

/* What `given` was known as before, or NULL. */
Known *find_known(Repeats *self, PyObject *collective, PyObject *given, Sight *sights);
PyObject *Repeats_keep(Repeats *self, PyObject *args, PyObject *kwargs);
PyObject *Repeats_forget(Repeats *self, PyObject *unused);
PyObject *Repeats_calls(Repeats *self, PyObject *unused);
void drop_known(Known *known);

/* Takes the lock of the communicator's calls: 1, 0 where another thread has it, -1 when it raised. */
int hold(const Repeats *self);
int let_go(const Repeats *self);
/* The record of the call that comes next, and when it began; 0 with an error. */
int begin_record(Repeats *self, const Known *known);
/* All have agreed, and elements move: when, 0 where nobody asks. */
int64_t note_agreed(Record *record, const Meter *meter);
/* A call is over, which took from `entered_ns` on. */
void end_call(Record *record, Known *known, int form, int64_t entered_ns, int64_t agreed_ns);
/* Says what this rank calls; returns the half of the slots that is used. */
int64_t arrive(Repeats *self, const Known *known, int64_t sequence, const char *payload);
/* The results of a call whose payload has travelled along.  Its kernel is a loop of C: it cannot fail. */
void take_results(const Repeats *self, const Known *known, int64_t half, char *target);

/* The program of a call begins; `scratch`: two references, the caller's, also where it fails. */
Execution *begin_program(Repeats *self, const Known *known, PyObject *given, int64_t sequence, PyObject **scratch);
/* Runs a program for a while; whether that went well. */
int run_program(const Repeats *self, const Known *known, Execution *execution);
/* What a run has no use of any more. */
void keep_scratch(Repeats *self, PyObject **scratch);

/* Moves on what was started, as far as it goes without waiting; -1 with an error. */
int move_started(Repeats *self);
/* Lets go of what was started and is not over. */
void drop_started(Repeats *self);
PyObject *Repeats_start(Repeats *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *Repeats_move(Repeats *self, PyObject *unused);
PyObject *Repeats_take_over(Repeats *self, PyObject *unused);
PyObject *Repeats_await_started(Repeats *self, PyObject *seconds);

/* Whether `count` words, `stride` apart, have come to a value; keeps the core for as long as waits do, then gives it
 * away at every turn, and gives up when Python is to go on. */
int wait_for_words(const Repeats *self, word_t *at, int64_t count, int64_t stride, uint64_t wanted);
int all_call_the_same(const Repeats *self, int64_t half);

/* What this node calls begins to be told to the other leaders; 0, or -1 with an error. */
int begin_spread(Repeats *self, const Known *known, int64_t half);
/* The leader's verdict, once `spread` is over: 1, or 0 where nodes call different things, or it has failed. */
int publish(Repeats *self, const Known *known, int64_t half, uint64_t wanted);
/* All ranks of several nodes agree on a call of which this one has told its node: True, with the result in the node's;
 * else what Python goes on with, None or a Spread; or NULL with an error. */
PyObject *agree_between_nodes(Repeats *self, const Known *known, int64_t sequence, int64_t half);
/* The arguments that say where the other nodes are. */
int take_nodes(Repeats *self, PyObject *nodes, long long node, long long verdict, long long results,
               long long result_bytes);

#endif
