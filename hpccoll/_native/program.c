/* Program: takes over the tables of runtime/engine.py and checks every index in them, once, so that
 * nothing that runs a program has to. */

#include "program.h"

#include <structmember.h>

/* A copy of a buffer of 64-bit integers, in rows of `width`; `*rows` becomes how many there are. */
static int64_t *
copied(PyObject *object, Py_ssize_t width, const char *name, Py_ssize_t *rows)
{
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_CONTIG_RO) < 0)
        return NULL;
    Py_ssize_t row_bytes = width * (Py_ssize_t)sizeof(int64_t);
    int64_t *copy = NULL;
    if (view.len % row_bytes != 0)
        PyErr_Format(PyExc_ValueError, "%s must be rows of %zd 64-bit integers", name, width);
    else if ((copy = PyMem_Malloc(view.len ? (size_t)view.len : 1)) == NULL)
        PyErr_NoMemory();
    else
        memcpy(copy, view.buf, (size_t)view.len);
    *rows = view.len / row_bytes;
    PyBuffer_Release(&view);
    return copy;
}

static int
range_is_inside(int64_t first, int64_t count, Py_ssize_t all)
{
    return first >= 0 && count >= 0 && first <= all && count <= all - first;
}

static int64_t
elements(const Place *place)
{
    return place->stop - place->start;
}

static int
has_places(const Operation *one, int64_t sources, int64_t targets)
{
    return one->sources == sources && one->targets == targets;
}

static int
is_on_wire(const Place *place)
{
    return place->memory == WIRE;
}

/* Only messages and copies end there, and a copy or combination may begin there. */
static int
wire_is_right(const Operation *one, const Place *places)
{
    switch (one->code) {
    case SEND:
    case RECEIVE:
        return 1;
    case COPY:
        return !is_on_wire(places) || !is_on_wire(places + 1);
    case COMBINE:
        return !is_on_wire(places + 2);
    default:
        for (int64_t i = 0; i < one->sources + one->targets; ++i)
            if (is_on_wire(places + i))
                return 0;
        return 1;
    }
}

static int
shape_is_right(const Program *self, const Operation *one)
{
    const Place *places = self->places + one->place;
    switch (one->code) {
    case SEND:
        return has_places(one, 1, 0) && one->peer >= 0 && one->peer <= INT32_MAX;
    case RECEIVE:
        return has_places(one, 0, 1) && one->peer >= 0 && one->peer <= INT32_MAX;
    case COPY:
        return has_places(one, 1, 1) && elements(places) == elements(places + 1);
    case COMBINE:
        return has_places(one, 2, 1) && elements(places) == elements(places + 1)
               && elements(places) == elements(places + 2);
    default:
        return one->peer >= 0 && one->peer <= INT32_MAX;
    }
}

static const char *
check_places(Program *self, Py_ssize_t count)
{
    for (const Place *place = self->places; place < self->places + count; ++place) {
        if (place->memory < 0 || place->memory >= MEMORIES || place->start < 0
            || place->stop < place->start)
            return "a place is not a range of one of the four buffers";
        if (place->stop > self->needed[place->memory])
            self->needed[place->memory] = place->stop;
    }
    return NULL;
}

static const char *
check_operation(Program *self, const Operation *one, Py_ssize_t places, Py_ssize_t counts)
{
    if (one->code < 0 || one->code >= CODES)
        return "an operation has an unknown code";
    if (one->sources < 0 || one->targets < 0
        || one->sources > INT32_MAX || one->targets > INT32_MAX
        || !range_is_inside(one->place, one->sources + one->targets, places)
        || !range_is_inside(one->count, one->counts, counts))
        return "an operation's places or counts are not in the tables";
    if (!shape_is_right(self, one) || !wire_is_right(one, self->places + one->place))
        return "an operation has not the places that its code asks for";
    if (one->next < -1 || one->next >= self->length)
        return "an operation is followed by one that is not there";
    return NULL;
}

