/* How the ranks of several nodes agree on a known call: runtime/agreement.py in C, with the same messages and the
 * same words in the control segment.
 *
 *     member   arrived ->                                                                     verdict
 *     leader   all arrived, the same -> spread: fingerprint and payload of the node -> put together, publish
 *
 * An entry of what is spread (runtime/verdict.py): node 4 | length 4 | fingerprint 48 | 0 4 | payload */

#include "repeats.h"

#include <string.h>

#define ENTRY_HEAD 8
#define BODY_HEAD (FINGERPRINT_BYTES + 4)

/* Of a node's payload. */
static int64_t
bytes_of_node(const Repeats *self, const Known *known, int64_t node)
{
    switch (known->travel) {
    case REDUCED:
        return known->each;
    case GATHERED:
        return known->each * (self->starts[node + 1] - self->starts[node]);
    case FROM_ROOT:
        return self->node_of[known->key.root] == node ? known->each : 0;
    default:
        return 0;
    }
}

/* One payload after the other into a target, which may be the first of them.  A loop of C cannot fail. */
static void
combine_into(const Known *known, const char *part, char *target, int first)
{
    PyObject *error = NULL;
    if (first)
        memmove(target, part, (size_t)known->each);
    else
        kernel_combine(known->kernel, target, part, target, known->each / known->itemsize, &error);
}

static void
take_node_payload(const Repeats *self, const Known *known, int64_t half, char *to)
{
    for (int64_t member = 0; member < self->members; ++member) {
        const char *given = slot_of(self, half, member) + self->head_bytes;
        if (known->travel == REDUCED)
            combine_into(known, given, to, member == 0);
        else if (known->travel == GATHERED)
            memcpy(to + member * known->each, given, (size_t)known->each);
        else if (known->travel == FROM_ROOT && self->node_of[known->key.root] == self->node
                 && self->member_of[known->key.root] == member)
            memcpy(to, given, (size_t)known->each);
    }
}

int
begin_spread(Repeats *self, const Known *known, int64_t half)
{
    State *state = PyType_GetModuleState(Py_TYPE(self));
    if (self->spread == NULL)
        self->spread = new_spread(state->spread, self->network, self->leaders, self->node,
                                  self->agreement_channel);
    if (self->spread == NULL)
        return -1;
    int64_t nbytes = bytes_of_node(self, known, self->node);
    int32_t head[2] = {(int32_t)self->node, (int32_t)(BODY_HEAD + nbytes)};
    self->spread->said.length = 0;
    char *to = bytes_more(&self->spread->said, ENTRY_HEAD + BODY_HEAD + nbytes);
    if (to == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(to, head, sizeof head);
    memcpy(to + ENTRY_HEAD, slot_of(self, half, self->me), FINGERPRINT_BYTES);
    memset(to + ENTRY_HEAD + FINGERPRINT_BYTES, 0, 4);
    take_node_payload(self, known, half, to + ENTRY_HEAD + BODY_HEAD);
    spread_begin(self->spread);
    return 0;
}

/* Finds the payload of every node; 0 where one has said something else. */
static int
find_parts(const Repeats *self, const Known *known)
{
    const Bytes *said = &self->spread->said;
    const char *own = said->data + ENTRY_HEAD;
    int64_t found = 0;
    memset(self->parts, 0, (size_t)self->nodes * sizeof *self->parts);
    for (int64_t at = 0; at < said->length; ++found) {
        int32_t head[2];
        uint32_t calls;
        if (said->length - at < ENTRY_HEAD + BODY_HEAD)
            return 0;
        memcpy(head, said->data + at, sizeof head);
        const char *body = said->data + at + ENTRY_HEAD;
        memcpy(&calls, body + FINGERPRINT_BYTES, sizeof calls);
        if (head[0] < 0 || head[0] >= self->nodes || self->parts[head[0]] != NULL || calls != 0
            || head[1] != BODY_HEAD + bytes_of_node(self, known, head[0])
            || head[1] > said->length - at - ENTRY_HEAD || memcmp(body, own, FINGERPRINT_BYTES) != 0)
            return 0;
        self->parts[head[0]] = body + BODY_HEAD;
        at += ENTRY_HEAD + head[1];
    }
    return found == self->nodes;
}

static void
put_together(const Repeats *self, const Known *known, char *result)
{
    for (int64_t node = 0; node < self->nodes; ++node) {
        const char *part = self->parts[node];
        if (known->travel == REDUCED)
            combine_into(known, part, result, node == 0);
        else if (known->travel == FROM_ROOT && self->node_of[known->key.root] == node)
            memcpy(result, part, (size_t)known->each);
        for (int64_t i = self->starts[node]; known->travel == GATHERED && i < self->starts[node + 1]; ++i)
            memcpy(result + self->ranks[i] * known->each, part + (i - self->starts[node]) * known->each,
                   (size_t)known->each);
    }
}

int
publish(Repeats *self, const Known *known, int64_t half, uint64_t wanted)
{
    if (self->spread->error || !find_parts(self, known))
        return 0;
    char *result = result_of(self, half);
    put_together(self, known, result + self->head_bytes);
    memset(result, 0, 4); /* no problem */
    store_word(self->verdict, wanted);
    return 1;
}

/* The leader's part; see agree_between_nodes. */
static PyObject *
lead(Repeats *self, const Known *known, uint64_t wanted, int64_t half)
{
    if (!wait_for_words(self, self->arrived, self->members, self->stride, wanted)
        || !all_call_the_same(self, half))
        Py_RETURN_NONE;
    if (begin_spread(self, known, half) < 0)
        return NULL;
    int over;
    Py_BEGIN_ALLOW_THREADS
    over = spread_run(self->spread, self->patience_s, self->spin_s);
    Py_END_ALLOW_THREADS
    if (over && publish(self, known, half, wanted))
        return Py_NewRef(Py_True);
    PyObject *begun = (PyObject *)self->spread;
    self->spread = NULL;
    return begun;
}

PyObject *
agree_between_nodes(Repeats *self, const Known *known, int64_t sequence, int64_t half)
{
    uint64_t wanted = ARRIVALS_PER_CALL * (uint64_t)sequence + 1;
    if (self->me == 0)
        return lead(self, known, wanted, half);
    uint32_t problem = 1;
    if (wait_for_words(self, self->verdict, 1, 1, wanted))
        memcpy(&problem, result_of(self, half), sizeof problem);
    return Py_NewRef(problem ? Py_None : Py_True);
}

/* Where the nodes are */

static int
take_ranks(Repeats *self, PyObject *ranks, int64_t node, int64_t size)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ranks); ++i) {
        long rank = PyLong_AsLong(PyTuple_GET_ITEM(ranks, i));
        if (PyErr_Occurred())
            return -1;
        if (rank < 0 || rank >= size)
            return refused("nodes must hold the ranks below their number");
        self->ranks[self->starts[node] + i] = (int)rank;
        self->node_of[rank] = (int)node;
        self->member_of[rank] = (int)i;
    }
    return 0;
}

