/* Execution: one run of a program on this rank's memory; runtime/executor.py in C.
 *
 * A pass tests what is under way and starts what has become ready; it never waits.  A pass holds the
 * execution's lock, which nobody waits for: a thread that finds it taken has nothing to do there. */

#include "copy.h"
#include "engine.h"

#include <limits.h>

/* One pass.  Only who holds the lock changes the counts, and reads there what the one before has written. */

static int32_t
held(const _Atomic int32_t *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

static void
set_held(_Atomic int32_t *count, int32_t value)
{
    atomic_store_explicit(count, value, memory_order_relaxed);
}

static void
release(Execution *self, int64_t index)
{
    if (--self->waits[index] == 0)
        self->ready[self->ready_tail++] = (int32_t)index;
}

static int64_t bytes_of(const Execution *self, const Place *place);

/* An observed operation is over. */
static void
tell_times(const Execution *self, int32_t index)
{
    const Operation *one = self->program->operations + index;
    const Place *places = self->program->places + one->place;
    int64_t given = 0, taken = 0;
    for (int64_t i = 0; i < one->sources; ++i)
        given += bytes_of(self, places + i);
    for (int64_t i = one->sources; i < one->sources + one->targets; ++i)
        taken += bytes_of(self, places + i);
    Event event = {
        .begin_ns = self->begun_ns[index], .end_ns = now_ns(), .sequence = self->sequence,
        .nbytes = given > taken && one->code != COMBINE ? given : taken, .text = self->program->steps,
        .kind = (int32_t)one->code, .step = (int32_t)one->step, .peer = (int32_t)one->peer,
    };
    ring_put(self->ring, &event);
}

static void
end(Execution *self, int32_t index)
{
    const Program *program = self->program;
    if (self->ring != NULL)
        tell_times(self, index);
    for (int64_t i = program->following_starts[index]; i < program->following_starts[index + 1]; ++i)
        release(self, program->following[i]);
    atomic_store_explicit(&self->left, held(&self->left) - 1, memory_order_release);
}

static int64_t
itemsize_at(const Execution *self, const Place *place)
{
    return place->memory == WIRE ? WIRE_BYTES : self->itemsize;
}

static char *
at(const Execution *self, const Place *place)
{
    return self->buffers[place->memory] + place->start * itemsize_at(self, place);
}

static int64_t
bytes_of(const Execution *self, const Place *place)
{
    return (place->stop - place->start) * itemsize_at(self, place);
}

#define WIDENED 1024 /* elements at once, so that they stay in the first cache */

/* Elements of a place from `begin` on as they are combined; `room` holds those that have to be widened. */
static const char *
wide(const Execution *self, const Place *place, int64_t begin, int64_t count, char *room)
{
    const char *from = at(self, place) + begin * itemsize_at(self, place);
    if (place->memory != WIRE)
        return from;
    wire_widen(self->wire, from, room, count);
    return room;
}

static int
combine(Execution *self, const Place *left, const Place *right, const Place *target)
{
    int64_t count = target->stop - target->start;
    char *to = at(self, target);
    float rooms[2][WIDENED];
    if (left->memory != WIRE && right->memory != WIRE)
        return kernel_combine(self->kernel, at(self, left), at(self, right), to, count, &self->error);
    for (int64_t begin = 0; begin < count; begin += WIDENED) {
        int64_t some = count - begin < WIDENED ? count - begin : WIDENED;
        const char *one = wide(self, left, begin, some, (char *)rooms[0]);
        const char *other = wide(self, right, begin, some, (char *)rooms[1]);
        if (kernel_combine(self->kernel, one, other, to + begin * self->itemsize, some, &self->error) < 0)
            return -1;
    }
    return 0;
}

static void
copy(const Execution *self, const Place *source, const Place *target)
{
    const char *from = at(self, source);
    char *to = at(self, target);
    if (target->memory == WIRE)
        wire_round(self->wire, from, to, target->stop - target->start);
    else if (source->memory == WIRE)
        wire_widen(self->wire, from, to, target->stop - target->start);
    else if (from != to) /* in place it is there already */
        copy_bytes(to, from, (size_t)bytes_of(self, source));
}

static int
post(Execution *self, int32_t index)
{
    const Operation *one = self->program->operations + index;
    const Place *place = self->program->places + one->place;
    int nbytes = (int)bytes_of(self, place);
    int channel = self->channel_base + (int)(one->step % self->channels);
    Request *request = self->requests + index;
    int code = one->code == SEND
                   ? network_send(self->network, (int)one->peer, at(self, place), nbytes, channel, request)
                   : network_receive(self->network, (int)one->peer, at(self, place), nbytes, channel,
                                     request);
    self->mpi_error = code;
    if (code != 0)
        return -1;
    set_held(&self->posted, held(&self->posted) + 1);
    return 0;
}

/* Whether an operation that was started is complete: 1, 0, or -1 when it failed. */
static int
test(Execution *self, int32_t index, int *moved)
{
    if (is_group_call(self->program->operations + index))
        return group_call_test(self->calls + self->call_of[index], moved, &self->error);
    int done = 0;
    self->mpi_error = network_test(self->network, self->requests + index, &done);
    if (self->mpi_error != 0)
        return -1;
    if (done)
        set_held(&self->posted, held(&self->posted) - 1);
    return done != 0;
}

/* Starts an operation: 1 when it is complete already, 0, or -1 when it failed. */
static int
begin(Execution *self, int32_t index, int *moved)
{
    const Operation *one = self->program->operations + index;
    const Place *places = self->program->places + one->place;
    switch (one->code) {
    case SEND:
    case RECEIVE:
        return post(self, index) < 0 ? -1 : test(self, index, moved);
    case COMBINE:
        return combine(self, places, places + 1, places + 2) < 0 ? -1 : 1;
    case COPY:
        copy(self, places, places + 1);
        return 1;
    default:
        return test(self, index, moved);
    }
}

static int
test_active(Execution *self, int *moved)
{
    int32_t count = held(&self->active_count), kept = 0;
    for (int32_t i = 0; i < count; ++i) {
        int32_t index = held(self->active + i);
        int outcome = test(self, index, moved);
        if (outcome < 0)
            return -1;
        if (outcome > 0) {
            end(self, index);
            *moved = 1;
        }
        else
            set_held(self->active + kept++, index);
    }
    set_held(&self->active_count, kept);
    return 0;
}

static int
start_ready(Execution *self, int *moved)
{
    while (self->ready_head < self->ready_tail) {
        int32_t index = self->ready[self->ready_head++];
        int64_t next = self->program->operations[index].next;
        if (self->ring != NULL)
            self->begun_ns[index] = now_ns();
        int outcome = begin(self, index, moved);
        if (outcome < 0)
            return -1;
        *moved = 1;
        if (next >= 0)
            release(self, next);
        if (outcome > 0)
            end(self, index);
        else {
            int32_t count = held(&self->active_count);
            set_held(self->active + count, index);
            set_held(&self->active_count, count + 1);
        }
    }
    return 0;
}

int
execution_is_over(Execution *self)
{
    return atomic_load_explicit(&self->failed, memory_order_acquire)
           || atomic_load_explicit(&self->left, memory_order_acquire) == 0;
}

int
execution_is_complete(Execution *self)
{
    return !atomic_load_explicit(&self->failed, memory_order_acquire)
           && atomic_load_explicit(&self->left, memory_order_acquire) == 0;
}

int
execution_pass(Execution *self)
{
    int moved = 0;
    if (execution_is_over(self) || pthread_mutex_trylock(&self->lock) != 0)
        return 0;
    if (!execution_is_over(self)) {
        if (test_active(self, &moved) < 0 || start_ready(self, &moved) < 0)
            atomic_store_explicit(&self->failed, 1, memory_order_release);
        if (moved)
            self->moved_at = now_s();
    }
    pthread_mutex_unlock(&self->lock);
    return moved;
}

/* What went wrong, raised again for each thread that asks. */
static void
raise_failure(Execution *self)
{
    if (self->error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(self->error), self->error);
        return;
    }
    if (self->mpi_error == 0) {
        PyErr_SetString(PyExc_RuntimeError, "a member of the group offers memory that is not known here");
        return;
    }
    network_raise(self->mpi_error);
}

