/* Calls of NCCL and CUDA in a row, made again and again by one call from Python.
 *
 * Neither library is there when this is compiled: their functions come as addresses, by the codes below, and have
 * the types that NCCL and the CUDA driver document.  Handles and addresses are plain numbers.  A stream is given
 * with each play, or is the tape's second one. */

#include "module.h"

enum code {
    ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE, BEGIN, END, COPY, MARK, FOLLOW,
    STATE, /* the function that tells a communicator's; no entry of a tape */
    CODES,
    KERNEL = CODES /* what Python enqueues: a tape stops there */
};

#define MOST_NUMBERS 6
#define IN_PROGRESS 7 /* of ncclResult_t */

typedef int (*Reduction)(const void *, void *, size_t, int, int, void *, void *);
typedef int (*Rooted)(const void *, void *, size_t, int, int, int, void *, void *);
typedef int (*Broadcast)(const void *, void *, size_t, int, int, void *, void *);
typedef int (*Gather)(const void *, void *, size_t, int, void *, void *);
typedef int (*Message)(void *, size_t, int, int, void *, void *);
typedef int (*Bracket)(void);
typedef int (*Copy)(uint64_t, uint64_t, size_t, void *);
typedef int (*Record)(void *, void *);
typedef int (*Wait)(void *, void *, unsigned);
typedef int (*AsyncError)(void *, int *);

typedef struct {
    int code;
    int second; /* on the tape's own stream */
    void *comm;
    uint64_t n[MOST_NUMBERS];
} Entry;

typedef struct {
    PyObject_HEAD
    void (*functions[CODES])(void);
    void *second;
    Py_ssize_t count;
    Entry entries[];
} Tape;

static void *
at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* What an entry's function returns. */
static int
make(const Tape *tape, const Entry *entry, void *stream)
{
    void (*function)(void) = tape->functions[entry->code];
    const uint64_t *n = entry->n;
    switch (entry->code) {
    case ALL_REDUCE:
    case REDUCE_SCATTER:
        return ((Reduction)function)(at(n[0]), at(n[1]), n[2], (int)n[3], (int)n[4], entry->comm, stream);
    case REDUCE:
        return ((Rooted)function)(at(n[0]), at(n[1]), n[2], (int)n[3], (int)n[4], (int)n[5], entry->comm,
                                  stream);
    case BROADCAST:
        return ((Broadcast)function)(at(n[0]), at(n[1]), n[2], (int)n[3], (int)n[4], entry->comm, stream);
    case ALL_GATHER:
        return ((Gather)function)(at(n[0]), at(n[1]), n[2], (int)n[3], entry->comm, stream);
    case SEND:
    case RECEIVE:
        return ((Message)function)(at(n[0]), n[1], (int)n[2], (int)n[3], entry->comm, stream);
    case BEGIN:
    case END:
        return ((Bracket)function)();
    case COPY:
        return ((Copy)function)(n[0], n[1], n[2], stream);
    case MARK:
        return ((Record)function)(at(n[0]), stream);
    default:
        return ((Wait)function)(stream, at(n[0]), 0);
    }
}

/* Makes the calls from `begin` on; the index of the one that is not well, not yet enqueued or Python's, or -1. */
static Py_ssize_t
play(const Tape *tape, void *stream, Py_ssize_t begin, int *status)
{
    int collecting = 0;
    for (Py_ssize_t i = begin; i < tape->count; ++i) {
        const Entry *entry = tape->entries + i;
        if (entry->code == KERNEL)
            return i;
        *status = make(tape, entry, entry->second ? tape->second : stream);
        int nccl = entry->code < COPY;
        if (*status && !(nccl && *status == IN_PROGRESS)) {
            if (collecting)
                ((Bracket)tape->functions[END])();
            return i;
        }
        if (entry->code == BEGIN)
            collecting = 1;
        else if (entry->code == END)
            collecting = 0;
        if (!nccl || collecting)
            continue;
        int state = 0;
        *status = ((AsyncError)tape->functions[STATE])(entry->comm, &state);
        if (*status || state) {
            *status = *status ? *status : state;
            return i;
        }
    }
    return -1;
}

