/* Group: the staging segment as one member sees it, as transports/slots.py describes it, and the areas of memory
 * outside it that all members reach (memory/areas.py). */

#define _GNU_SOURCE /* process_vm_readv */

#include "slots.h"

#include "copy.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>
#include <sys/uio.h>

#define LINE_WORDS 8
#define LINE_BYTES 64
#define OFFER_LINES 2
#define LEAST_COLD (2 << 20)

/* Counters and slots */

static word_t *
counter(const Group *self, int which, int64_t member)
{
    return self->words + (which * self->members + member) * LINE_WORDS;
}

void
group_mark(Group *self, int which, uint64_t block)
{
    store_word(counter(self, which, self->me), block + 1);
}

int
group_all_reached(const Group *self, int which, uint64_t value)
{
    return first_word_below(counter(self, which, 0), self->members, LINE_WORDS, value, 0) < 0;
}

int
group_one_reached(const Group *self, int which, int64_t member, uint64_t value)
{
    return load_word(counter(self, which, member)) >= value;
}

/* In the second word of the line of ARRIVED: the block, and in the lower half the bytes. */
void
group_tell_filled(Group *self, uint64_t block, int64_t nbytes)
{
    store_word(counter(self, ARRIVED, self->me) + 1, block << 32 | (uint64_t)nbytes);
}

int64_t
group_filled(const Group *self, uint64_t block, int64_t member)
{
    uint64_t word = load_word(counter(self, ARRIVED, member) + 1);
    return word >> 32 == (block & UINT32_MAX) ? (int64_t)(word & UINT32_MAX) : 0;
}

int
group_is_free(const Group *self, uint64_t block)
{
    return group_all_reached(self, LEFT, block == 0 ? 0 : block - 1);
}

char *
group_slot(const Group *self, uint64_t block, int64_t member)
{
    return self->slots + ((int64_t)(block % 2) * self->members + member) * self->slot_bytes;
}

