/* Which calls are known, and what is known of them; see repeats.h.
 *
 * A call is known again by its collective, operator and root, and by dtype and count of its arrays. */

#include "repeats.h"

#include <string.h>

/* Knowing a call again */

static int
see(const Repeats *self, PyObject *object, Sight *sight)
{
    *sight = (Sight){0};
    if (object == Py_None || object == self->in_place)
        return 1;
    const Array *array = (const Array *)object;
    if ((PyObject *)Py_TYPE(object) != self->array_type
        || (array->flags & (C_CONTIGUOUS | ALIGNED)) != (C_CONTIGUOUS | ALIGNED))
        return 0;
    sight->count = 1;
    for (int i = 0; i < array->nd; ++i)
        sight->count *= array->dimensions[i];
    sight->dtype = array->dtype;
    sight->data = array->data;
    sight->writeable = (array->flags & WRITEABLE) != 0;
    return 1;
}

/* The key of a call, without references of its own; 0 where no such call can be known. */
static int
key_of(const Repeats *self, PyObject *collective, PyObject *given, Key *key, Sight *sights)
{
    if (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) != ARGUMENTS + 2)
        return 0;
    PyObject *root = PyTuple_GET_ITEM(given, ARGUMENTS + 1);
    if (!PyLong_CheckExact(root) || !see(self, PyTuple_GET_ITEM(given, 0), sights)
        || !see(self, PyTuple_GET_ITEM(given, 1), sights + 1))
        return 0;
    int overflow;
    *key = (Key){
        .collective = collective,
        .operator = PyTuple_GET_ITEM(given, ARGUMENTS),
        .root = PyLong_AsLongAndOverflow(root, &overflow),
        .dtypes = {sights[0].dtype, sights[1].dtype},
        .counts = {sights[0].count, sights[1].count},
    };
    return !overflow;
}

/* The first of the places that a call of this key may have. */
static Known *
places_of(Repeats *self, const Key *key)
{
    uint64_t mixed = (uintptr_t)key->collective ^ (uintptr_t)key->operator;
    mixed = mixed * 31 + (uint64_t)key->root;
    for (int i = 0; i < ARGUMENTS; ++i)
        mixed = (mixed * 31 + (uint64_t)key->counts[i]) * 31 + (uintptr_t)key->dtypes[i];
    return self->known + (mixed * 0x9e3779b97f4a7c15u >> 32) % (KNOWN / WAYS) * WAYS;
}

static int
same_key(const Key *one, const Key *other)
{
    return one->collective == other->collective && one->operator == other->operator
           && one->root == other->root && one->dtypes[0] == other->dtypes[0]
           && one->dtypes[1] == other->dtypes[1] && one->counts[0] == other->counts[0]
           && one->counts[1] == other->counts[1];
}

/* What the key does not say: results go to memory that may be written, and the arrays lie apart. */
static int
is_right(const Known *known, const Sight *sights)
{
    const char *one = sights[0].data, *other = sights[1].data;
    if (known->writes >= 0 && !sights[known->writes].writeable)
        return 0;
    return one == NULL || other == NULL || one >= other + known->nbytes[1]
           || other >= one + known->nbytes[0];
}

Known *
find_known(Repeats *self, PyObject *collective, PyObject *given, Sight *sights)
{
    Key key;
    if (!key_of(self, collective, given, &key, sights))
        return NULL;
    Known *known = places_of(self, &key);
    for (int way = 0; way < WAYS; ++way, ++known)
        if (known->label != NULL && same_key(&known->key, &key))
            return is_right(known, sights) ? known : NULL;
    return NULL;
}

/* Keeping a call */

/* Adds the calls of one that is dropped to those of its label. */
static int
count_past(Repeats *self, const Known *known)
{
    PyObject *before = PyDict_GetItemWithError(self->past, known->label);
    if (before == NULL && PyErr_Occurred())
        return -1;
    PyObject *total = PyLong_FromLongLong(known->calls + (before == NULL ? 0 : PyLong_AsLongLong(before)));
    int failed = total == NULL || PyDict_SetItem(self->past, known->label, total) < 0;
    Py_XDECREF(total);
    return failed ? -1 : 0;
}

