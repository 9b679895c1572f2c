/* Spread: see spread.h. */

#include "spread.h"

#include <limits.h>
#include <string.h>

char *
bytes_more(Bytes *bytes, int64_t nbytes)
{
    if (bytes->length + nbytes > bytes->room) {
        int64_t room = bytes->length + nbytes + (bytes->room > 1024 ? bytes->room : 1024);
        char *data = PyMem_RawRealloc(bytes->data, (size_t)room); /* by threads without the GIL too */
        if (data == NULL)
            return NULL;
        bytes->data = data, bytes->room = room;
    }
    bytes->length += nbytes;
    return bytes->data + bytes->length - nbytes;
}

static int
leader(const Spread *self, int64_t steps)
{
    return self->leaders[((self->node + steps) % self->nodes + self->nodes) % self->nodes];
}

/* Each part of a round: 1 when it is done, 0, or -1 when it failed. */

static int
failed(Spread *self, int error)
{
    self->error = error;
    return error == 0 ? 0 : -1;
}

static int
send_next(Spread *self)
{
    if (self->said.length > INT_MAX)
        return failed(self, INT_MAX);
    int error = network_send(self->network, leader(self, self->distance), self->said.data,
                             (int)self->said.length, self->channel, &self->sending);
    if (error)
        return failed(self, error);
    self->under_way += 1;
    return 1;
}

static int
probe(Spread *self)
{
    int found = 0, nbytes = 0, origin = leader(self, -self->distance);
    int error = network_probe(self->network, origin, self->channel, &found, &nbytes);
    if (error || !found)
        return failed(self, error);
    self->coming.length = 0;
    char *to = bytes_more(&self->coming, nbytes);
    if (to == NULL)
        return failed(self, INT_MAX);
    error = network_receive(self->network, origin, to, nbytes, self->channel, &self->receiving);
    if (error)
        return failed(self, error);
    self->under_way += 1;
    return 1;
}

static int
complete(Spread *self, Request *request)
{
    int done = 0, error = network_test(self->network, request, &done);
    if (error)
        return failed(self, error);
    self->under_way -= done != 0;
    return done != 0;
}

/* The message is kept only now: `said` had to stay where it was. */
static int
keep(Spread *self)
{
    char *to = bytes_more(&self->said, self->coming.length);
    if (to == NULL)
        return failed(self, INT_MAX);
    memcpy(to, self->coming.data, (size_t)self->coming.length);
    self->distance *= 2;
    return 1;
}

static int
round_on(Spread *self)
{
    int outcome = 1;
    while (outcome > 0 && self->distance < self->nodes) {
        switch (self->stage) {
        case SEND_NEXT:
            if ((outcome = send_next(self)) > 0)
                self->stage = PROBING;
            break;
        case PROBING:
            if ((outcome = probe(self)) > 0)
                self->stage = RECEIVING;
            break;
        case RECEIVING:
            if ((outcome = complete(self, &self->receiving)) > 0)
                self->stage = SENDING;
            break;
        case SENDING:
            if ((outcome = complete(self, &self->sending)) > 0 && (outcome = keep(self)) > 0)
                self->stage = SEND_NEXT;
            break;
        }
    }
    return outcome;
}

void
spread_begin(Spread *self)
{
    self->distance = 1;
    self->stage = SEND_NEXT;
    self->error = 0;
    atomic_store_explicit(&self->over, self->nodes == 1, memory_order_release);
}

int
spread_pass(Spread *self)
{
    if (atomic_load_explicit(&self->over, memory_order_acquire))
        return 1;
    if (atomic_flag_test_and_set_explicit(&self->busy, memory_order_acquire))
        return 0;
    int over = atomic_load_explicit(&self->over, memory_order_relaxed);
    if (!over && round_on(self) != 0) {
        over = 1;
        atomic_store_explicit(&self->over, 1, memory_order_release);
    }
    atomic_flag_clear_explicit(&self->busy, memory_order_release);
    return over;
}

int
spread_run(Spread *self, double seconds, double spin_s)
{
    double now = now_s(), spin_end = now + spin_s, end = now + seconds;
    int over;
    while (!(over = spread_pass(self)) && now < end) {
        now = now < spin_end ? now_s() : give_core(now);
    }
    return over;
}

/* For Python */

