/* Kernel: one operator on one dtype.  Three makers:
 *
 *     ufunc_kernel      the inner loop of a NumPy ufunc, which works without the GIL
 *     logical_kernel    logical and, or, xor of integers, which NumPy has with another output type only
 *     python_kernel     a Python function, called with the GIL
 *
 * NumPy's own loops rather than ours: which zero a minimum of 0.0 and -0.0 is, and the last bit of a
 * complex product, depend on the vector instructions that NumPy chose for this CPU; ranks with and
 * without this extension must agree on them. */

#include "kernels.h"

#include <string.h>

/* The documented beginning of NumPy's PyUFuncObject (the same from NumPy 1.7 on). */
typedef struct {
    PyObject_HEAD
    int nin, nout, nargs;
    int identity;
    Loop *functions;
    void *const *data;
    int ntypes;
    int reserved;
    const char *name;
    const char *types;
} Ufunc;

/* Logical operators on integers */

#define LOGICAL(name, type, op)                                                                    \
    static void name(char **addresses, const Py_ssize_t *count, const Py_ssize_t *strides,         \
                     void *data)                                                                   \
    {                                                                                              \
        const type *left = (const type *)addresses[0], *right = (const type *)addresses[1];        \
        type *target = (type *)addresses[2];                                                       \
        (void)strides, (void)data;                                                                 \
        for (Py_ssize_t i = 0; i < *count; ++i)                                                    \
            target[i] = (left[i] != 0)op(right[i] != 0);                                           \
    }