void
drop_known(Known *known)
{
    Known old = *known;
    *known = (Known){0};
    Py_XDECREF(old.key.collective);
    Py_XDECREF(old.key.operator);
    for (int i = 0; i < ARGUMENTS; ++i)
        Py_XDECREF(old.key.dtypes[i]);
    Py_XDECREF(old.label);
    Py_XDECREF(old.kernel);
    Py_XDECREF(old.finish);
    Py_XDECREF(old.program);
    for (int form = 0; form < FORMS; ++form)
        Py_XDECREF(old.meters[form]);
}

/* How many bytes an array has; 0 where it does not give them away. */
static int
has_bytes(PyObject *array, int64_t *nbytes)
{
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return 0;
    }
    *nbytes = view.len;
    PyBuffer_Release(&view);
    return 1;
}

static int
check_known(const Repeats *self, const Known *known, const Sight *sights)
{
    for (int i = 0; i < 2; ++i) {
        int which = i == 0 ? known->reads : known->writes;
        if (which < -1 || which >= ARGUMENTS || (which >= 0 && sights[which].data == NULL))
            return refused("an argument that is read or written is no array");
    }
    if (known->itemsize < 1 || (known->kernel != NULL && known->kernel->itemsize != known->itemsize))
        return refused("itemsize must be at least 1, and that of the kernel");
    if (known->kernel != NULL && known->kernel->loop == NULL)
        return refused("the kernel must be a loop of C");
    if (known->finish != NULL && known->writes < 0)
        return refused("there is nothing to finish");
    if (known->program != NULL)
        return 0; /* its execution checks it */
    int64_t room = self->slot_bytes - self->head_bytes;
    if (known->travel < NO_PAYLOAD || known->travel >= WAYS_TO_TRAVEL || known->each < 0 || known->each > room
        || known->payload < 0 || known->payload > known->each
        || (known->payload > 0 && (known->reads < 0 || known->payload > known->nbytes[known->reads]))
        || (known->travel == REDUCED && known->kernel == NULL)
        || (known->travel == FROM_ROOT && (known->key.root < 0 || known->key.root >= ranks_of(self))))
        return refused("the payload does not fit");
    if (self->nodes > 1) {
        int64_t times = known->travel == GATHERED ? ranks_of(self) : 1;
        if (known->each > (self->result_bytes - self->head_bytes) / times)
            return refused("the payload of all does not fit");
    }
    if (known->writes >= 0
        && (known->first < 0 || known->last <= known->first || known->last > ranks_of(self)
            || known->piece < 0 || known->offset < 0 || known->piece > known->each - known->offset
            || known->piece > known->nbytes[known->writes] / (known->kernel == NULL ? known->last - known->first : 1)))
        return refused("the results do not fit");
    return 0;
}

/* Where a call is kept: where it is already, or nothing is, or what was made least often since others were kept. */
static Known *
place_for(Repeats *self, const Key *key)
{
    Known *first = places_of(self, key), *best = first;
    for (Known *known = first; known < first + WAYS; ++known)
        if (known->label != NULL && same_key(&known->key, key))
            return known;
    for (Known *known = first; known < first + WAYS; ++known) {
        if (known->label == NULL)
            return known;
        if (known->use < best->use)
            best = known;
    }
    for (Known *known = first; known < first + WAYS; ++known)
        known->use /= 2;
    return best;
}

