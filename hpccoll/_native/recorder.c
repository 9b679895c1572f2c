/* Writes records of known calls, and events, into a rank's rings, and takes away the files of rings when the process ends. */

#include "recorder.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The layout of interpreter frames is Python's own business and changes; this one is 3.11's. */
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000 && __has_include("internal/pycore_frame.h")
#define Py_BUILD_CORE
#include "internal/pycore_frame.h"
#define HAS_FRAMES
#elif PY_VERSION_HEX < 0x030B0000
#include <frameobject.h> /* Python.h has it from 3.11 on */
#endif

/* Whether code is the package's own. */
static int
is_inside(const Ring *self, PyObject *code)
{
    PyObject *file = ((PyCodeObject *)code)->co_filename;
    Py_ssize_t length = PyUnicode_GET_LENGTH(self->inside);
    int kind = PyUnicode_KIND(self->inside);
    return PyUnicode_KIND(file) == kind && PyUnicode_GET_LENGTH(file) >= length
           && memcmp(PyUnicode_DATA(file), PyUnicode_DATA(self->inside), (size_t)(length * kind)) == 0;
}

/* The number of a code object that the caller holds. */
static int
number_code(Ring *self, PyObject *code, uint32_t *number)
{
    unsigned place = (unsigned)((uintptr_t)code >> 4) % CODES_SEEN;
    *number = 0;
    if (self->seen[place].code == code) {
        *number = self->seen[place].number;
        return 0;
    }
    if (self->full)
        return 0;
    PyObject *found = PyObject_CallOneArg(self->number_of, code);
    if (found == NULL)
        return -1;
    *number = (uint32_t)PyLong_AsUnsignedLongMask(found);
    Py_DECREF(found);
    if (*number == 0)
        self->full = 1; /* nobody keeps the code: it is not remembered */
    else
        self->seen[place].code = code, self->seen[place].number = *number;
    return 0;
}

/* Which code outside the package has called, and at which of its bytes it is; -1: not known. */
static int
find_caller(Ring *self, uint32_t *number, int32_t *instruction)
{
    *number = 0, *instruction = -1;
#ifdef HAS_FRAMES
    const _PyInterpreterFrame *frame = PyThreadState_Get()->cframe->current_frame;
    while (frame != NULL && is_inside(self, (PyObject *)frame->f_code))
        frame = frame->previous;
    if (frame == NULL)
        return 0;
    *instruction = _PyInterpreterFrame_LASTI(frame) * (int)sizeof(_Py_CODEUNIT);
    return number_code(self, (PyObject *)frame->f_code, number);
#else
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame);
        if (!is_inside(self, code)) {
#if PY_VERSION_HEX >= 0x030B0000
            *instruction = PyFrame_GetLasti(frame);
#else
            *instruction = frame->f_lasti < 0 ? -1 : frame->f_lasti * (int)sizeof(_Py_CODEUNIT);
#endif
            int failed = number_code(self, code, number);
            Py_DECREF(code);
            Py_DECREF(frame);
            return failed;
        }
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    return 0;
#endif
}