/* With the GIL, when nothing of the program is under way. */
static void
let_memory_go(Execution *self)
{
    for (int i = 0; i < MEMORIES; ++i)
        PyBuffer_Release(self->memory + i);
}

static PyObject *
outcome(Execution *self)
{
    if (atomic_load_explicit(&self->failed, memory_order_acquire)) {
        raise_failure(self);
        return NULL;
    }
    if (atomic_load_explicit(&self->left, memory_order_acquire) != 0)
        Py_RETURN_FALSE;
    let_memory_go(self);
    Py_RETURN_TRUE;
}

/* Methods */

static PyObject *
Execution_advance(Execution *self, PyObject *args)
{
    int turns = 1;
    if (!PyArg_ParseTuple(args, "|i:advance", &turns))
        return NULL;
    /* Never with the GIL into MPI: another thread may hold MPI's lock and wait for the GIL, in the callbacks
     * of a generalised request. */
    Py_BEGIN_ALLOW_THREADS
    for (int turn = 0; turn < turns && !execution_is_over(self); ++turn)
        execution_pass(self);
    Py_END_ALLOW_THREADS
    return outcome(self);
}

static PyObject *
Execution_run(Execution *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"seconds", "spin_s", "yield_s", NULL};
    double seconds;
    Patience patience = {0.0, YIELD_S};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "d|$dd:run", names, &seconds, &patience.spin_s,
                                     &patience.yield_s)
        || !seconds_are_right(seconds, &patience))
        return NULL;
    return engine_run(&self, 1, seconds, &patience, NULL) == RAISED ? NULL : outcome(self);
}