#define LOGICALS(bits)                                                                             \
    LOGICAL(and_##bits, uint##bits##_t, &)                                                         \
    LOGICAL(or_##bits, uint##bits##_t, |)                                                          \
    LOGICAL(xor_##bits, uint##bits##_t, ^)

LOGICALS(8)
LOGICALS(16)
LOGICALS(32)
LOGICALS(64)

static const struct {
    const char *name;
    Loop loops[4]; /* of 1, 2, 4 and 8 bytes */
} logicals[] = {
    {"land", {and_8, and_16, and_32, and_64}},
    {"lor", {or_8, or_16, or_32, or_64}},
    {"lxor", {xor_8, xor_16, xor_32, xor_64}},
};

/* Combining */

PyObject *
taken_error(void)
{
#if PY_VERSION_HEX >= 0x030c0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL)
        PyException_SetTraceback(error, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return error;
#endif
}

static int
call_python(Kernel *self, const char *left, const char *right, char *target, Py_ssize_t nbytes)
{
    PyObject *arguments[3] = {
        PyMemoryView_FromMemory((char *)left, nbytes, PyBUF_READ),
        PyMemoryView_FromMemory((char *)right, nbytes, PyBUF_READ),
        PyMemoryView_FromMemory(target, nbytes, PyBUF_WRITE),
    };
    PyObject *result = NULL;
    if (arguments[0] != NULL && arguments[1] != NULL && arguments[2] != NULL)
        result = PyObject_CallFunctionObjArgs(self->owner, arguments[0], arguments[1], arguments[2],
                                              NULL);
    for (int i = 0; i < 3; ++i)
        Py_XDECREF(arguments[i]);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

int
kernel_combine(Kernel *self, const char *left, const char *right, char *target, int64_t count,
               PyObject **error)
{
    if (count == 0)
        return 0;
    if (self->loop != NULL) {
        char *addresses[3] = {(char *)left, (char *)right, target};
        const Py_ssize_t length = count;
        const Py_ssize_t strides[3] = {self->itemsize, self->itemsize, self->itemsize};
        self->loop(addresses, &length, strides, self->data);
        return 0;
    }
    PyGILState_STATE before = PyGILState_Ensure();
    int failed = call_python(self, left, right, target, count * self->itemsize);
    if (failed)
        *error = taken_error();
    PyGILState_Release(before);
    return failed;
}

/* The three makers */

static Kernel *
made(PyObject *module, Py_ssize_t itemsize)
{
    if (itemsize < 1) {
        PyErr_SetString(PyExc_ValueError, "elements of a kernel have at least one byte");
        return NULL;
    }
    PyTypeObject *type = ((State *)PyModule_GetState(module))->kernel;
    Kernel *self = (Kernel *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->itemsize = itemsize;
    return self;
}

static int
attribute_is(PyObject *object, const char *name, int value)
{
    PyObject *found = PyObject_GetAttrString(object, name);
    if (found == NULL)
        return 0;
    long number = PyLong_AsLong(found);
    Py_DECREF(found);
    return number == value && !PyErr_Occurred();
}

/* Whether the object's memory is what we take it for: what Python says of a ufunc is there too. */
static int
is_known_ufunc(PyObject *object, Py_ssize_t index, int number)
{
    const Ufunc *ufunc = (const Ufunc *)object;
    int known = Py_TYPE(object)->tp_basicsize >= (Py_ssize_t)sizeof(Ufunc)
                && attribute_is(object, "nin", 2) && attribute_is(object, "nout", 1)
                && attribute_is(object, "nargs", 3) && ufunc->nin == 2 && ufunc->nout == 1
                && ufunc->nargs == 3 && attribute_is(object, "ntypes", ufunc->ntypes) && index >= 0
                && index < ufunc->ntypes && ufunc->functions[index] != NULL;
    for (int i = 0; i < 3 && known; ++i)
        known = ufunc->types[3 * index + i] == number;
    if (!known && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "this is not a ufunc of the memory layout known here");
    return known;
}

static PyObject *
ufunc_kernel(PyObject *module, PyObject *args)
{
    PyObject *object;
    Py_ssize_t index, itemsize;
    int number;
    if (!PyArg_ParseTuple(args, "Onin:ufunc_kernel", &object, &index, &number, &itemsize)
        || !is_known_ufunc(object, index, number))
        return NULL;
    Kernel *self = made(module, itemsize);
    if (self != NULL) {
        const Ufunc *ufunc = (const Ufunc *)object;
        self->loop = ufunc->functions[index];
        self->data = ufunc->data == NULL ? NULL : ufunc->data[index];
        self->owner = Py_NewRef(object);
    }
    return (PyObject *)self;
}

static PyObject *
logical_kernel(PyObject *module, PyObject *args)
{
    const char *name;
    Py_ssize_t itemsize;
    if (!PyArg_ParseTuple(args, "sn:logical_kernel", &name, &itemsize))
        return NULL;
    for (size_t i = 0; i < sizeof logicals / sizeof *logicals; ++i)
        for (int power = 0; power < 4; ++power)
            if (strcmp(name, logicals[i].name) == 0 && itemsize == (Py_ssize_t)1 << power) {
                Kernel *self = made(module, itemsize);
                if (self != NULL)
                    self->loop = logicals[i].loops[power];
                return (PyObject *)self;
            }
    return PyErr_Format(PyExc_ValueError, "no logical operator %s of %zd bytes", name, itemsize);
}

static PyObject *
python_kernel(PyObject *module, PyObject *args)
{
    PyObject *function;
    Py_ssize_t itemsize;
    if (!PyArg_ParseTuple(args, "On:python_kernel", &function, &itemsize))
        return NULL;
    if (!PyCallable_Check(function))
        return PyErr_Format(PyExc_TypeError, "a kernel's function must be callable");
    Kernel *self = made(module, itemsize);
    if (self != NULL)
        self->owner = Py_NewRef(function);
    return (PyObject *)self;
}

/* The object */

static PyObject *
Kernel_combine(Kernel *self, PyObject *args)
{
    Py_buffer left, right, target;
    if (!PyArg_ParseTuple(args, "y*y*w*:combine", &left, &right, &target))
        return NULL;
    PyObject *error = NULL;
    int failed = -1;
    if (left.len != right.len || left.len != target.len || left.len % self->itemsize != 0)
        PyErr_SetString(PyExc_ValueError, "left, right and target must be equally many whole elements");
    else
        failed = kernel_combine(self, left.buf, right.buf, target.buf, left.len / self->itemsize, &error);
    PyBuffer_Release(&left);
    PyBuffer_Release(&right);
    PyBuffer_Release(&target);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
Kernel_native(Kernel *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(self->loop != NULL);
}

static PyObject *
Kernel_itemsize(Kernel *self, void *closure)
{
    (void)closure;
    return PyLong_FromSsize_t(self->itemsize);
}

static void
Kernel_dealloc(Kernel *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->owner);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef kernel_methods[] = {
    {"combine", (PyCFunction)Kernel_combine, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef kernel_attributes[] = {
    {"native", (getter)Kernel_native, NULL, NULL, NULL},
    {"itemsize", (getter)Kernel_itemsize, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot kernel_slots[] = {
    {Py_tp_doc, "One operator on elements of one size."},
    {Py_tp_dealloc, Kernel_dealloc},
    {Py_tp_methods, kernel_methods},
    {Py_tp_getset, kernel_attributes},
    {0, NULL},
};

static PyType_Spec kernel_spec = {
    .name = "hpccoll._native._core.Kernel",
    .basicsize = sizeof(Kernel),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = kernel_slots,
};

static PyMethodDef makers[] = {
    {"ufunc_kernel", ufunc_kernel, METH_VARARGS, NULL},
    {"logical_kernel", logical_kernel, METH_VARARGS, NULL},
    {"python_kernel", python_kernel, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int
add_kernel(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (add_type(module, &kernel_spec, &state->kernel) < 0)
        return -1;
    return PyModule_AddFunctions(module, makers);
}