int64_t
group_turn(uint64_t block, int64_t nbytes, int64_t room)
{
    int64_t lines = (nbytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    return lines == 0 || lines > room ? 0 : (int64_t)(block / 2 % (uint64_t)(room / lines)) * lines;
}

/* Offers: memory of a member that the others read and write where it is */

static int64_t *
offer_line(const Group *self, uint64_t block, int64_t member)
{
    return self->offers + ((int64_t)(block % 2) * self->members + member) * LINE_WORDS;
}

Offer
group_source(const Group *self, uint64_t block, int64_t member)
{
    const int64_t *line = offer_line(self, block, member);
    return (Offer){line[0], line[1]};
}

Offer
group_target(const Group *self, uint64_t block, int64_t member)
{
    const int64_t *line = offer_line(self, block, member);
    return (Offer){line[2], line[3]};
}

void
group_offer(Group *self, uint64_t block, Offer source, Offer target)
{
    int64_t *line = offer_line(self, block, self->me);
    line[0] = source.area;
    line[1] = source.offset;
    line[2] = target.area;
    line[3] = target.offset;
}

/* Index of the first area whose number is not below. */
static Py_ssize_t
area_index(const Group *self, int64_t number)
{
    Py_ssize_t low = 0, high = self->area_count;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (self->areas[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

char *
group_offered(Group *self, int64_t member, Offer offer, int64_t start, int64_t nbytes)
{
    char *found = NULL;
    pthread_mutex_lock(&self->lock);
    int64_t number = offer.area > 0 ? offer.area - 1 : -1; /* what others have written may be anything */
    Py_ssize_t index = area_index(self, number);
    if (index < self->area_count && self->areas[index].number == number) {
        const Py_buffer *part = self->areas[index].parts + member;
        if (offer.offset >= 0 && offer.offset <= part->len && start <= part->len - offer.offset
            && nbytes <= part->len - offer.offset - start)
            found = (char *)part->buf + offer.offset + start;
    }
    pthread_mutex_unlock(&self->lock);
    return found;
}

Offer
group_locate(Group *self, const char *at, int64_t nbytes)
{
    Offer found = {0, 0};
    uintptr_t begin = (uintptr_t)at, end = begin + (uintptr_t)nbytes;
    for (Py_ssize_t i = 0; i < self->area_count; ++i) {
        const Py_buffer *part = self->areas[i].parts + self->me;
        uintptr_t start = (uintptr_t)part->buf;
        if (begin >= start && end <= start + (uintptr_t)part->len)
            found = (Offer){self->areas[i].number + 1, (int64_t)(begin - start)};
    }
    return found;
}

/* Memory of other processes */

static int
read_process(pid_t process, int64_t address, int64_t nbytes, char *out)
{
    while (nbytes > 0) {
        struct iovec here = {out, (size_t)nbytes}, there = {(void *)(uintptr_t)address, (size_t)nbytes};
        ssize_t got = process_vm_readv(process, &here, 1, &there, 1, 0);
        if (got <= 0)
            return -1;
        out += got, address += got, nbytes -= got;
    }
    return 0;
}

/* Past the end of all addresses it is one that is not there. */
static int64_t
address_at(Offer offer, int64_t start)
{
    return (int64_t)((uint64_t)offer.offset + (uint64_t)start);
}

int
group_push(const Group *self, int64_t member, Offer offer, int64_t start, int64_t nbytes, const char *from)
{
    int64_t address = address_at(offer, start);
    while (nbytes > 0 && self->processes != NULL) {
        struct iovec here = {(void *)from, (size_t)nbytes}, there = {(void *)(uintptr_t)address, (size_t)nbytes};
        ssize_t put = process_vm_writev(self->processes[member], &here, 1, &there, 1, 0);
        if (put <= 0)
            return -1;
        from += put, address += put, nbytes -= put;
    }
    return nbytes > 0 ? -1 : 0;
}

int
group_fetch(const Group *self, int64_t member, Offer offer, int64_t start, int64_t nbytes, char *out)
{
    return self->processes == NULL ? -1
                                   : read_process(self->processes[member], address_at(offer, start), nbytes, out);
}

int
group_is_reached(const Group *self, int64_t nbytes)
{
    return self->processes != NULL && nbytes >= self->least_in_process;
}

Offer
group_reachable(Group *self, const char *at, int64_t nbytes)
{
    Offer found = group_locate(self, at, nbytes);
    if (found.area != 0 || !group_is_reached(self, nbytes))
        return found;
    /* Some memory cannot be read this way, as what drivers map: its owner asks before others do. */
    char probe[2];
    pid_t own = self->processes[self->me];
    if (read_process(own, (intptr_t)at, 1, probe) < 0 || read_process(own, (intptr_t)at + nbytes - 1, 1, probe) < 0)
        return found;
    return (Offer){IN_PROCESS, (intptr_t)at};
}

int
group_is_cold(Group *self, const char *at)
{
    int64_t share = self->cache_bytes / self->members;
    Written *one = self->written, *oldest = self->written;
    for (; one < self->written + MOST_WRITTEN && one->at != at; ++one)
        if (one->moved < oldest->moved)
            oldest = one;
    int known = one < self->written + MOST_WRITTEN;
    int is_cold = !known || self->moved - one->moved > share;
    *(known ? one : oldest) = (Written){at, self->moved};
    return is_cold;
}

static PyObject *
Group_use_processes(Group *self, PyObject *args)
{
    PyObject *sequence;
    long long least;
    int has_cores;
    if (!PyArg_ParseTuple(args, "OLp:use_processes", &sequence, &least, &has_cores))
        return NULL;
    if (self->processes != NULL || PySequence_Size(sequence) != self->members) {
        if (!PyErr_Occurred())
            refused("there must be a process for each member, told once");
        return NULL;
    }
    pid_t *processes = PyMem_RawMalloc((size_t)self->members * sizeof *processes);
    int failed = processes == NULL;
    if (failed)
        PyErr_NoMemory();
    for (int64_t i = 0; i < self->members && !failed; ++i) {
        PyObject *item = PySequence_GetItem(sequence, i);
        processes[i] = item == NULL ? -1 : (pid_t)PyLong_AsLong(item);
        failed = PyErr_Occurred() != NULL;
        Py_XDECREF(item);
    }
    if (failed) {
        PyMem_RawFree(processes);
        return NULL;
    }
    self->processes = processes;
    self->least_in_process = least;
    self->has_cores = has_cores;
    Py_RETURN_NONE;
}

static PyObject *
bytes_of_process(PyObject *module, PyObject *args)
{
    (void)module;
    long long process, address;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "LLn:bytes_of_process", &process, &address, &nbytes))
        return NULL;
    if (nbytes < 0) {
        refused("there is no number of bytes below 0");
        return NULL;
    }
    PyObject *found = PyBytes_FromStringAndSize(NULL, nbytes);
    if (found != NULL && read_process((pid_t)process, address, nbytes, PyBytes_AS_STRING(found)) < 0) {
        Py_DECREF(found);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return found;
}

/* Areas: changed with the GIL, looked up without it */

static void
free_parts(Py_buffer *parts, int64_t members)
{
    for (int64_t i = 0; i < members; ++i)
        PyBuffer_Release(parts + i);
    PyMem_Free(parts);
}

static Py_buffer *
taken_parts(PyObject *sequence, int64_t members)
{
    if (PySequence_Size(sequence) != members) {
        if (!PyErr_Occurred())
            refused("an area has not a part for each member");
        return NULL;
    }
    Py_buffer *parts = PyMem_Calloc((size_t)members, sizeof *parts);
    if (parts == NULL)
        PyErr_NoMemory();
    for (int64_t i = 0; i < members && parts != NULL; ++i) {
        PyObject *part = PySequence_GetItem(sequence, i);
        if (part == NULL || PyObject_GetBuffer(part, parts + i, PyBUF_WRITABLE) < 0) {
            free_parts(parts, members);
            parts = NULL;
        }
        Py_XDECREF(part);
    }
    return parts;
}

static PyObject *
Group_add_area(Group *self, PyObject *args)
{
    long long number;
    PyObject *sequence;
    if (!PyArg_ParseTuple(args, "LO:add_area", &number, &sequence))
        return NULL;
    Py_buffer *parts = taken_parts(sequence, self->members); /* meanwhile another thread may add or drop an area */
    if (parts == NULL)
        return NULL;
    Py_ssize_t index = area_index(self, number), count = self->area_count;
    if (number < 0 || number == INT64_MAX || (index < count && self->areas[index].number == number)) {
        free_parts(parts, self->members);
        refused("the number of an area is taken, or below 0");
        return NULL;
    }
    pthread_mutex_lock(&self->lock);
    Area *areas = PyMem_RawRealloc(self->areas, ((size_t)count + 1) * sizeof *areas);
    if (areas != NULL) {
        memmove(areas + index + 1, areas + index, (size_t)(count - index) * sizeof *areas);
        areas[index] = (Area){number, parts};
        self->areas = areas;
        self->area_count = count + 1;
    }
    pthread_mutex_unlock(&self->lock);
    if (areas == NULL) {
        free_parts(parts, self->members);
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

static PyObject *
Group_drop_area(Group *self, PyObject *argument)
{
    long long number = PyLong_AsLongLong(argument);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    Py_ssize_t index = area_index(self, number);
    if (index == self->area_count || self->areas[index].number != number) {
        refused("there is no area of this number");
        return NULL;
    }
    Py_buffer *parts = self->areas[index].parts;
    pthread_mutex_lock(&self->lock);
    self->area_count -= 1;
    memmove(self->areas + index, self->areas + index + 1,
            (size_t)(self->area_count - index) * sizeof *self->areas);
    pthread_mutex_unlock(&self->lock);
    free_parts(parts, self->members);
    Py_RETURN_NONE;
}

/* The object */

static int
check_segment(const Group *self)
{
    if (self->members < 1 || self->me < 0 || self->me >= self->members)
        return refused("me is no member");
    if (self->slot_bytes < 1 || self->slot_bytes > INT64_MAX / 2 / self->members
        || self->data.len < 2 * self->members * self->slot_bytes)
        return refused("data has not two slots for each member");
    if (self->head.len / (Py_ssize_t)sizeof(word_t) / LINE_WORDS < (COUNTERS + OFFER_LINES) * self->members
        || (uintptr_t)self->head.buf % sizeof(word_t) != 0)
        return refused("head must be five aligned cache lines for each member");
    return 0;
}

static PyObject *
Group_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"me", "members", "head", "data", "slot_bytes", NULL};
    Py_ssize_t me, members, slot_bytes;
    PyObject *head, *data;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nnOOn:Group", names, &me, &members, &head, &data,
                                     &slot_bytes))
        return NULL;
    Group *self = (Group *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->me = me;
    self->members = members;
    self->slot_bytes = slot_bytes;
    self->cache_bytes = last_cache_bytes();
    self->least_cold = LEAST_COLD;
    self->has_lock = pthread_mutex_init(&self->lock, NULL) == 0;
    if (!self->has_lock)
        PyErr_NoMemory();
    if (!self->has_lock || PyObject_GetBuffer(head, &self->head, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(data, &self->data, PyBUF_WRITABLE) < 0 || check_segment(self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->words = self->head.buf;
    self->offers = (int64_t *)self->head.buf + COUNTERS * self->members * LINE_WORDS;
    self->slots = self->data.buf;
    return (PyObject *)self;
}

/* Not for the garbage collector, for the reason given at Flags_dealloc. */
static void
Group_dealloc(Group *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; i < self->area_count; ++i)
        free_parts(self->areas[i].parts, self->members);
    PyMem_RawFree(self->areas);
    PyMem_RawFree(self->processes);
    PyBuffer_Release(&self->head);
    PyBuffer_Release(&self->data);
    if (self->has_lock)
        pthread_mutex_destroy(&self->lock);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef group_methods[] = {
    {"add_area", (PyCFunction)Group_add_area, METH_VARARGS, NULL},
    {"drop_area", (PyCFunction)Group_drop_area, METH_O, NULL},
    {"use_processes", (PyCFunction)Group_use_processes, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef group_members[] = {
    {"cache_bytes", T_LONGLONG, offsetof(Group, cache_bytes), 0, "What the members have for what they read and write."},
    {"least_cold", T_LONGLONG, offsetof(Group, least_cold), 0, "Longer results go past the caches if not in them."},
    {"past", T_LONGLONG, offsetof(Group, past), READONLY, "Calls whose results went past the caches."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot group_slots[] = {
    {Py_tp_members, group_members},
    {Py_tp_doc, "One member's end of a staging segment."},
    {Py_tp_new, Group_new},
    {Py_tp_dealloc, Group_dealloc},
    {Py_tp_methods, group_methods},
    {0, NULL},
};

static PyType_Spec group_spec = {
    .name = "hpccoll._native._core.Group",
    .basicsize = sizeof(Group),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = group_slots,
};

int
add_group(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"bytes_of_process", bytes_of_process, METH_VARARGS, NULL},
        {NULL, NULL, 0, NULL},
    };
    State *state = PyModule_GetState(module);
    return add_type(module, &group_spec, &state->group) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
