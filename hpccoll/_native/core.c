/* hpccoll._native._core: flags in shared memory with acquire/release order.
 *
 * Nothing here is global: a NativeFlags object owns its view of the caller's
 * buffer and nothing else, so a forked child is as good as its parent.  The other
 * files join the module as Py_mod_exec slots of `slots`:
 *
 *     program.c   what a plan asks of one rank     slots.c       a node's segment
 *     kernels.c   left (op) right                  group.c       calls through it
 *     network.c   messages by MPI                  execution.c   one run of a program
 *     tape.c      calls of NCCL and CUDA in a row  engine.c      runs several, without the GIL
 *     repeats.c   calls made again without Python  copy.c        past the caches
 *     spread.c    what leaders tell one another    wire.c        rounded between nodes */

#include "module.h"
#include "wait.h"


/* Reading the clock costs more than a turn, so a spin does it rarely. */
#define TURNS_PER_CLOCK 16

typedef struct {
    PyObject_HEAD
    Py_buffer view;
    word_t *words;
    Py_ssize_t count;
    double spin_s;
} Flags;

/* `count` words from `at`, `stride` apart, and the value they are compared with. */
typedef struct {
    word_t *at;
    Py_ssize_t count;
    Py_ssize_t stride;
    uint64_t value;
} Row;

/* Arguments */

static int
takes(const char *name, Py_ssize_t wanted, Py_ssize_t given)
{
    if (given == wanted)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments (%zd given)", name, wanted, given);
    return -1;
}

static int
as_count(PyObject *object, Py_ssize_t *out)
{
    *out = PyNumber_AsSsize_t(object, PyExc_IndexError);
    return *out == -1 && PyErr_Occurred() ? -1 : 0;
}

