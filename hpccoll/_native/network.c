/* Network: Isend, Irecv, Test, Iprobe and Get_count by their addresses, so that nothing is linked against an MPI.
 *
 * MPI_STATUS_IGNORE differs between MPIs; a status of 256 bytes has room for that of any. */

#include "network.h"

#include <stddef.h>

typedef union {
    char bytes[256];
    max_align_t aligned;
} Status;

int
network_send(Network *self, int peer, const char *data, int nbytes, int channel, Request *request)
{
    return self->isend(data, nbytes, self->byte, peer, channel, self->comm, request);
}

int
network_receive(Network *self, int peer, char *data, int nbytes, int channel, Request *request)
{
    return self->irecv(data, nbytes, self->byte, peer, channel, self->comm, request);
}

int
network_test(Network *self, Request *request, int *done)
{
    Status status;
    return self->test(request, done, &status);
}

int
network_progress(Network *self)
{
    Status status;
    int found;
    return self->iprobe(self->any_source, self->idle_channel, self->comm, &found, &status);
}

int
network_probe(Network *self, int peer, int channel, int *found, int *nbytes)
{
    Status status;
    int error = self->iprobe(peer, channel, self->comm, found, &status);
    return error || !*found ? error : self->get_count(&status, self->byte, nbytes);
}

PyObject *
network_raise(int error)
{
    PyObject *mpi = PyImport_ImportModule("mpi4py.MPI");
    PyObject *type = mpi == NULL ? NULL : PyObject_GetAttrString(mpi, "Exception");
    PyObject *exception = type == NULL ? NULL : PyObject_CallFunction(type, "i", error);
    if (exception != NULL)
        PyErr_SetObject(type, exception);
    Py_XDECREF(exception);
    Py_XDECREF(type);
    Py_XDECREF(mpi);
    return NULL;
}

static PyObject *
Network_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"isend", "irecv", "test",       "iprobe",       "get_count",
                            "comm",  "byte",  "any_source", "idle_channel", NULL};
    unsigned long long isend, irecv, test, iprobe, get_count, comm, byte;
    int any_source, idle_channel;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KKKKKKKii:Network", names, &isend, &irecv, &test,
                                     &iprobe, &get_count, &comm, &byte, &any_source, &idle_channel))
        return NULL;
    if (isend == 0 || irecv == 0 || test == 0 || iprobe == 0 || get_count == 0) {
        PyErr_SetString(PyExc_ValueError, "an address of an MPI function is 0");
        return NULL;
    }
    Network *self = (Network *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->isend = (int (*)(const void *, int, Handle, int, int, Handle, Request *))(uintptr_t)isend;
    self->irecv = (int (*)(void *, int, Handle, int, int, Handle, Request *))(uintptr_t)irecv;
    self->test = (int (*)(Request *, int *, void *))(uintptr_t)test;
    self->iprobe = (int (*)(int, int, Handle, int *, void *))(uintptr_t)iprobe;
    self->get_count = (int (*)(const void *, Handle, int *))(uintptr_t)get_count;
    self->comm = (Handle)comm;
    self->byte = (Handle)byte;
    self->any_source = any_source;
    self->idle_channel = idle_channel;
    return (PyObject *)self;
}

static void
Network_dealloc(Network *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot network_slots[] = {
    {Py_tp_doc, "Messages on one communicator, by the addresses of MPI's functions and MPI's handles."},
    {Py_tp_new, Network_new},
    {Py_tp_dealloc, Network_dealloc},
    {0, NULL},
};

static PyType_Spec network_spec = {
    .name = "hpccoll._native._core.Network",
    .basicsize = sizeof(Network),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = network_slots,
};

int
add_network(PyObject *module)
{
    State *state = PyModule_GetState(module);
    return add_type(module, &network_spec, &state->network);
}