PyObject *
Repeats_keep(Repeats *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"collective", "given",   "label",  "fingerprint", "agrees",  "reads",
                            "writes",     "itemsize", "kernel", "finish",     "payload", "piece",
                            "offset",     "first",   "last",   "program",     "travel",  "each",
                            "wire",       "plan",    "blocking", "started", "counted", NULL};
    PyObject *collective, *given, *label, *kernel, *finish, *program;
    Py_buffer fingerprint;
    long long itemsize, payload, piece, offset, first, last, each;
    int travel;
    const char *wire;
    PyObject *meters[FORMS] = {Py_None, Py_None};
    long long counted[] = {0, 0, 0};
    Known known = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOy*piiLOOLLLLLOiLs|IOO(LLL):keep", names, &collective, &given,
                                     &label, &fingerprint, &known.agrees, &known.reads, &known.writes,
                                     &itemsize, &kernel, &finish, &payload, &piece,
                                     &offset, &first, &last, &program, &travel, &each, &wire, &known.plan,
                                     &meters[BLOCKING], &meters[STARTED], counted, counted + 1, counted + 2))
        return NULL;
    State *state = PyType_GetModuleState(Py_TYPE(self));
    int failed = fingerprint.len != FINGERPRINT_BYTES ? refused("a fingerprint has 48 bytes") : 0;
    if (!failed)
        memcpy(known.fingerprint, fingerprint.buf, FINGERPRINT_BYTES);
    PyBuffer_Release(&fingerprint);
    if (failed || !is_of_type(kernel, state->kernel, 1, "kernel")
        || !is_of_type(program, state->program, 1, "program")
        || !is_of_type(meters[BLOCKING], state->meter, 1, "blocking")
        || !is_of_type(meters[STARTED], state->meter, 1, "started"))
        return NULL;
    Sight sights[ARGUMENTS];
    if (!key_of(self, collective, given, &known.key, sights))
        Py_RETURN_FALSE;
    known.kernel = kernel == Py_None ? NULL : (Kernel *)kernel;
    known.finish = finish == Py_None ? NULL : finish;
    known.program = program == Py_None ? NULL : (Program *)program;
    known.itemsize = itemsize, known.payload = payload, known.piece = piece, known.offset = offset;
    known.first = first, known.last = last, known.travel = (Travel)travel, known.each = each;
    int named = wire_named(wire);
    if (named < 0) {
        refused("wire must be bfloat16, float16 or empty");
        return NULL;
    }
    known.wire = (Wire)named;
    for (int form = 0; form < FORMS; ++form)
        known.meters[form] = meters[form] == Py_None ? NULL : (Meter *)meters[form];
    known.counted = (Counted){.nbytes = counted[0], .inside = counted[1], .between = counted[2]};
    for (int i = 0; i < ARGUMENTS; ++i)
        if (sights[i].data != NULL && !has_bytes(PyTuple_GET_ITEM(given, i), known.nbytes + i))
            Py_RETURN_FALSE;
    if (check_known(self, &known, sights) < 0)
        return NULL;
    if (queued(self) > 0 || !is_right(&known, sights))
        Py_RETURN_FALSE; /* what was started refers to those that are kept */
    Known *place = place_for(self, &known.key);
    if (place->label != NULL && count_past(self, place) < 0)
        return NULL;
    known.label = label;
    Py_INCREF(known.key.collective);
    Py_INCREF(known.key.operator);
    for (int i = 0; i < ARGUMENTS; ++i)
        Py_XINCREF(known.key.dtypes[i]);
    Py_INCREF(known.label);
    Py_XINCREF(known.kernel);
    Py_XINCREF(known.finish);
    Py_XINCREF(known.program);
    for (int form = 0; form < FORMS; ++form)
        Py_XINCREF(known.meters[form]);
    drop_known(place);
    *place = known;
    Py_RETURN_TRUE;
}

static int
forget_all(Repeats *self)
{
    drop_started(self);
    for (int i = 0; i < KNOWN; ++i) {
        if (self->known[i].label != NULL && count_past(self, self->known + i) < 0)
            return -1;
        drop_known(self->known + i);
    }
    return 0;
}

PyObject *
Repeats_forget(Repeats *self, PyObject *unused)
{
    (void)unused;
    return forget_all(self) < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *
Repeats_calls(Repeats *self, PyObject *unused)
{
    (void)unused;
    PyObject *found = PyDict_Items(self->past);
    for (int i = 0; i < KNOWN && found != NULL; ++i) {
        const Known *known = self->known + i;
        if (known->label == NULL)
            continue;
        PyObject *pair = Py_BuildValue("OL", known->label, (long long)known->calls);
        if (pair == NULL || PyList_Append(found, pair) < 0)
            Py_CLEAR(found);
        Py_XDECREF(pair);
    }
    return found;
}
