/* How a known call is made again; see repeats.h.
 *
 * What it does is what runtime/context.py would do, to the last bit and in the same words of the control segment
 * (runtime/control.py), so that ranks that come this way work together with ranks that come the other:
 *
 *     arrive: fingerprint and payload into the own slot, ARRIVED -> wait for all -> compare
 *                                                (of several nodes the leaders: nodes.c)
 *         payload travelled along: combine the slots, or what the leader has, into the caller's array
 *         else:                    an execution of the program (execution.c)
 *
 * Whatever takes longer than a moment is left to Python in the middle, which has the deadlines and the words
 * for errors: `again` then returns where it is. */

#include "repeats.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

/* Longer messages are not moved while the GIL is held. */
#define SHORT_BYTES 65536

/* The state of the communicator */

int
hold(const Repeats *self)
{
    PyObject *taken = PyObject_CallOneArg(self->acquire, Py_False);
    if (taken == NULL)
        return -1;
    Py_DECREF(taken);
    return taken == Py_True;
}

int
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
    return queued(self) == 0 && *repeats_number(self, NEXT) == *repeats_number(self, AGREED)
           && !*(const int64_t *)self->pending.buf && load_word(self->words) == 0;
}

/* Agreement */

int64_t
arrive(Repeats *self, const Known *known, int64_t sequence, const char *payload)
{
    int64_t half = (*repeats_number(self, ARRIVALS))++ % 2;
    char *slot = slot_of(self, half, self->me);
    memcpy(slot, &sequence, sizeof sequence);
    memcpy(slot + sizeof sequence, known->fingerprint + sizeof sequence,
           FINGERPRINT_BYTES - sizeof sequence);
    if (known->payload > 0)
        memcpy(slot + self->head_bytes, payload, (size_t)known->payload);
    store_word(self->arrived + self->me * self->stride, ARRIVALS_PER_CALL * (uint64_t)sequence + 1);
    return half;
}

int
wait_for_words(const Repeats *self, word_t *words, int64_t count, int64_t stride, uint64_t wanted)
{
    ptrdiff_t at = first_word_below(words, count, stride, wanted, 0);
    if (at < 0)
        return 1;
    double now = now_s(), spin_end = now + self->spin_s, deadline = now + self->patience_s;
    while (now < spin_end) {
        for (int turn = 0; turn < TURNS_PER_PROGRESS; ++turn) {
            cpu_pause();
            at = first_word_below(words, count, stride, wanted, at);
            if (at < 0)
                return 1;
        }
        now = now_s();
    }
    Py_BEGIN_ALLOW_THREADS
    for (unsigned turn = 1; at >= 0 && now < deadline; ++turn) {
        double before = now;
        now = give_core(now);
        if (turn % TURNS_PER_PROGRESS == 0 || now - before > IDLE_S)
            network_progress(self->network);
        at = first_word_below(words, count, stride, wanted, at);
    }
    Py_END_ALLOW_THREADS
    return at < 0;
}

int
all_call_the_same(const Repeats *self, int64_t half)
{
    const char *own = slot_of(self, half, self->me);
    for (int64_t member = 0; member < self->members; ++member)
        if (memcmp(slot_of(self, half, member), own, FINGERPRINT_BYTES) != 0)
            return 0;
    return 1;
}