static int
as_value(PyObject *object, uint64_t *out)
{
    if (PyLong_Check(object)) {
        *out = PyLong_AsUnsignedLongLong(object);
    }
    else {
        PyObject *number = PyNumber_Index(object);
        if (number == NULL)
            return -1;
        *out = PyLong_AsUnsignedLongLong(number);
        Py_DECREF(number);
    }
    return *out == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

static word_t *
word_at(Flags *self, PyObject *object)
{
    Py_ssize_t index;
    if (as_count(object, &index) < 0)
        return NULL;
    if (index < 0 || index >= self->count) {
        PyErr_Format(PyExc_IndexError, "flag %zd is outside 0..%zd", index, self->count - 1);
        return NULL;
    }
    return self->words + index;
}

static int
as_row(Flags *self, PyObject *const *args, Row *row)
{
    Py_ssize_t first;
    if (as_count(args[0], &first) < 0 || as_count(args[1], &row->count) < 0
        || as_count(args[2], &row->stride) < 0 || as_value(args[3], &row->value) < 0)
        return -1;
    if (first < 0 || row->count < 0 || row->stride < 1 || first > self->count
        || (row->count > 0
            && (first == self->count
                || row->count - 1 > (self->count - 1 - first) / row->stride))) {
        PyErr_Format(PyExc_IndexError, "%zd flags from %zd, %zd apart, are outside 0..%zd",
                     row->count, first, row->stride, self->count - 1);
        return -1;
    }
    row->at = self->words + first;
    return 0;
}

/* The first flag of the row, from `from` on, that is below the value; -1 when none is. */
static inline Py_ssize_t
first_below(const Row *row, Py_ssize_t from)
{
    return first_word_below(row->at, row->count, row->stride, row->value, from);
}

/* Methods */

static PyObject *
Flags_load(Flags *self, PyObject *const *args, Py_ssize_t nargs)
{
    word_t *word;
    if (takes("load", 1, nargs) < 0 || (word = word_at(self, args[0])) == NULL)
        return NULL;
    return PyLong_FromUnsignedLongLong(load_word(word));
}

static PyObject *
Flags_store(Flags *self, PyObject *const *args, Py_ssize_t nargs)
{
    word_t *word;
    uint64_t value;
    if (takes("store", 2, nargs) < 0 || (word = word_at(self, args[0])) == NULL
        || as_value(args[1], &value) < 0)
        return NULL;
    store_word(word, value);
    Py_RETURN_NONE;
}

static PyObject *
Flags_store_first(Flags *self, PyObject *const *args, Py_ssize_t nargs)
{
    word_t *word;
    uint64_t value, found = 0;
    if (takes("store_first", 2, nargs) < 0 || (word = word_at(self, args[0])) == NULL
        || as_value(args[1], &value) < 0)
        return NULL;
    if (value == 0) {
        PyErr_SetString(PyExc_ValueError, "store_first takes a value other than 0");
        return NULL;
    }
    if (atomic_compare_exchange_strong_explicit(word, &found, value, memory_order_acq_rel,
                                                memory_order_acquire))
        found = value;
    return PyLong_FromUnsignedLongLong(found);
}

static PyObject *
Flags_reached(Flags *self, PyObject *const *args, Py_ssize_t nargs)
{
    Row row;
    if (takes("reached", 4, nargs) < 0 || as_row(self, args, &row) < 0)
        return NULL;
    return PyBool_FromLong(first_below(&row, 0) < 0);
}

static PyObject *
Flags_first_below(Flags *self, PyObject *const *args, Py_ssize_t nargs)
{
    Row row;
    if (takes("first_below", 4, nargs) < 0 || as_row(self, args, &row) < 0)
        return NULL;
    return PyLong_FromSsize_t(first_below(&row, 0));
}

/* Spins with the GIL held: it is shorter by far than the 5 ms that getting the GIL back
 * can take while another thread computes.  True when the row is there. */
static int
spin_until(const Row *row, Py_ssize_t *at, double end)
{
    do {
        for (int turn = 0; turn < TURNS_PER_CLOCK; ++turn) {
            cpu_pause();
            if ((*at = first_below(row, *at)) < 0)
                return 1;
        }
    } while (now_s() < end);
    return 0;
}

/* Gives the core away at every turn, without the GIL.  1 reached, 0 deadline passed,
 * -1 a signal handler raised. */
static int
yield_until(const Row *row, Py_ssize_t *at, double deadline)
{
    double signals_due = now_s() + SIGNAL_PERIOD_S;
    for (;;) {
        int raised = 0;
        double now = now_s();
        Py_BEGIN_ALLOW_THREADS
        do {
            now = give_core(now);
            *at = first_below(row, *at); /* after the clock: a late look still counts */
        } while (*at >= 0 && now < deadline && now < signals_due);
        Py_END_ALLOW_THREADS
        if (*at < 0)
            return 1;
        if (now >= signals_due) {
            raised = PyErr_CheckSignals();
            signals_due = now + SIGNAL_PERIOD_S;
        }
        if (raised < 0)
            return -1;
        if (now >= deadline)
            return 0;
    }
}

static PyObject *
Flags_wait_reached(Flags *self, PyObject *const *args, Py_ssize_t nargs)
{
    Row row;
    if (takes("wait_reached", 5, nargs) < 0 || as_row(self, args, &row) < 0)
        return NULL;
    double timeout_s = PyFloat_AsDouble(args[4]);
    if (timeout_s == -1.0 && PyErr_Occurred())
        return NULL;
    if (timeout_s != timeout_s) {
        PyErr_SetString(PyExc_ValueError, "timeout_s is not a number");
        return NULL;
    }
    Py_ssize_t at = first_below(&row, 0);
    if (at < 0)
        Py_RETURN_TRUE;
    if (timeout_s <= 0.0)
        Py_RETURN_FALSE;
    double start = now_s();
    double deadline = start + (timeout_s < FOREVER_S ? timeout_s : FOREVER_S);
    double spin_end = start + self->spin_s < deadline ? start + self->spin_s : deadline;
    if (self->spin_s > 0.0 && spin_until(&row, &at, spin_end))
        Py_RETURN_TRUE;
    int outcome = yield_until(&row, &at, deadline);
    return outcome < 0 ? NULL : PyBool_FromLong(outcome);
}

static Py_ssize_t
Flags_length(Flags *self)
{
    return self->count;
}

/* The object's life */

static PyObject *
Flags_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"buffer", "spin_us", NULL};
    PyObject *buffer;
    double spin_us;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Od:NativeFlags", names, &buffer, &spin_us))
        return NULL;
    Flags *self = (Flags *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    if (PyObject_GetBuffer(buffer, &self->view, PyBUF_WRITABLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if ((uintptr_t)self->view.buf % sizeof(word_t) != 0) {
        PyErr_SetString(PyExc_ValueError, "flags need a buffer aligned to 8 bytes");
        Py_DECREF(self);
        return NULL;
    }
    self->words = self->view.buf;
    self->count = self->view.len / (Py_ssize_t)sizeof(word_t);
    self->spin_s = 1e-6 * spin_us;
    return (PyObject *)self;
}

/* Not for the garbage collector, which knows no order: it may clear a memoryview in use as a buffer, and the
 * release of that buffer then goes through a null pointer (CPython).  As nobody visits it, the view outlives us. */
static void
Flags_dealloc(Flags *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyBuffer_Release(&self->view);
    type->tp_free(self);
    Py_DECREF(type);
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))Flags_##name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    FAST(load),  FAST(store), FAST(store_first), FAST(reached), FAST(first_below), FAST(wait_reached),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, "64-bit flags on a shared buffer; hpccoll.memory.flags.Flags says what each method does."},
    {Py_tp_new, Flags_new},
    {Py_tp_dealloc, Flags_dealloc},
    {Py_tp_methods, methods},
    {Py_sq_length, Flags_length},
    {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "hpccoll._native._core.NativeFlags",
    .basicsize = sizeof(Flags),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = type_slots,
};

static int
add_flags(PyObject *module)
{
    PyTypeObject *type;
    if (add_type(module, &type_spec, &type) < 0)
        return -1;
    int failed = PyObject_SetAttrString((PyObject *)type, "native", Py_True);
    Py_DECREF(type);
    return failed;
}

/* The module */

int
add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL)
        return -1;
    if (PyModule_AddType(module, type) < 0) {
        Py_DECREF(type);
        return -1;
    }
    *kept = type;
    return 0;
}