/* Making one */

static int
read_numbers(PyObject *tuple, Py_ssize_t first, uint64_t *out, Py_ssize_t most)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple) - first;
    if (count > most)
        return refused("an entry has too many numbers");
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject *number = PyNumber_Index(PyTuple_GET_ITEM(tuple, first + i)); /* integers of NumPy too */
        if (number == NULL)
            return -1;
        out[i] = PyLong_AsUnsignedLongLong(number);
        Py_DECREF(number);
        if (out[i] == (uint64_t)-1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static int
read_entry(PyObject *object, Entry *entry)
{
    uint64_t head[3] = {0};
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) < 3)
        return refused("an entry must be a tuple: code, whether on the second stream, communicator, numbers");
    PyObject *front = PyTuple_GetSlice(object, 0, 3);
    if (front == NULL)
        return -1;
    int wrong = read_numbers(front, 0, head, 3);
    Py_DECREF(front);
    if (wrong)
        return -1;
    if (head[0] > KERNEL || head[0] == STATE)
        return refused("an entry has an unknown code");
    entry->code = (int)head[0];
    entry->second = head[1] != 0;
    entry->comm = at(head[2]);
    return read_numbers(object, 3, entry->n, MOST_NUMBERS);
}

static int
fill(Tape *tape, PyObject *functions, PyObject *entries)
{
    uint64_t addresses[CODES];
    if (PyTuple_GET_SIZE(functions) != CODES)
        return refused("functions must have an address for each code");
    if (read_numbers(functions, 0, addresses, CODES) < 0)
        return -1;
    for (int code = 0; code < CODES; ++code) {
        if (addresses[code] == 0)
            return refused("functions has an address that is 0");
        tape->functions[code] = (void (*)(void))at(addresses[code]);
    }
    for (Py_ssize_t i = 0; i < tape->count; ++i)
        if (read_entry(PyTuple_GET_ITEM(entries, i), tape->entries + i) < 0)
            return -1;
    return 0;
}

static PyObject *
Tape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"functions", "entries", "second", NULL};
    PyObject *functions, *entries;
    unsigned long long second;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!K:Tape", names, &PyTuple_Type, &functions,
                                     &PyTuple_Type, &entries, &second))
        return NULL;
    Tape *tape = (Tape *)type->tp_alloc(type, PyTuple_GET_SIZE(entries));
    if (tape == NULL)
        return NULL;
    tape->count = PyTuple_GET_SIZE(entries);
    tape->second = at(second);
    if (fill(tape, functions, entries) < 0) {
        Py_DECREF(tape);
        return NULL;
    }
    return (PyObject *)tape;
}

static void
Tape_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
Tape_play(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Tape *tape = (Tape *)self;
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "play() takes 2 arguments (%zd given)", count);
        return NULL;
    }
    unsigned long long stream = PyLong_AsUnsignedLongLong(args[0]);
    Py_ssize_t begin = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred())
        return NULL;
    if (begin < 0 || begin > tape->count) {
        refused("begin is outside the tape");
        return NULL;
    }
    int status = 0;
    Py_ssize_t stopped;
    Py_BEGIN_ALLOW_THREADS
    stopped = play(tape, at(stream), begin, &status);
    Py_END_ALLOW_THREADS
    if (stopped < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(ni)", stopped, status);
}

static PyMethodDef methods[] = {
    {"play", (PyCFunction)(void (*)(void))Tape_play, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, "Calls of NCCL and CUDA in a row; hpccoll.runtime.tape says what each entry is."},
    {Py_tp_new, Tape_new},
    {Py_tp_dealloc, Tape_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "hpccoll._native._core.Tape",
    .basicsize = sizeof(Tape),
    .itemsize = sizeof(Entry),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = type_slots,
};

int
add_tape(PyObject *module)
{
    PyTypeObject *type;
    if (add_type(module, &type_spec, &type) < 0)
        return -1;
    Py_DECREF(type);
    return 0;
}
