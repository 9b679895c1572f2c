/* Repeats: calls on host arrays of one node that were made before, made again without Python.
 *
 * A call is known again by its collective, operator and root, and by dtype and count of its arrays.  What it
 * does is what runtime/context.py would do, to the last bit and in the same words of the control segment
 * (runtime/control.py), so that ranks that come this way work together with ranks that come the other:
 *
 *     arrive: fingerprint and payload into the own slot, ARRIVED -> wait for all -> compare
 *         payload travelled along: combine the slots into the caller's array
 *         else:                    an execution of the program (execution.c)
 *
 * Whatever takes longer than a moment is left to Python in the middle, which has the deadlines and the words
 * for errors: `again` then returns where it is. */

#include "engine.h"
#include "recorder.h"

#include <limits.h>
#include <sched.h>
#include <string.h>

#define ARGUMENTS 2
#define KNOWN 256 /* calls kept, in sets of WAYS, by a number made of their keys */
#define WAYS 4
#define FINGERPRINT_BYTES 48
#define ARRIVALS_PER_CALL 2
#define TURNS_PER_PROGRESS 16

/* Longer messages are not moved while the GIL is held. */
#define SHORT_BYTES 65536

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

/* Numbers shared with runtime/context.py: the next call, those that have agreed, arrivals, and whether known calls
 * are to be made in Python for now. */
enum { NEXT, AGREED, ARRIVALS, PAUSED, NUMBERS };

/* An argument as it is known again; `data` NULL: none, or in place. */
typedef struct {
    PyObject *dtype;
    int64_t count;
    char *data;
    int writeable;
} Sight;

/* What is the same in all calls that are known as one. */
typedef struct {
    PyObject *collective, *operator;
    long root;
    PyObject *dtypes[ARGUMENTS];
    int64_t counts[ARGUMENTS];
} Key;

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
    /* Where the payload travels along: bytes of one rank's, and of this rank's result: the pieces of `piece` bytes
     * from `offset` on of the members first, ..., last - 1, combined or one after the other. */
    int64_t payload, piece, offset;
    int64_t first, last;
    Program *program; /* else; NULL where the payload travels along */
} Known;

typedef struct {
    PyObject_HEAD
    Py_buffer control, numbers, pending;
    char *slots; /* two halves of a slot for each member: fingerprint and text, then its payload */
    int64_t slot_bytes, head_bytes;
    int64_t me, members;
    word_t *words, *arrived; /* word 0: aborted; arrived: of member 0 */
    int64_t stride;          /* words from a member's to the next */
    double spin_s, patience_s; /* a wait keeps the core; a call is left to Python */
    PyObject *array_type, *in_place, *nothing;
    PyObject *acquire, *release; /* of the lock that a communicator's calls hold */
    Network *network;
    Group *group; /* NULL until there is one */
    Ring *ring;   /* NULL: calls are not recorded */
    Record *record; /* of the call that is made; one at a time, under the lock */
    int channel, channels, calls_in_flight;
    Known known[KNOWN];
    PyObject *past; /* label -> calls of those that are not kept any more */
} Repeats;

/* Knowing a call again */

static int
see(const Repeats *self, PyObject *object, Sight *sight)
{
    *sight = (Sight){0};
    if (object == Py_None || object == self->in_place)
        return 1;
    const Array *array = (const Array *)object;
    if ((PyObject *)Py_TYPE(object) != self->array_type
        || (array->flags & (C_CONTIGUOUS | ALIGNED)) != (C_CONTIGUOUS | ALIGNED))
        return 0;
    sight->count = 1;
    for (int i = 0; i < array->nd; ++i)
        sight->count *= array->dimensions[i];
    sight->dtype = array->dtype;
    sight->data = array->data;
    sight->writeable = (array->flags & WRITEABLE) != 0;
    return 1;
}