static PyObject *
outcome(const Spread *self)
{
    if (!atomic_load_explicit(&self->over, memory_order_acquire))
        Py_RETURN_FALSE;
    if (self->error == INT_MAX)
        return PyErr_NoMemory();
    if (self->error)
        return network_raise(self->error);
    Py_RETURN_TRUE;
}

static PyObject *
Spread_advance(Spread *self, PyObject *unused)
{
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    spread_pass(self);
    Py_END_ALLOW_THREADS
    return outcome(self);
}

static PyObject *
Spread_run(Spread *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"seconds", "spin_s", NULL};
    double seconds, spin_s = 0.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "d|$d:run", names, &seconds, &spin_s))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    spread_run(self, seconds, spin_s);
    Py_END_ALLOW_THREADS
    return outcome(self);
}

static PyObject *
Spread_data(Spread *self, void *closure)
{
    (void)closure;
    return PyBytes_FromStringAndSize(self->said.data, self->said.length);
}

static PyObject *
Spread_awaited(Spread *self, void *closure)
{
    (void)closure;
    if (atomic_load_explicit(&self->over, memory_order_acquire))
        Py_RETURN_NONE;
    return PyLong_FromLong(leader(self, -self->distance));
}

Spread *
new_spread(PyTypeObject *type, Network *network, PyObject *leaders, int64_t node, int channel)
{
    PyObject *ranks = PySequence_Tuple(leaders);
    if (ranks == NULL)
        return NULL;
    int64_t nodes = PyTuple_GET_SIZE(ranks);
    Spread *self = NULL;
    if (node < 0 || node >= nodes || channel < 0)
        refused("node must be one of those that have a leader, channel not below 0");
    else
        self = (Spread *)type->tp_alloc(type, 0);
    if (self != NULL && (self->leaders = PyMem_Calloc((size_t)nodes, sizeof *self->leaders)) == NULL) {
        Py_CLEAR(self);
        PyErr_NoMemory();
    }
    if (self != NULL) {
        self->network = (Network *)Py_NewRef(network);
        self->node = node, self->nodes = nodes, self->channel = channel;
        atomic_flag_clear(&self->busy);
        for (int64_t i = 0; i < nodes; ++i)
            self->leaders[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(ranks, i));
        if (PyErr_Occurred())
            Py_CLEAR(self);
    }
    Py_DECREF(ranks);
    return self;
}

static PyObject *
Spread_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"network", "leaders", "node", "channel", "said", NULL};
    PyObject *network, *leaders;
    long long node;
    int channel;
    Py_buffer said;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOLiy*:Spread", names, &network, &leaders, &node,
                                     &channel, &said))
        return NULL;
    State *state = PyType_GetModuleState(type);
    Spread *self = NULL;
    if (is_of_type(network, state->network, 0, "network"))
        self = new_spread(type, (Network *)network, leaders, node, channel);
    if (self != NULL) {
        char *to = bytes_more(&self->said, said.len);
        if (to == NULL) {
            Py_CLEAR(self);
            PyErr_NoMemory();
        }
        else {
            memcpy(to, said.buf, (size_t)said.len);
            spread_begin(self);
        }
    }
    PyBuffer_Release(&said);
    return (PyObject *)self;
}

static void
Spread_dealloc(Spread *self)
{
    PyTypeObject *type = Py_TYPE(self);
    /* MPI still reads and writes the memory of messages that were given up: then it is never freed. */
    if (self->under_way == 0) {
        PyMem_RawFree(self->said.data);
        PyMem_RawFree(self->coming.data);
    }
    PyMem_Free(self->leaders);
    Py_XDECREF(self->network);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef spread_methods[] = {
    {"advance", (PyCFunction)Spread_advance, METH_NOARGS, NULL},
    {"run", (PyCFunction)(void (*)(void))Spread_run, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef spread_getset[] = {
    {"data", (getter)Spread_data, NULL, NULL, NULL},
    {"awaited", (getter)Spread_awaited, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot spread_slots[] = {
    {Py_tp_doc, "What one leader says, on its way to all of them."},
    {Py_tp_new, Spread_new},
    {Py_tp_dealloc, Spread_dealloc},
    {Py_tp_methods, spread_methods},
    {Py_tp_getset, spread_getset},
    {0, NULL},
};

static PyType_Spec spread_spec = {
    .name = "hpccoll._native._core.Spread",
    .basicsize = sizeof(Spread),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = spread_slots,
};

int
add_spread(PyObject *module)
{
    State *state = PyModule_GetState(module);
    return add_type(module, &spread_spec, &state->spread);
}
