/* The Python side of meters; see meter.h. */

#include "meter.h"

#include <string.h>

#define SUMS (sizeof(Sums) / sizeof(int64_t))
#define COUNTED (sizeof(Counted) / sizeof(int64_t))

static PyObject *
Meter_count(Meter *self, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t numbers[COUNTED];
    Counted call;
    if (nargs != COUNTED) {
        PyErr_Format(PyExc_TypeError, "count() takes %zu arguments (%zd given)", COUNTED, nargs);
        return NULL;
    }
    for (size_t i = 0; i < COUNTED; ++i) {
        numbers[i] = PyLong_AsLongLong(args[i]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    memcpy(&call, numbers, sizeof call);
    meter_count(self, &call);
    Py_RETURN_NONE;
}

static PyObject *
Meter_waited(Meter *self, PyObject *nanoseconds)
{
    long long ns = PyLong_AsLongLong(nanoseconds);
    if (ns == -1 && PyErr_Occurred())
        return NULL;
    self->sums.waited_ns += ns;
    Py_RETURN_NONE;
}

static PyObject *
tuple_of(const int64_t *numbers, Py_ssize_t count)
{
    PyObject *made = PyTuple_New(count);
    for (Py_ssize_t i = 0; i < count && made != NULL; ++i) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, i, number);
    }
    return made;
}

static PyObject *
Meter_read(Meter *self, PyObject *reset)
{
    int clear = PyObject_IsTrue(reset);
    if (clear < 0)
        return NULL;
    PyObject *sums = tuple_of((const int64_t *)&self->sums, SUMS);
    PyObject *bins = sums == NULL ? NULL : tuple_of(self->bins, TIME_BINS);
    PyObject *both = bins == NULL ? NULL : PyTuple_Pack(2, sums, bins);
    Py_XDECREF(sums);
    Py_XDECREF(bins);
    if (both != NULL && clear) {
        self->sums = (Sums){0};
        memset(self->bins, 0, sizeof self->bins);
    }
    return both;
}

static PyObject *
Meter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Meter", names))
        return NULL;
    return type->tp_alloc(type, 0);
}

static void
Meter_dealloc(Meter *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef meter_methods[] = {
    {"count", (PyCFunction)(void (*)(void))Meter_count, METH_FASTCALL, NULL},
    {"waited", (PyCFunction)Meter_waited, METH_O, NULL},
    {"read", (PyCFunction)Meter_read, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot meter_slots[] = {
    {Py_tp_doc, "Counts calls of one kind; hpccoll.observe.meter says what each method does."},
    {Py_tp_new, Meter_new},
    {Py_tp_dealloc, Meter_dealloc},
    {Py_tp_methods, meter_methods},
    {0, NULL},
};

static PyType_Spec meter_spec = {
    .name = "hpccoll._native._core.Meter",
    .basicsize = sizeof(Meter),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = meter_slots,
};

int
add_meter(PyObject *module)
{
    State *state = PyModule_GetState(module);
    return add_type(module, &meter_spec, &state->meter);
}