/* What the program does all in all. */
static void
sum_up(Program *self, const Operation *one)
{
    const Place *places = sources_of(self, one);
    self->group_calls += is_group_call(one);
    self->combines |= combines(one);
    for (int64_t i = 0; i < one->sources + one->targets; ++i) {
        if (one->code <= RECEIVE && elements(places + i) > self->longest_message)
            self->longest_message = elements(places + i);
    }
    self->messages |= one->code <= RECEIVE;
}

static const char *
check_following(Program *self, Py_ssize_t starts, Py_ssize_t count)
{
    if (starts != self->length + 1 || self->following_starts[0] != 0
        || self->following_starts[self->length] != count)
        return "the table of what follows has not a start for each operation, and an end";
    for (Py_ssize_t i = 0; i < self->length; ++i)
        if (self->following_starts[i + 1] < self->following_starts[i])
            return "the starts of what follows do not ascend";
    for (Py_ssize_t i = 0; i < count; ++i)
        if (self->following[i] < 0 || self->following[i] >= self->length)
            return "an operation is followed by one that is not there";
    return NULL;
}

static int
count_waits(Program *self, Py_ssize_t following)
{
    self->waits = PyMem_Calloc((size_t)self->length + 1, sizeof *self->waits);
    if (self->waits == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < following; ++i)
        self->waits[self->following[i]] += 1;
    for (Py_ssize_t i = 0; i < self->length; ++i)
        if (self->operations[i].next >= 0)
            self->waits[self->operations[i].next] += 1;
    return 0;
}

static int
fill(Program *self, PyObject *tables[5])
{
    Py_ssize_t places, counts, starts, following;
    self->operations = (Operation *)copied(tables[0], sizeof(Operation) / sizeof(int64_t),
                                           "operations", &self->length);
    if (self->operations == NULL)
        return -1;
    self->places = (Place *)copied(tables[1], sizeof(Place) / sizeof(int64_t), "places", &places);
    if (self->places == NULL)
        return -1;
    if ((self->counts = copied(tables[2], 1, "counts", &counts)) == NULL
        || (self->following_starts = copied(tables[3], 1, "following_starts", &starts)) == NULL
        || (self->following = copied(tables[4], 1, "following", &following)) == NULL)
        return -1;
    const char *fault = NULL;
    if (self->length > INT32_MAX)
        fault = "there are too many operations";
    if (fault == NULL)
        fault = check_places(self, places);
    for (Py_ssize_t i = 0; i < self->length && fault == NULL; ++i)
        fault = check_operation(self, self->operations + i, places, counts);
    if (fault == NULL)
        fault = check_following(self, starts, following);
    if (fault != NULL) {
        PyErr_SetString(PyExc_ValueError, fault);
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->length; ++i)
        sum_up(self, self->operations + i);
    return count_waits(self, following);
}

static PyObject *
Program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"operations", "places", "counts", "following_starts", "following", NULL};
    PyObject *tables[5];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO:Program", names, &tables[0], &tables[1],
                                     &tables[2], &tables[3], &tables[4]))
        return NULL;
    Program *self = (Program *)type->tp_alloc(type, 0);
    if (self != NULL && fill(self, tables) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void
Program_dealloc(Program *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->operations);
    PyMem_Free(self->places);
    PyMem_Free(self->counts);
    PyMem_Free(self->following_starts);
    PyMem_Free(self->following);
    PyMem_Free(self->waits);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t
Program_length(Program *self)
{
    return self->length;
}

static PyMemberDef program_members[] = {
    {"steps", T_UINT, offsetof(Program, steps), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot program_slots[] = {
    {Py_tp_doc, "The operations of one rank, checked."},
    {Py_tp_new, Program_new},
    {Py_tp_dealloc, Program_dealloc},
    {Py_sq_length, Program_length},
    {Py_tp_members, program_members},
    {0, NULL},
};

static PyType_Spec program_spec = {
    .name = "hpccoll._native._core.Program",
    .basicsize = sizeof(Program),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = program_slots,
};

int
add_program(PyObject *module)
{
    State *state = PyModule_GetState(module);
    return add_type(module, &program_spec, &state->program);
}