/* The key of a call, without references of its own; 0 where no such call can be known. */
static int
key_of(const Repeats *self, PyObject *collective, PyObject *given, Key *key, Sight *sights)
{
    if (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) != ARGUMENTS + 2)
        return 0;
    PyObject *root = PyTuple_GET_ITEM(given, ARGUMENTS + 1);
    if (!PyLong_CheckExact(root) || !see(self, PyTuple_GET_ITEM(given, 0), sights)
        || !see(self, PyTuple_GET_ITEM(given, 1), sights + 1))
        return 0;
    int overflow;
    *key = (Key){
        .collective = collective,
        .operator = PyTuple_GET_ITEM(given, ARGUMENTS),
        .root = PyLong_AsLongAndOverflow(root, &overflow),
        .dtypes = {sights[0].dtype, sights[1].dtype},
        .counts = {sights[0].count, sights[1].count},
    };
    return !overflow;
}

/* The first of the places that a call of this key may have. */
static Known *
places_of(Repeats *self, const Key *key)
{
    uint64_t mixed = (uintptr_t)key->collective ^ (uintptr_t)key->operator;
    mixed = mixed * 31 + (uint64_t)key->root;
    for (int i = 0; i < ARGUMENTS; ++i)
        mixed = (mixed * 31 + (uint64_t)key->counts[i]) * 31 + (uintptr_t)key->dtypes[i];
    return self->known + (mixed * 0x9e3779b97f4a7c15u >> 32) % (KNOWN / WAYS) * WAYS;
}

static int
same_key(const Key *one, const Key *other)
{
    return one->collective == other->collective && one->operator == other->operator
           && one->root == other->root && one->dtypes[0] == other->dtypes[0]
           && one->dtypes[1] == other->dtypes[1] && one->counts[0] == other->counts[0]
           && one->counts[1] == other->counts[1];
}

/* What the key does not say: results go to memory that may be written, and the arrays lie apart. */
static int
is_right(const Known *known, const Sight *sights)
{
    const char *one = sights[0].data, *other = sights[1].data;
    if (known->writes >= 0 && !sights[known->writes].writeable)
        return 0;
    return one == NULL || other == NULL || one >= other + known->nbytes[1]
           || other >= one + known->nbytes[0];
}

/* What `given` was known as before, or NULL. */
static Known *
find(Repeats *self, PyObject *collective, PyObject *given, Sight *sights)
{
    Key key;
    if (!key_of(self, collective, given, &key, sights))
        return NULL;
    Known *known = places_of(self, &key);
    for (int way = 0; way < WAYS; ++way, ++known)
        if (known->label != NULL && same_key(&known->key, &key))
            return is_right(known, sights) ? known : NULL;
    return NULL;
}

/* The state of the communicator */

static int64_t *
number(const Repeats *self, int which)
{
    return (int64_t *)self->numbers.buf + which;
}

/* Takes the lock of the communicator's calls: 1, 0 where another thread has it, -1 when it raised. */
static int
hold(const Repeats *self)
{
    PyObject *taken = PyObject_CallOneArg(self->acquire, Py_False);
    if (taken == NULL)
        return -1;
    Py_DECREF(taken);
    return taken == Py_True;
}

static int
let_go(const Repeats *self)
{
    PyObject *released = PyObject_CallNoArgs(self->release);
    Py_XDECREF(released);
    return released == NULL ? -1 : 0;
}

/* No started call is under way in this process, and the communicator is whole. */
static int
is_idle(const Repeats *self)
{
    return *number(self, NEXT) == *number(self, AGREED) && !*number(self, PAUSED)
           && !*(const int64_t *)self->pending.buf
           && load_word(self->words) == 0;
}

/* Agreement */

static char *
slot_of(const Repeats *self, int64_t half, int64_t member)
{
    return self->slots + (half * self->members + member) * self->slot_bytes;
}

/* Says what this rank calls; returns the half of the slots that is used. */
static int64_t
arrive(Repeats *self, const Known *known, int64_t sequence, const char *payload)
{
    int64_t half = (*number(self, ARRIVALS))++ % 2;
    char *slot = slot_of(self, half, self->me);
    memcpy(slot, &sequence, sizeof sequence);
    memcpy(slot + sizeof sequence, known->fingerprint + sizeof sequence,
           FINGERPRINT_BYTES - sizeof sequence);
    if (known->payload > 0)
        memcpy(slot + self->head_bytes, payload, (size_t)known->payload);
    store_word(self->arrived + self->me * self->stride, ARRIVALS_PER_CALL * (uint64_t)sequence + 1);
    return half;
}