static int
take_tables(Repeats *self, PyObject *nodes)
{
    int64_t size = 0;
    for (int64_t node = 0; node < self->nodes; ++node) {
        PyObject *ranks = PyTuple_GET_ITEM(nodes, node);
        if (!PyTuple_CheckExact(ranks) || PyTuple_GET_SIZE(ranks) == 0)
            return refused("each node must be a tuple of ranks");
        size += PyTuple_GET_SIZE(ranks);
    }
    self->starts = PyMem_Calloc((size_t)self->nodes + 1, sizeof *self->starts);
    self->ranks = PyMem_Calloc(3 * (size_t)size, sizeof *self->ranks);
    self->parts = PyMem_Calloc((size_t)self->nodes, sizeof *self->parts);
    self->leaders = PyTuple_New(self->nodes);
    if (self->starts == NULL || self->ranks == NULL || self->parts == NULL || self->leaders == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->node_of = self->ranks + size, self->member_of = self->ranks + 2 * size;
    for (int64_t node = 0; node < self->nodes; ++node) {
        PyObject *ranks = PyTuple_GET_ITEM(nodes, node);
        self->starts[node + 1] = self->starts[node] + PyTuple_GET_SIZE(ranks);
        if (take_ranks(self, ranks, node, size) < 0)
            return -1;
        PyTuple_SET_ITEM(self->leaders, node, Py_NewRef(PyTuple_GET_ITEM(ranks, 0)));
    }
    return 0;
}

int
take_nodes(Repeats *self, PyObject *nodes, long long node, long long verdict, long long results,
           long long result_bytes)
{
    if (!PyTuple_CheckExact(nodes) || PyTuple_GET_SIZE(nodes) == 0 || node < 0
        || node >= PyTuple_GET_SIZE(nodes))
        return refused("nodes must be a tuple of tuples of ranks, node one of them");
    self->node = node, self->nodes = PyTuple_GET_SIZE(nodes);
    if (self->nodes == 1)
        return 0;
    if (self->agreement_channel < 0 || result_bytes < self->head_bytes || results < 0
        || result_bytes > INT64_MAX / 4 || results > self->control.len - 2 * result_bytes || verdict < 0
        || verdict >= self->control.len / (long long)sizeof(word_t))
        return refused("the control segment has not a verdict and two results");
    self->verdict = self->words + verdict;
    self->results = (char *)self->control.buf + results;
    self->result_bytes = result_bytes;
    return take_tables(self, nodes);
}