void
take_results(const Repeats *self, const Known *known, int64_t half, char *target)
{
    int together = self->nodes > 1; /* the leader has put together what came from all nodes */
    const char *from = (together ? result_of(self, half) : slot_of(self, half, 0)) + self->head_bytes + known->offset;
    int64_t stride = together ? known->each : self->slot_bytes;
    const char *left = NULL;
    PyObject *error = NULL;
    if (together && known->travel != GATHERED) {
        memcpy(target, from, (size_t)known->piece);
        return;
    }
    for (int64_t rank = known->first; rank < known->last; ++rank) {
        const char *right = from + rank * stride;
        if (known->kernel == NULL)
            memcpy(target + (rank - known->first) * known->piece, right, (size_t)known->piece);
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
    end_call(self->record, known, BLOCKING, self->entered_ns, self->agreed_ns);
    if (known->finish != NULL) {
        finished = PyObject_CallOneArg(known->finish, PyTuple_GET_ITEM(given, known->writes));
        Py_XDECREF(finished);
    }
    return finished == NULL || let_go(self) < 0 ? NULL : Py_NewRef(Py_True);
}

/* Memory of at least so many bytes, the same as before where nobody uses it any more. */
static PyObject *
scratch_of(Repeats *self, int which, int64_t nbytes)
{
    if (nbytes == 0)
        return Py_NewRef(self->nothing);
    PyObject *kept = self->scratch[which];
    self->scratch[which] = NULL;
    if (kept != NULL && PyByteArray_GET_SIZE(kept) >= nbytes)
        return kept;
    Py_XDECREF(kept);
    return PyByteArray_FromStringAndSize(NULL, nbytes);
}

void
keep_scratch(Repeats *self, PyObject **scratch)
{
    for (int which = 0; which < 2; ++which)
        if (scratch[which] != self->nothing)
            Py_XSETREF(self->scratch[which], Py_NewRef(scratch[which]));
}

Execution *
begin_program(Repeats *self, const Known *known, PyObject *given, int64_t sequence, PyObject **scratch)
{
    scratch[0] = scratch_of(self, 0, known->program->needed[SCRATCH] * known->itemsize);
    scratch[1] = scratch_of(self, 1, known->program->needed[WIRE] * WIRE_BYTES);
    if (scratch[0] == NULL || scratch[1] == NULL)
        return NULL;
    State *state = PyType_GetModuleState(Py_TYPE(self));
    PyObject *memory[MEMORIES] = {
        [INPUT] = known->reads < 0 ? self->nothing : PyTuple_GET_ITEM(given, known->reads),
        [OUTPUT] = known->writes < 0 ? self->nothing : PyTuple_GET_ITEM(given, known->writes),
        [SCRATCH] = scratch[0],
        [WIRE] = scratch[1],
    };
    int channel = self->channel + (int)(sequence % self->calls_in_flight) * self->channels;
    Execution *execution = new_execution(state->execution, known->program, memory, known->itemsize, self->network,
                                         self->group, known->kernel, channel, self->channels, known->wire);
    if (execution != NULL && self->ring != NULL && self->ring->events != NULL
        && execution_observe(execution, self->ring, sequence) < 0)
        Py_CLEAR(execution);
    return execution;
}

int
run_program(const Repeats *self, const Known *known, Execution *execution)
{
    /* Messages are MPI's, which nobody calls with the GIL (see Execution_advance). */
    int is_short = !known->program->messages && known->nbytes[0] + known->nbytes[1] <= SHORT_BYTES;
    double end = is_short ? now_s() + self->spin_s : 0.0;
    while (is_short && !execution_is_over(execution) && now_s() < end)
        for (int turn = 0; turn < TURNS_PER_PROGRESS && !execution_is_over(execution); ++turn) {
            if (!execution_pass(execution))
                cpu_pause();
        }
    Patience patience = {self->spin_s, YIELD_S};
    return execution_is_over(execution)
           || engine_run(&execution, 1, self->patience_s, &patience, NULL) != RAISED;
}

/* The program of a call, for a while: True, or the execution that is to be gone on with. */
static PyObject *
execute(Repeats *self, Known *known, PyObject *given, int64_t sequence)
{
    PyObject *scratch[2], *outcome = NULL;
    Execution *execution = begin_program(self, known, given, sequence, scratch);
    if (execution != NULL && run_program(self, known, execution)) {
        if (execution_is_complete(execution)) {
            Py_CLEAR(execution);
            keep_scratch(self, scratch);
            outcome = completed(self, known, given);
        }
        else
            outcome = Py_NewRef((PyObject *)execution);
    }
    Py_XDECREF(execution);
    Py_XDECREF(scratch[0]);
    Py_XDECREF(scratch[1]);
    return outcome;
}

int
begin_record(Repeats *self, const Known *known)
{
    self->agreed_ns = 0;
    if (self->ring == NULL) {
        self->entered_ns = known->meters[BLOCKING] == NULL ? 0 : now_ns();
        return 1;
    }
    self->record = ring_enter(self->ring, known->fingerprint, *repeats_number(self, NEXT));
    if (self->record == NULL)
        return 0;
    self->record->plan = known->plan;
    self->entered_ns = self->record->entered_ns;
    return 1;
}

int64_t
note_agreed(Record *record, const Meter *meter)
{
    if (record == NULL && meter == NULL)
        return 0;
    int64_t agreed_ns = now_ns();
    if (record != NULL)
        record->agreed_ns = agreed_ns, record->state = MOVING;
    return agreed_ns;
}

void
end_call(Record *record, Known *known, int form, int64_t entered_ns, int64_t agreed_ns)
{
    Meter *meter = known->meters[form];
    known->calls += 1, known->use += 1;
    if (record == NULL && meter == NULL)
        return;
    int64_t ended_ns = record != NULL ? record_end(record) : now_ns();
    if (meter == NULL)
        return;
    Counted call = known->counted;
    call.ns = ended_ns - entered_ns;
    call.agreeing_ns = agreed_ns == 0 ? 0 : agreed_ns - entered_ns;
    meter_count(meter, &call);
}

/* As agree_between_nodes, on one node. */
static PyObject *
agree_in_node(const Repeats *self, int64_t sequence, int64_t half)
{
    uint64_t wanted = ARRIVALS_PER_CALL * (uint64_t)sequence + 1;
    int agreed = wait_for_words(self, self->arrived, self->members, self->stride, wanted)
                 && all_call_the_same(self, half);
    return Py_NewRef(agreed ? Py_True : Py_None);
}

static PyObject *
Repeats_again(Repeats *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_Format(PyExc_TypeError, "again() takes 2 arguments (%zd given)", nargs);
        return NULL;
    }
    Sight sights[ARGUMENTS];
    Known *known = find_known(self, args[0], args[1], sights);
    int held = known == NULL ? 0 : hold(self);
    if (held <= 0)
        return held < 0 ? NULL : Py_NewRef(Py_False);
    if (move_started(self) < 0)
        return NULL;
    if (!is_idle(self))
        return let_go(self) < 0 ? NULL : Py_NewRef(Py_False);
    if (!begin_record(self, known))
        return NULL;
    int64_t sequence = (*repeats_number(self, NEXT))++, half = 0;
    if (known->agrees) {
        half = arrive(self, known, sequence, known->reads < 0 ? NULL : sights[known->reads].data);
        PyObject *agreed = self->nodes > 1 ? agree_between_nodes(self, known, sequence, half)
                                           : agree_in_node(self, sequence, half);
        if (agreed != Py_True)
            return agreed;
        Py_DECREF(agreed);
    }
    *repeats_number(self, AGREED) = sequence + 1;
    if (known->program != NULL) {
        self->agreed_ns = note_agreed(self->record, known->meters[BLOCKING]);
        return execute(self, known, args[1], sequence);
    }
    if (known->writes >= 0)
        take_results(self, known, half, sights[known->writes].data);
    return completed(self, known, args[1]);
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
                            "network",  "channel", "channels", "calls_in_flight", "in_place", "sample",
                            "nodes",   "node",    "verdict", "results", "result_bytes", "agreement_channel",
                            "ring",    NULL};
    PyObject *control, *numbers, *pending, *lock, *network, *in_place, *sample, *nodes, *ring = Py_None;
    long long me, members, arrived, stride, slots, slot_bytes, head_bytes, node, verdict, results, result_bytes;
    double spin_s, patience_s;
    int channel, channels, calls_in_flight, agreement_channel;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLLLLLLLOOOddOiiiOOOLLLLi|O:Repeats", names, &control, &me,
                                     &members, &arrived, &stride, &slots, &slot_bytes, &head_bytes,
                                     &numbers, &pending, &lock, &spin_s, &patience_s, &network, &channel,
                                     &channels, &calls_in_flight, &in_place, &sample, &nodes, &node, &verdict,
                                     &results, &result_bytes, &agreement_channel, &ring))
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
    self->agreement_channel = agreement_channel;
    if (take_nodes(self, nodes, node, verdict, results, result_bytes) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Not for the garbage collector, for the reason given at Flags_dealloc. */
static void
Repeats_dealloc(Repeats *self)
{
    PyTypeObject *type = Py_TYPE(self);
    drop_started(self);
    for (int i = 0; i < KNOWN; ++i)
        drop_known(self->known + i);
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
    Py_XDECREF(self->leaders);
    Py_XDECREF(self->spread);
    for (int which = 0; which < 2; ++which)
        Py_XDECREF(self->scratch[which]);
    PyMem_Free(self->starts);
    PyMem_Free(self->ranks);
    PyMem_Free(self->parts);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef repeats_methods[] = {
    {"again", (PyCFunction)(void (*)(void))Repeats_again, METH_FASTCALL, NULL},
    {"start", (PyCFunction)(void (*)(void))Repeats_start, METH_FASTCALL, NULL},
    {"move", (PyCFunction)Repeats_move, METH_NOARGS, NULL},
    {"take_over", (PyCFunction)Repeats_take_over, METH_NOARGS, NULL},
    {"await_started", (PyCFunction)Repeats_await_started, METH_O, NULL},
    {"keep", (PyCFunction)(void (*)(void))Repeats_keep, METH_VARARGS | METH_KEYWORDS, NULL},
    {"use_group", (PyCFunction)Repeats_use_group, METH_O, NULL},
    {"forget", (PyCFunction)Repeats_forget, METH_NOARGS, NULL},
    {"calls", (PyCFunction)Repeats_calls, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef repeats_members[] = {
    {"entered_ns", T_LONGLONG, offsetof(Repeats, entered_ns), READONLY, NULL},
    {"agreed_ns", T_LONGLONG, offsetof(Repeats, agreed_ns), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot repeats_slots[] = {
    {Py_tp_doc, "Calls on host arrays that are made again; hpccoll.runtime.repeats says what each method does."},
    {Py_tp_new, Repeats_new},
    {Py_tp_dealloc, Repeats_dealloc},
    {Py_tp_methods, repeats_methods},
    {Py_tp_members, repeats_members},
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