int
execution_observe(Execution *self, Ring *ring, int64_t sequence)
{
    self->begun_ns = PyMem_Calloc((size_t)self->program->length + 1, sizeof *self->begun_ns);
    if (self->begun_ns == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->sequence = sequence;
    self->ring = (Ring *)Py_NewRef((PyObject *)ring);
    return 0;
}

static PyObject *
Execution_observe(Execution *self, PyObject *args)
{
    PyObject *ring;
    long long sequence;
    if (!PyArg_ParseTuple(args, "OL:observe", &ring, &sequence))
        return NULL;
    State *state = PyType_GetModuleState(Py_TYPE(self));
    if (state == NULL || !is_of_type(ring, state->ring, 0, "ring"))
        return NULL;
    if (((Ring *)ring)->events == NULL || self->ring != NULL) {
        refused("the ring has no room for events, or the execution is observed already");
        return NULL;
    }
    return execution_observe(self, (Ring *)ring, sequence) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
Execution_active(Execution *self, PyObject *unused)
{
    (void)unused;
    int32_t count = atomic_load_explicit(&self->active_count, memory_order_relaxed);
    PyObject *found = PyTuple_New(count);
    for (int32_t i = 0; i < count && found != NULL; ++i) {
        int32_t index = atomic_load_explicit(self->active + i, memory_order_relaxed);
        PyObject *number = PyLong_FromLong(index);
        if (number == NULL)
            Py_CLEAR(found);
        else
            PyTuple_SET_ITEM(found, i, number);
    }
    return found;
}

static PyObject *
Execution_left(Execution *self, void *closure)
{
    (void)closure;
    return PyLong_FromLong(atomic_load_explicit(&self->left, memory_order_acquire));
}

static PyObject *
Execution_over(Execution *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(execution_is_over(self));
}

static PyObject *
Execution_step(Execution *self, void *closure)
{
    (void)closure;
    int64_t step = 0;
    if (atomic_load_explicit(&self->active_count, memory_order_relaxed) > 0)
        step = self->program->operations[atomic_load_explicit(self->active, memory_order_relaxed)].step;
    return PyLong_FromLongLong(step);
}

/* The object's life */

static int
take_memory(Execution *self, PyObject *object, int number)
{
    Py_buffer *view = self->memory + number;
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0)
        return -1;
    if (view->len / (number == WIRE ? WIRE_BYTES : self->itemsize) < self->program->needed[number])
        return refused("a buffer is shorter than the program asks for");
    self->buffers[number] = view->buf;
    return 0;
}

/* A broadcast's root may pass memory that is read-only: what it copies is there already. */
static int
writes_read_only(const Execution *self)
{
    const Program *program = self->program;
    for (Py_ssize_t i = 0; i < program->length; ++i) {
        const Operation *one = program->operations + i;
        const Place *places = sources_of(program, one);
        if (one->code == COPY && at(self, places) == at(self, places + 1))
            continue;
        for (int64_t j = one->sources; j < one->sources + one->targets; ++j)
            if (self->memory[places[j].memory].readonly && places[j].stop > places[j].start)
                return 1;
    }
    return 0;
}

static int
check_parts(const Execution *self)
{
    const Program *program = self->program;
    if (self->itemsize < 1 || self->channels < 1 || self->channel_base < 0
        || self->channel_base > INT_MAX - self->channels)
        return refused("itemsize and channels must be at least 1, channel_base not below 0");
    if (program->messages && self->network == NULL)
        return refused("the program has messages: it needs a network");
    if (program->messages && program->longest_message > INT_MAX / self->itemsize)
        return refused("a message is longer than 2 GiB");
    if (program->group_calls && self->group == NULL)
        return refused("the program has group calls: it needs a group");
    if (program->needed[WIRE] && (self->wire == NO_WIRE || self->itemsize != CARRIED_BYTES))
        return refused("the program has elements that travel otherwise: it needs a wire, and elements of 4 bytes");
    if (program->combines && (self->kernel == NULL || self->kernel->itemsize != self->itemsize))
        return refused("the program combines: it needs a kernel for elements of this size");
    return 0;
}

static int
allocate(Execution *self)
{
    size_t count = (size_t)self->program->length + 1;
    self->waits = PyMem_Malloc(count * sizeof *self->waits);
    self->ready = PyMem_Malloc(count * sizeof *self->ready);
    self->active = PyMem_Calloc(count, sizeof *self->active);
    self->call_of = PyMem_Malloc(count * sizeof *self->call_of);
    self->requests = PyMem_Malloc((self->program->messages ? count : 1) * sizeof *self->requests);
    self->calls = PyMem_Malloc(((size_t)self->program->group_calls + 1) * sizeof *self->calls);
    if (self->waits == NULL || self->ready == NULL || self->active == NULL || self->call_of == NULL
        || self->requests == NULL || self->calls == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(self->waits, self->program->waits, (count - 1) * sizeof *self->waits);
    return 0;
}

static int
prepare(Execution *self)
{
    int32_t calls = 0;
    for (int32_t i = 0; i < self->program->length; ++i) {
        if (self->waits[i] == 0)
            self->ready[self->ready_tail++] = i;
        if (!is_group_call(self->program->operations + i))
            continue;
        self->call_of[i] = calls;
        if (group_call_prepare(self->calls + calls++, self->group, self->program,
                               self->program->operations + i, self->buffers, self->itemsize,
                               self->kernel) < 0)
            return -1;
    }
    for (int32_t i = 0; i < calls; ++i)
        group_call_reserve(self->calls + i);
    set_held(&self->left, (int32_t)self->program->length);
    self->moved_at = now_s();
    return 0;
}

Execution *
new_execution(PyTypeObject *type, Program *program, PyObject *const *memory, int64_t itemsize,
              Network *network, Group *group, Kernel *kernel, int channel_base, int channels, Wire wire)
{
    Execution *self = (Execution *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->program = (Program *)Py_NewRef(program);
    self->network = (Network *)Py_XNewRef(network);
    self->group = (Group *)Py_XNewRef(group);
    self->kernel = (Kernel *)Py_XNewRef(kernel);
    self->itemsize = itemsize;
    self->channel_base = channel_base;
    self->channels = channels;
    self->wire = wire;
    int failed = check_parts(self);
    for (int i = 0; i < MEMORIES && !failed; ++i)
        failed = take_memory(self, memory[i], i);
    for (int i = 0; i < MEMORIES && !failed; ++i)
        if (self->memory[i].readonly && writes_read_only(self))
            failed = refused("the program writes to a buffer that is read-only");
    if (!failed)
        failed = allocate(self);
    if (!failed && pthread_mutex_init(&self->lock, NULL) != 0)
        failed = refused("the system has no lock left");
    self->has_lock = !failed;
    if (!failed)
        failed = prepare(self);
    if (failed)
        Py_CLEAR(self);
    return self;
}

static void *
none_is_null(PyObject *object)
{
    return object == Py_None ? NULL : object;
}

static PyObject *
Execution_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"program", "memory", "itemsize",     "network", "group",
                            "kernel",  "channel_base", "channels", "wire", NULL};
    PyObject *program, *memory, *network, *group, *kernel;
    long long itemsize;
    int channel_base, channels;
    const char *name = "";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOLOOOii|s:Execution", names, &program, &memory,
                                     &itemsize, &network, &group, &kernel, &channel_base, &channels, &name))
        return NULL;
    int wire = wire_named(name);
    if (wire < 0) {
        refused("wire must be bfloat16, float16 or empty");
        return NULL;
    }
    State *state = PyType_GetModuleState(type);
    if (state == NULL || !is_of_type(program, state->program, 0, "program")
        || !is_of_type(network, state->network, 1, "network")
        || !is_of_type(group, state->group, 1, "group")
        || !is_of_type(kernel, state->kernel, 1, "kernel"))
        return NULL;
    PyObject *all = PySequence_Tuple(memory);
    Execution *self = NULL;
    if (all != NULL && PyTuple_GET_SIZE(all) != MEMORIES)
        refused("memory must be input, output, scratch and wire");
    else if (all != NULL)
        self = new_execution(type, (Program *)program, &PyTuple_GET_ITEM(all, 0), itemsize,
                             none_is_null(network), none_is_null(group), none_is_null(kernel),
                             channel_base, channels, (Wire)wire);
    Py_XDECREF(all);
    return (PyObject *)self;
}