/* Whether all have arrived; keeps the core for as long as waits do, then gives it away at every turn. */
static int
wait_for_all(const Repeats *self, int64_t sequence)
{
    uint64_t wanted = ARRIVALS_PER_CALL * (uint64_t)sequence + 1;
    ptrdiff_t at = first_word_below(self->arrived, self->members, self->stride, wanted, 0);
    if (at < 0)
        return 1;
    double now = now_s(), spin_end = now + self->spin_s, deadline = now + self->patience_s;
    while (now < spin_end) {
        for (int turn = 0; turn < TURNS_PER_PROGRESS; ++turn) {
            cpu_pause();
            at = first_word_below(self->arrived, self->members, self->stride, wanted, at);
            if (at < 0)
                return 1;
        }
        now = now_s();
    }
    Py_BEGIN_ALLOW_THREADS
    for (unsigned turn = 1; at >= 0 && now < deadline; ++turn) {
        sched_yield();
        if (turn % TURNS_PER_PROGRESS == 0)
            network_progress(self->network);
        now = now_s();
        at = first_word_below(self->arrived, self->members, self->stride, wanted, at);
    }
    Py_END_ALLOW_THREADS
    return at < 0;
}

static int
all_call_the_same(const Repeats *self, int64_t half)
{
    const char *own = slot_of(self, half, self->me);
    for (int64_t member = 0; member < self->members; ++member)
        if (memcmp(slot_of(self, half, member), own, FINGERPRINT_BYTES) != 0)
            return 0;
    return 1;
}

/* The results of a call whose payload has travelled along.  Its kernel is a loop of C: it cannot fail. */
static void
take_results(const Repeats *self, const Known *known, int64_t half, char *target)
{
    const char *left = NULL;
    PyObject *error = NULL;
    for (int64_t member = known->first; member < known->last; ++member) {
        const char *right = slot_of(self, half, member) + self->head_bytes + known->offset;
        if (known->kernel == NULL)
            memcpy(target + (member - known->first) * known->piece, right, (size_t)known->piece);
        else if (known->last - known->first == 1)
            memcpy(target, right, (size_t)known->piece);
        else if (left != NULL)
            kernel_combine(known->kernel, left, right, target, known->piece / known->itemsize, &error);
        left = left == NULL ? right : target;
    }
}

/* A call that is over */

static PyObject *
completed(const Repeats *self, Known *known, PyObject *given)
{
    PyObject *finished = Py_None;
    known->calls += 1, known->use += 1;
    if (self->record != NULL)
        record_end(self->record);
    if (known->finish != NULL) {
        finished = PyObject_CallOneArg(known->finish, PyTuple_GET_ITEM(given, known->writes));
        Py_XDECREF(finished);
    }
    return finished == NULL || let_go(self) < 0 ? NULL : Py_NewRef(Py_True);
}

/* The program of a call, for a while: True, or the execution that is to be gone on with. */
static PyObject *
execute(Repeats *self, Known *known, PyObject *given, int64_t sequence)
{
    State *state = PyType_GetModuleState(Py_TYPE(self));
    PyObject *memory[MEMORIES] = {
        known->reads < 0 ? self->nothing : PyTuple_GET_ITEM(given, known->reads),
        known->writes < 0 ? self->nothing : PyTuple_GET_ITEM(given, known->writes),
        self->nothing,
        self->nothing,
    };
    int channel = self->channel + (int)(sequence % self->calls_in_flight) * self->channels;
    Execution *execution = new_execution(state->execution, known->program, memory, known->itemsize,
                                         self->network, self->group, known->kernel, channel,
                                         self->channels, NO_WIRE);
    if (execution == NULL)
        return NULL;
    /* Messages are MPI's, which nobody calls with the GIL (see Execution_advance). */
    int is_short = !known->program->messages && known->nbytes[0] + known->nbytes[1] <= SHORT_BYTES;
    double end = is_short ? now_s() + self->spin_s : 0.0;
    while (is_short && !execution_is_over(execution) && now_s() < end)
        for (int turn = 0; turn < TURNS_PER_PROGRESS && !execution_is_over(execution); ++turn) {
            if (!execution_pass(execution))
                cpu_pause();
        }
    if (!execution_is_over(execution)) {
        Patience patience = {self->spin_s, YIELD_S};
        if (engine_run(&execution, 1, self->patience_s, &patience, NULL) == RAISED) {
            Py_DECREF(execution);
            return NULL;
        }
    }
    if (!execution_is_complete(execution))
        return (PyObject *)execution;
    Py_DECREF(execution);
    return completed(self, known, given);
}