Record *
ring_enter(Ring *self, const unsigned char *fingerprint, int64_t sequence)
{
    uint32_t code;
    int32_t instruction;
    if (find_caller(self, &code, &instruction) < 0)
        return NULL;
    uint64_t number = atomic_load_explicit(self->written, memory_order_relaxed) + 1;
    Record *record = self->records + (number - 1) % (uint64_t)self->count;
    atomic_store_explicit(&record->before, number, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    memcpy(record->fingerprint, &sequence, sizeof sequence);
    memcpy(record->fingerprint + sizeof sequence, fingerprint + sizeof sequence,
           RECORDED_BYTES - sizeof sequence);
    record->entered_ns = now_ns(), record->agreed_ns = record->ended_ns = 0;
    record->state = ENTERED, record->form = 0, record->step = record->chunk = record->peer = -1;
    record->chunks = record->family = 0;
    record->bytes_done = record->bytes_total = 0;
    record->code = code, record->instruction = instruction;
    record->thread = PyThread_get_thread_ident();
    record->plan = record->steps = record->error = record->collective = 0;
    atomic_store_explicit(&record->after, number, memory_order_release);
    atomic_store_explicit(self->written, number, memory_order_release);
    return record;
}

void
ring_put(Ring *self, const Event *event)
{
    uint64_t number = 1 + atomic_fetch_add_explicit(self->events_written, 1, memory_order_relaxed);
    Event *place = self->events + (number - 1) % (uint64_t)self->event_count;
    atomic_store_explicit(&place->before, number, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    place->begin_ns = event->begin_ns, place->end_ns = event->end_ns;
    place->sequence = event->sequence, place->nbytes = event->nbytes;
    place->text = event->text, place->kind = event->kind, place->step = event->step, place->peer = event->peer;
    place->thread = PyThread_get_thread_ident();
    atomic_store_explicit(&place->after, number, memory_order_release);
}

static PyObject *
Ring_put(Ring *self, PyObject *args)
{
    long long begin_ns, end_ns, sequence, nbytes;
    Event event = {0};
    if (!PyArg_ParseTuple(args, "iLLLIiiL:put", &event.kind, &begin_ns, &end_ns, &sequence, &event.text, &event.step,
                          &event.peer, &nbytes))
        return NULL;
    if (self->events == NULL) {
        refused("there is no room for events");
        return NULL;
    }
    event.begin_ns = begin_ns, event.end_ns = end_ns, event.sequence = sequence, event.nbytes = nbytes;
    ring_put(self, &event);
    Py_RETURN_NONE;
}

static PyObject *
Ring_enter(Ring *self, PyObject *args)
{
    Py_buffer fingerprint;
    long long sequence;
    if (!PyArg_ParseTuple(args, "y*L:enter", &fingerprint, &sequence))
        return NULL;
    Record *record = NULL;
    if (fingerprint.len != RECORDED_BYTES)
        refused("a fingerprint has 48 bytes");
    else
        record = ring_enter(self, fingerprint.buf, sequence);
    PyBuffer_Release(&fingerprint);
    return record == NULL ? NULL : PyLong_FromSsize_t((char *)record - (char *)self->memory.buf);
}

static PyObject *
Ring_end(Ring *self, PyObject *offset)
{
    Py_ssize_t at = PyLong_AsSsize_t(offset);
    if (at == -1 && PyErr_Occurred())
        return NULL;
    Py_ssize_t begin = (char *)self->records - (char *)self->memory.buf;
    if (at < begin || (at - begin) % (Py_ssize_t)sizeof(Record) != 0
        || (at - begin) / (Py_ssize_t)sizeof(Record) >= self->count) {
        refused("no record begins there");
        return NULL;
    }
    record_end((Record *)((char *)self->memory.buf + at));
    Py_RETURN_NONE;
}

/* Whether `count` things of so many bytes from `begin` on, and the number of those written, are in the memory. */
static int
has_room(const Py_buffer *memory, long long written, long long begin, long long count, size_t nbytes)
{
    return written >= 0 && begin >= 0 && written % 8 == 0 && begin % 8 == 0 && written <= memory->len - 8
           && begin <= memory->len && count <= (memory->len - begin) / (long long)nbytes;
}

static PyObject *
Ring_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"memory", "written", "records", "count", "number_of", "inside",
                            "events_written", "events", "event_count", NULL};
    PyObject *memory, *number_of, *inside;
    long long written, records, count, events_written = 0, events = 0, event_count = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLLLOU|LLL:Ring", names, &memory, &written, &records, &count,
                                     &number_of, &inside, &events_written, &events, &event_count))
        return NULL;
    Ring *self = (Ring *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->number_of = Py_NewRef(number_of);
    self->inside = Py_NewRef(inside);
    int failed = PyObject_GetBuffer(memory, &self->memory, PyBUF_WRITABLE) < 0;
    if (!failed
        && (count < 1 || event_count < 0 || (uintptr_t)self->memory.buf % 8 != 0
            || !has_room(&self->memory, written, records, count, sizeof(Record))
            || !has_room(&self->memory, events_written, events, event_count, sizeof(Event))))
        failed = refused("the records are not inside the memory, or not aligned") < 0;
    if (failed) {
        Py_DECREF(self);
        return NULL;
    }
    self->written = (word_t *)((char *)self->memory.buf + written);
    self->records = (Record *)((char *)self->memory.buf + records);
    self->count = count;
    if (event_count > 0) {
        self->events_written = (word_t *)((char *)self->memory.buf + events_written);
        self->events = (Event *)((char *)self->memory.buf + events);
        self->event_count = event_count;
    }
    return (PyObject *)self;
}

/* Not for the garbage collector, for the reason given at Flags_dealloc. */
static void
Ring_dealloc(Ring *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyBuffer_Release(&self->memory);
    Py_XDECREF(self->number_of);
    Py_XDECREF(self->inside);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef ring_methods[] = {
    {"enter", (PyCFunction)Ring_enter, METH_VARARGS, NULL},
    {"end", (PyCFunction)Ring_end, METH_O, NULL},
    {"put", (PyCFunction)Ring_put, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ring_slots[] = {
    {Py_tp_doc, "The ring of a rank's last calls; hpccoll.observe.recorder says what each method does."},
    {Py_tp_new, Ring_new},
    {Py_tp_dealloc, Ring_dealloc},
    {Py_tp_methods, ring_methods},
    {0, NULL},
};

static PyType_Spec ring_spec = {
    .name = "hpccoll._native._core.Ring",
    .basicsize = sizeof(Ring),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = ring_slots,
};

/* Files that go when the process has ended well: after MPI_Finalize, which waits for the other ranks, so that the
 * record of a rank that has left early is there while they hang. */

typedef struct Left {
    struct Left *next;
    pid_t process;
    char path[];
} Left;

static Left *all_left;

static void
remove_left(void)
{
    for (const Left *one = all_left; one != NULL; one = one->next)
        if (one->process == getpid())
            unlink(one->path);
}

static PyObject *
remove_at_end(PyObject *module, PyObject *path)
{
    (void)module;
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(path, &text, &length) < 0)
        return NULL;
    Left *one = malloc(sizeof *one + (size_t)length + 1);
    if (one == NULL)
        return PyErr_NoMemory();
    if (all_left == NULL && atexit(remove_left) != 0) {
        free(one);
        PyErr_SetString(PyExc_OSError, "atexit has no room");
        return NULL;
    }
    one->process = getpid(), one->next = all_left;
    memcpy(one->path, text, (size_t)length + 1);
    all_left = one;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"remove_at_end", remove_at_end, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int
add_recorder(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (add_type(module, &ring_spec, &state->ring) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