int
is_of_type(PyObject *object, PyTypeObject *type, int none_too, const char *argument)
{
    if (Py_IS_TYPE(object, type) || (none_too && object == Py_None))
        return 1;
    PyErr_Format(PyExc_TypeError, "%s must be a %s%s, not %s", argument, type->tp_name,
                 none_too ? " or None" : "", Py_TYPE(object)->tp_name);
    return 0;
}

int
refused(const char *reason)
{
    PyErr_SetString(PyExc_ValueError, reason);
    return -1;
}

static int
state_clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->program);
    Py_CLEAR(state->network);
    Py_CLEAR(state->group);
    Py_CLEAR(state->kernel);
    Py_CLEAR(state->execution);
    Py_CLEAR(state->bell);
    Py_CLEAR(state->spread);
    Py_CLEAR(state->ring);
    Py_CLEAR(state->started);
    Py_CLEAR(state->meter);
    return 0;
}

static void
state_free(void *module)
{
    state_clear((PyObject *)module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_flags},
    {Py_mod_exec, add_program},
    {Py_mod_exec, add_network},
    {Py_mod_exec, add_group},
    {Py_mod_exec, add_kernel},
    {Py_mod_exec, add_execution},
    {Py_mod_exec, add_engine},
    {Py_mod_exec, add_spread},
    {Py_mod_exec, add_recorder},
    {Py_mod_exec, add_meter},
    {Py_mod_exec, add_repeats},
    {Py_mod_exec, add_started},
    {Py_mod_exec, add_tape},
    {Py_mod_exec, add_checksum},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "hpccoll._native._core",
    .m_doc = "Flags in shared memory with acquire/release order; engines that run a rank's program.",
    .m_size = sizeof(State),
    .m_slots = slots,
    .m_clear = state_clear,
    .m_free = state_free,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