/* The record of the call that comes next. */
static int
begin_record(Repeats *self, const Known *known)
{
    if (self->ring == NULL)
        return 1;
    self->record = ring_enter(self->ring, known->fingerprint, *number(self, NEXT));
    if (self->record == NULL)
        return 0;
    self->record->plan = known->plan;
    return 1;
}

static PyObject *
Repeats_again(Repeats *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_Format(PyExc_TypeError, "again() takes 2 arguments (%zd given)", nargs);
        return NULL;
    }
    Sight sights[ARGUMENTS];
    Known *known = find(self, args[0], args[1], sights);
    int held = known == NULL ? 0 : hold(self);
    if (held <= 0)
        return held < 0 ? NULL : Py_NewRef(Py_False);
    if (!is_idle(self))
        return let_go(self) < 0 ? NULL : Py_NewRef(Py_False);
    if (!begin_record(self, known))
        return NULL;
    int64_t sequence = (*number(self, NEXT))++, half = 0;
    if (known->agrees) {
        half = arrive(self, known, sequence, known->reads < 0 ? NULL : sights[known->reads].data);
        if (!wait_for_all(self, sequence) || !all_call_the_same(self, half))
            Py_RETURN_NONE;
    }
    *number(self, AGREED) = sequence + 1;
    if (known->program != NULL) {
        if (self->record != NULL)
            self->record->agreed_ns = now_ns(), self->record->state = MOVING;
        return execute(self, known, args[1], sequence);
    }
    if (known->writes >= 0)
        take_results(self, known, half, sights[known->writes].data);
    return completed(self, known, args[1]);
}

/* Keeping a call */

/* Adds the calls of one that is dropped to those of its label. */
static int
count_past(Repeats *self, const Known *known)
{
    PyObject *before = PyDict_GetItemWithError(self->past, known->label);
    if (before == NULL && PyErr_Occurred())
        return -1;
    PyObject *total = PyLong_FromLongLong(known->calls + (before == NULL ? 0 : PyLong_AsLongLong(before)));
    int failed = total == NULL || PyDict_SetItem(self->past, known->label, total) < 0;
    Py_XDECREF(total);
    return failed ? -1 : 0;
}

static void
drop(Known *known)
{
    Known old = *known;
    *known = (Known){0};
    Py_XDECREF(old.key.collective);
    Py_XDECREF(old.key.operator);
    for (int i = 0; i < ARGUMENTS; ++i)
        Py_XDECREF(old.key.dtypes[i]);
    Py_XDECREF(old.label);
    Py_XDECREF(old.kernel);
    Py_XDECREF(old.finish);
    Py_XDECREF(old.program);
}

/* How many bytes an array has; 0 where it does not give them away. */
static int
has_bytes(PyObject *array, int64_t *nbytes)
{
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return 0;
    }
    *nbytes = view.len;
    PyBuffer_Release(&view);
    return 1;
}