/* The garbage collector sees what was raised, whose traceback may lead back here, and nothing else: for the
 * buffers the reason given at Flags_dealloc holds. */
static int
Execution_traverse(Execution *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->error);
    return 0;
}

static int
Execution_clear(Execution *self)
{
    Py_CLEAR(self->error);
    return 0;
}

static void
Execution_dealloc(Execution *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    /* MPI still reads and writes the memory of messages that were given up: then it is never freed. */
    if (held(&self->posted) == 0)
        let_memory_go(self);
    if (self->has_lock)
        pthread_mutex_destroy(&self->lock);
    PyMem_Free(self->waits);
    PyMem_Free(self->ready);
    PyMem_Free((void *)self->active);
    PyMem_Free(self->call_of);
    PyMem_Free(self->requests);
    PyMem_Free(self->calls);
    PyMem_Free(self->begun_ns);
    Py_XDECREF(self->ring);
    Py_XDECREF(self->program);
    Py_XDECREF(self->network);
    Py_XDECREF(self->group);
    Py_XDECREF(self->kernel);
    Py_XDECREF(self->error);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef execution_methods[] = {
    {"advance", (PyCFunction)Execution_advance, METH_VARARGS, NULL},
    {"run", (PyCFunction)(void (*)(void))Execution_run, METH_VARARGS | METH_KEYWORDS, NULL},
    {"active", (PyCFunction)Execution_active, METH_NOARGS, NULL},
    {"observe", (PyCFunction)Execution_observe, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef execution_attributes[] = {
    {"left", (getter)Execution_left, NULL, NULL, NULL},
    {"over", (getter)Execution_over, NULL, NULL, NULL},
    {"step", (getter)Execution_step, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot execution_slots[] = {
    {Py_tp_doc, "One run of a program; hpccoll.runtime.engine says what each method does."},
    {Py_tp_new, Execution_new},
    {Py_tp_dealloc, Execution_dealloc},
    {Py_tp_traverse, Execution_traverse},
    {Py_tp_clear, Execution_clear},
    {Py_tp_methods, execution_methods},
    {Py_tp_getset, execution_attributes},
    {0, NULL},
};

static PyType_Spec execution_spec = {
    .name = "hpccoll._native._core.Execution",
    .basicsize = sizeof(Execution),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = execution_slots,
};

int
add_execution(PyObject *module)
{
    State *state = PyModule_GetState(module);
    return add_type(module, &execution_spec, &state->execution);
}