static int
check_known(const Repeats *self, const Known *known, const Sight *sights)
{
    for (int i = 0; i < 2; ++i) {
        int which = i == 0 ? known->reads : known->writes;
        if (which < -1 || which >= ARGUMENTS || (which >= 0 && sights[which].data == NULL))
            return refused("an argument that is read or written is no array");
    }
    if (known->itemsize < 1 || (known->kernel != NULL && known->kernel->itemsize != known->itemsize))
        return refused("itemsize must be at least 1, and that of the kernel");
    if (known->kernel != NULL && known->kernel->loop == NULL)
        return refused("the kernel must be a loop of C");
    if (known->finish != NULL && known->writes < 0)
        return refused("there is nothing to finish");
    if (known->program != NULL)
        return 0; /* its execution checks it */
    if (known->payload < 0 || known->payload > self->slot_bytes - self->head_bytes
        || (known->payload > 0 && (known->reads < 0 || known->payload > known->nbytes[known->reads])))
        return refused("the payload does not fit");
    if (known->writes >= 0
        && (known->first < 0 || known->last <= known->first || known->last > self->members
            || known->piece < 0 || known->offset < 0
            || known->piece > self->slot_bytes - self->head_bytes - known->offset
            || (known->kernel == NULL ? known->last - known->first : 1) * known->piece > known->nbytes[known->writes]))
        return refused("the results do not fit");
    return 0;
}

/* Where a call is kept: where it is already, or nothing is, or what was made least often since others were kept. */
static Known *
place_for(Repeats *self, const Key *key)
{
    Known *first = places_of(self, key), *best = first;
    for (Known *known = first; known < first + WAYS; ++known)
        if (known->label != NULL && same_key(&known->key, key))
            return known;
    for (Known *known = first; known < first + WAYS; ++known) {
        if (known->label == NULL)
            return known;
        if (known->use < best->use)
            best = known;
    }
    for (Known *known = first; known < first + WAYS; ++known)
        known->use /= 2;
    return best;
}

static PyObject *
Repeats_keep(Repeats *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"collective", "given",   "label",  "fingerprint", "agrees",  "reads",
                            "writes",     "itemsize", "kernel", "finish",     "payload", "piece",
                            "offset",     "first",   "last",   "program",     "plan",    NULL};
    PyObject *collective, *given, *label, *kernel, *finish, *program;
    Py_buffer fingerprint;
    long long itemsize, payload, piece, offset, first, last;
    Known known = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOy*piiLOOLLLLLO|I:keep", names, &collective, &given,
                                     &label, &fingerprint, &known.agrees, &known.reads, &known.writes,
                                     &itemsize, &kernel, &finish, &payload, &piece,
                                     &offset, &first, &last, &program, &known.plan))
        return NULL;
    State *state = PyType_GetModuleState(Py_TYPE(self));
    int failed = fingerprint.len != FINGERPRINT_BYTES ? refused("a fingerprint has 48 bytes") : 0;
    if (!failed)
        memcpy(known.fingerprint, fingerprint.buf, FINGERPRINT_BYTES);
    PyBuffer_Release(&fingerprint);
    if (failed || !is_of_type(kernel, state->kernel, 1, "kernel")
        || !is_of_type(program, state->program, 1, "program"))
        return NULL;
    Sight sights[ARGUMENTS];
    if (!key_of(self, collective, given, &known.key, sights))
        Py_RETURN_FALSE;
    known.kernel = kernel == Py_None ? NULL : (Kernel *)kernel;
    known.finish = finish == Py_None ? NULL : finish;
    known.program = program == Py_None ? NULL : (Program *)program;
    known.itemsize = itemsize, known.payload = payload, known.piece = piece, known.offset = offset;
    known.first = first, known.last = last;
    for (int i = 0; i < ARGUMENTS; ++i)
        if (sights[i].data != NULL && !has_bytes(PyTuple_GET_ITEM(given, i), known.nbytes + i))
            Py_RETURN_FALSE;
    if (check_known(self, &known, sights) < 0)
        return NULL;
    Known *place = place_for(self, &known.key);
    if (!is_right(&known, sights))
        Py_RETURN_FALSE;
    if (place->label != NULL && count_past(self, place) < 0)
        return NULL;
    known.label = label;
    Py_INCREF(known.key.collective);
    Py_INCREF(known.key.operator);
    for (int i = 0; i < ARGUMENTS; ++i)
        Py_XINCREF(known.key.dtypes[i]);
    Py_INCREF(known.label);
    Py_XINCREF(known.kernel);
    Py_XINCREF(known.finish);
    Py_XINCREF(known.program);
    drop(place);
    *place = known;
    Py_RETURN_TRUE;
}

static PyObject *
Repeats_use_group(Repeats *self, PyObject *group)
{
    State *state = PyType_GetModuleState(Py_TYPE(self));
    if (!is_of_type(group, state->group, 0, "group"))
        return NULL;
    Py_XSETREF(self->group, (Group *)Py_NewRef(group));
    Py_RETURN_NONE;
}

static int
forget_all(Repeats *self)
{
    for (int i = 0; i < KNOWN; ++i) {
        if (self->known[i].label != NULL && count_past(self, self->known + i) < 0)
            return -1;
        drop(self->known + i);
    }
    return 0;
}

static PyObject *
Repeats_forget(Repeats *self, PyObject *unused)
{
    (void)unused;
    return forget_all(self) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
Repeats_calls(Repeats *self, PyObject *unused)
{
    (void)unused;
    PyObject *found = PyDict_Items(self->past);
    for (int i = 0; i < KNOWN && found != NULL; ++i) {
        const Known *known = self->known + i;
        if (known->label == NULL)
            continue;
        PyObject *pair = Py_BuildValue("OL", known->label, (long long)known->calls);
        if (pair == NULL || PyList_Append(found, pair) < 0)
            Py_CLEAR(found);
        Py_XDECREF(pair);
    }
    return found;
}

/* The object's life */

/* Whether NumPy's arrays are what is written above: `sample` has the shape (2, 3). */
static int
check_sample(PyObject *sample)
{
    const Array *array = (const Array *)sample;
    PyObject *dtype = PyObject_GetAttrString(sample, "dtype");
    Py_buffer view;
    if (dtype == NULL || PyObject_GetBuffer(sample, &view, PyBUF_SIMPLE) < 0) {
        Py_XDECREF(dtype);
        return -1;
    }
    int same = array->dtype == dtype && array->data == view.buf && array->nd == 2
               && array->dimensions[0] == 2 && array->dimensions[1] == 3
               && (array->flags & (C_CONTIGUOUS | ALIGNED | WRITEABLE))
                      == (C_CONTIGUOUS | ALIGNED | WRITEABLE);
    Py_DECREF(dtype);
    PyBuffer_Release(&view);
    return same ? 0 : refused("the arrays of this NumPy are made otherwise than those known here");
}

static int
check_control(const Repeats *self, long long arrived, long long slots)
{
    if (self->members < 1 || self->me < 0 || self->me >= self->members)
        return refused("me is no member");
    if (self->head_bytes < FINGERPRINT_BYTES || self->slot_bytes < self->head_bytes || slots < 0
        || self->slot_bytes > INT64_MAX / 2 / self->members
        || slots > self->control.len - 2 * self->members * self->slot_bytes)
        return refused("the control segment has not two slots for each member");
    if (arrived < 0 || self->stride < 1 || (uintptr_t)self->control.buf % sizeof(word_t) != 0
        || arrived >= slots / (long long)sizeof(word_t)
        || self->members - 1 > (slots / (long long)sizeof(word_t) - 1 - arrived) / self->stride)
        return refused("the control segment has not a word for each member");
    if (self->numbers.len < NUMBERS * (Py_ssize_t)sizeof(int64_t)
        || self->pending.len < (Py_ssize_t)sizeof(int64_t))
        return refused("there are too few numbers");
    if (self->channel < 0 || self->channels < 1 || self->calls_in_flight < 1
        || self->calls_in_flight > (INT_MAX - self->channel) / self->channels - 1)
        return refused("channels and calls_in_flight must be at least 1");
    return 0;
}

static PyObject *
Repeats_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"control", "me",      "members", "arrived", "stride",   "slots",   "slot_bytes",
                            "head_bytes", "numbers", "pending", "lock",  "spin_s", "patience_s",
                            "network",  "channel", "channels", "calls_in_flight", "in_place", "sample", "ring", NULL};
    PyObject *control, *numbers, *pending, *lock, *network, *in_place, *sample, *ring = Py_None;
    long long me, members, arrived, stride, slots, slot_bytes, head_bytes;
    double spin_s, patience_s;
    int channel, channels, calls_in_flight;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLLLLLLLOOOddOiiiOO|O:Repeats", names, &control, &me,
                                     &members, &arrived, &stride, &slots, &slot_bytes, &head_bytes,
                                     &numbers, &pending, &lock, &spin_s, &patience_s, &network, &channel,
                                     &channels, &calls_in_flight, &in_place, &sample, &ring))
        return NULL;
    State *state = PyType_GetModuleState(type);
    if (!is_of_type(network, state->network, 0, "network") || check_sample(sample) < 0
        || !is_of_type(ring, state->ring, 1, "ring"))
        return NULL;
    Repeats *self = (Repeats *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->me = me, self->members = members, self->stride = stride;
    self->slot_bytes = slot_bytes, self->head_bytes = head_bytes;
    self->spin_s = spin_s, self->patience_s = patience_s;
    self->channel = channel, self->channels = channels, self->calls_in_flight = calls_in_flight;
    self->network = (Network *)Py_NewRef(network);
    self->in_place = Py_NewRef(in_place);
    self->ring = ring == Py_None ? NULL : (Ring *)Py_NewRef(ring);
    self->array_type = Py_NewRef((PyObject *)Py_TYPE(sample));
    self->nothing = PyBytes_FromStringAndSize("", 0);
    self->past = PyDict_New();
    self->acquire = PyObject_GetAttrString(lock, "acquire");
    self->release = PyObject_GetAttrString(lock, "release");
    if (self->nothing == NULL || self->past == NULL || self->acquire == NULL || self->release == NULL
        || PyObject_GetBuffer(control, &self->control, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(numbers, &self->numbers, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(pending, &self->pending, PyBUF_SIMPLE) < 0
        || check_control(self, arrived, slots) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->words = self->control.buf;
    self->arrived = self->words + arrived;
    self->slots = (char *)self->control.buf + slots;
    return (PyObject *)self;
}

/* Not for the garbage collector, for the reason given at Flags_dealloc. */
static void
Repeats_dealloc(Repeats *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < KNOWN; ++i)
        drop(self->known + i);
    PyBuffer_Release(&self->control);
    PyBuffer_Release(&self->numbers);
    PyBuffer_Release(&self->pending);
    Py_XDECREF(self->array_type);
    Py_XDECREF(self->in_place);
    Py_XDECREF(self->nothing);
    Py_XDECREF(self->past);
    Py_XDECREF(self->acquire);
    Py_XDECREF(self->release);
    Py_XDECREF(self->network);
    Py_XDECREF(self->group);
    Py_XDECREF(self->ring);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef repeats_methods[] = {
    {"again", (PyCFunction)(void (*)(void))Repeats_again, METH_FASTCALL, NULL},
    {"keep", (PyCFunction)(void (*)(void))Repeats_keep, METH_VARARGS | METH_KEYWORDS, NULL},
    {"use_group", (PyCFunction)Repeats_use_group, METH_O, NULL},
    {"forget", (PyCFunction)Repeats_forget, METH_NOARGS, NULL},
    {"calls", (PyCFunction)Repeats_calls, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot repeats_slots[] = {
    {Py_tp_doc, "Calls on host arrays that are made again; hpccoll.runtime.repeats says what each method does."},
    {Py_tp_new, Repeats_new},
    {Py_tp_dealloc, Repeats_dealloc},
    {Py_tp_methods, repeats_methods},
    {0, NULL},
};

static PyType_Spec repeats_spec = {
    .name = "hpccoll._native._core.Repeats",
    .basicsize = sizeof(Repeats),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = repeats_slots,
};

int
add_repeats(PyObject *module)
{
    PyTypeObject *type;
    if (add_type(module, &repeats_spec, &type) < 0)
        return -1;
    Py_DECREF(type);
    return 0;
}
