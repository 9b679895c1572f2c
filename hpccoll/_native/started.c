/* Known calls that were started and are not over; see repeats.h.
 *
 * They wait in a queue and have their turns in the order of the calls:
 *
 *     Repeats.start   into the queue; a turn
 *     a turn          of the first: arrive, if it has not.  All have arrived, and call the same?  Take the results that
 *                     have travelled along, or run its program as far as it goes.  Over?  The next
 *     Started.wait    turns, for a moment
 *
 * Of several nodes the leaders tell one another before a call is agreed on, as in nodes.c.  What takes longer is taken
 * over by Python, with all that is in the queue: it has the deadlines and the words for errors. */

#include "repeats.h"

#include <structmember.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

/* Naps between looks of who has nothing else to do: short after something was found, longer each time that others have
 * done it, from whom a look takes the core. */
#define NAP_NS 20000
#define LONGEST_NAP_NS 1000000
#define ELSEWHERE_NS 20000

static Started *
first_of(const Repeats *self)
{
    return self->queue[self->queue_head % MOST_STARTED];
}

static uint64_t
arrival_of(const Started *call)
{
    return ARRIVALS_PER_CALL * (uint64_t)call->sequence + 1;
}

static void
touch(Repeats *self)
{
    atomic_store_explicit(&self->touched_ns, now_ns(), memory_order_relaxed);
}

/* Calls what was to be called at the end; 0, or -1 with an error. */
static int
tell(Started *call)
{
    PyObject *action = call->action;
    call->action = NULL;
    if (action == NULL)
        return 0;
    PyObject *result = PyObject_CallNoArgs(action);
    Py_DECREF(action);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* For whoever looks without the GIL. */
static void
show_first(Repeats *self)
{
    const Started *first = queued(self) > 0 ? first_of(self) : NULL;
    int is_at_work = first != NULL && (first->execution != NULL || first->spread != NULL);
    store_word(&self->awaited, first == NULL ? 0 : is_at_work ? ANYTHING : arrival_of(first));
}

/* Out of the queue, which gives its reference away. */
static Started *
take_first(Repeats *self)
{
    Started *call = first_of(self);
    self->queue[self->queue_head++ % MOST_STARTED] = NULL;
    call->known = NULL;
    show_first(self);
    return call;
}

static void
let_work_go(Started *call)
{
    Py_CLEAR(call->spread);
    Py_CLEAR(call->execution);
    for (int which = 0; which < 2; ++which)
        Py_CLEAR(call->scratch[which]);
}

static int
finish_first(Repeats *self)
{
    Started *call = first_of(self);
    Known *known = call->known;
    end_call(call->record, known, STARTED, (int64_t)(1e9 * call->began_s), call->agreed_ns);
    if (call->execution != NULL)
        keep_scratch(self, call->scratch);
    take_first(self);
    call->done = 1;
    let_work_go(call);
    Py_CLEAR(call->given);
    Py_CLEAR(call->prepare);
    int failed = tell(call);
    Py_DECREF(call);
    return failed;
}

/* Whether a rank hears from its leader that all have agreed. */
static int
has_leader(const Repeats *self)
{
    return self->nodes > 1 && self->me != 0;
}

/* The first of those words that say that a call is agreed on, or can be led: how many there are, `stride` apart. */
static word_t *
words_awaited(const Repeats *self, int64_t *count)
{
    *count = has_leader(self) ? 1 : self->members;
    return has_leader(self) ? self->verdict : self->arrived;
}

/* The leader's turn, once its node has come. */
static int
leaders_agree(Repeats *self, Started *call)
{
    if (call->spread == NULL) {
        if (begin_spread(self, call->known, call->half) < 0) {
            PyErr_Clear(); /* Python will come to the same */
            return 0;
        }
        call->spread = (Spread *)Py_NewRef(self->spread);
    }
    int over;
    Py_BEGIN_ALLOW_THREADS
    over = spread_pass(call->spread);
    Py_END_ALLOW_THREADS
    return over && call->known != NULL && publish(self, call->known, call->half, arrival_of(call));
}

/* All have come, and call the same. */
static int
have_agreed(Repeats *self, Started *call)
{
    if (!call->known->agrees)
        return 1;
    if (!call->arrived)
        call->half = arrive(self, call->known, call->sequence, call->payload);
    call->arrived = 1;
    int64_t count;
    word_t *words = words_awaited(self, &count);
    if (first_word_below(words, count, self->stride, arrival_of(call), 0) >= 0)
        return 0;
    if (has_leader(self)) {
        uint32_t problem;
        memcpy(&problem, result_of(self, call->half), sizeof problem);
        return problem == 0;
    }
    return all_call_the_same(self, call->half) && (self->nodes == 1 || leaders_agree(self, call));
}

/* Moves a program on as far as it goes without waiting.  Messages are MPI's, which nobody calls with the GIL. */
static void
move_program(Execution *execution)
{
    if (!execution->program->messages) {
        while (!execution_is_over(execution) && execution_pass(execution))
            ;
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    while (!execution_is_over(execution) && execution_pass(execution))
        ;
    Py_END_ALLOW_THREADS
}

/* A turn of the first of the queue; whether it is over. */
static int
advance(Repeats *self, Started *call)
{
    if (!call->agreed) {
        if (!have_agreed(self, call) || call->known == NULL)
            return 0;
        if (call->known->program != NULL) {
            call->execution = begin_program(self, call->known, call->given, call->sequence, call->scratch);
            if (call->execution == NULL) {
                PyErr_Clear(); /* Python will come to the same */
                return 0;
            }
            call->agreed_ns = note_agreed(call->record, call->meter);
        }
        call->agreed = 1;
        Py_CLEAR(call->spread);
        *repeats_number(self, AGREED) = call->sequence + 1;
    }
    if (call->execution == NULL) {
        if (call->target != NULL)
            take_results(self, call->known, call->half, call->target);
        return 1;
    }
    move_program(call->execution);
    return call->known != NULL && execution_is_complete(call->execution);
}

/* The same, by one thread at a time: another finds nothing to do. */
static int
advance_first(Repeats *self)
{
    Started *call = (Started *)Py_NewRef(first_of(self)); /* meanwhile it may be dropped */
    self->moving = 1;
    int over = advance(self, call);
    self->moving = 0;
    Py_DECREF(call);
    return over;
}

int
move_started(Repeats *self)
{
    while (!self->moving && queued(self) > 0 && advance_first(self))
        if (finish_first(self) < 0)
            return -1;
    show_first(self);
    return 0;
}

void
drop_started(Repeats *self)
{
    while (queued(self) > 0)
        Py_DECREF(take_first(self));
    self->moving = 0; /* in a forked child nobody is at work */
}

/* Whether a call can be begun here: nobody has given up, and all calls that have not agreed are in the queue. */
static int
is_in_order(const Repeats *self)
{
    int64_t not_agreed = queued(self) - (queued(self) > 0 && first_of(self)->agreed);
    return load_word(self->words) == 0 && queued(self) < MOST_STARTED
           && *repeats_number(self, NEXT) - *repeats_number(self, AGREED) == not_agreed;
}

/* Whether C does such calls without waiting for them. */
static int
is_startable(const Known *known)
{
    return known != NULL && known->finish == NULL
           && (known->program == NULL || known->nbytes[0] + known->nbytes[1] <= STARTED_BYTES);
}

/* A call that comes next, not in the queue yet. */
static Started *
new_started(Repeats *self, Known *known, PyObject *given, PyObject *prepare, const Sight *sights)
{
    State *state = PyType_GetModuleState(Py_TYPE(self));
    Started *call = PyObject_New(Started, state->started);
    if (call == NULL)
        return NULL;
    *call = (Started){
        .ob_base = call->ob_base,
        .repeats = (Repeats *)Py_NewRef(self),
        .known = known,
        .collective = Py_NewRef(known->key.collective),
        .given = Py_NewRef(given),
        .prepare = Py_NewRef(prepare),
        .payload = known->reads < 0 ? NULL : sights[known->reads].data,
        .target = known->writes < 0 ? NULL : sights[known->writes].data,
        .began_s = now_s(),
        .meter = (Meter *)Py_XNewRef(known->meters[STARTED]),
    };
    return call;
}

static int
enqueue(Repeats *self, Started *call)
{
    touch(self);
    call->record = self->record;
    if (call->record != NULL)
        call->record->form = STARTED;
    call->sequence = (*repeats_number(self, NEXT))++;
    self->queue[self->queue_tail++ % MOST_STARTED] = (Started *)Py_NewRef((PyObject *)call);
    return move_started(self);
}

/* Whether the first of the queue can be moved on, and who has started it is elsewhere. */
static int
is_left_alone(const Repeats *self, word_t *words, int64_t count)
{
    uint64_t awaited = load_word(&self->awaited);
    if (awaited == 0 || atomic_load_explicit(&self->waiting, memory_order_relaxed) > 0
        || now_ns() - atomic_load_explicit(&self->touched_ns, memory_order_relaxed) < ELSEWHERE_NS)
        return 0;
    return awaited == ANYTHING || first_word_below(words, count, self->stride, awaited, 0) < 0;
}

/* Until the first of the queue can be moved on, and nobody does it; at most so long.  Without the GIL, of which those
 * who compute, or are about to wait, have need. */
PyObject *
Repeats_await_started(Repeats *self, PyObject *seconds)
{
    double end = PyFloat_AsDouble(seconds);
    if (end == -1.0 && PyErr_Occurred())
        return NULL;
    int64_t count, nap_ns = self->nap_ns < NAP_NS ? NAP_NS : self->nap_ns;
    word_t *words = words_awaited(self, &count);
    int left_alone;
    Py_BEGIN_ALLOW_THREADS
#ifdef __linux__
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* else a nap is 50 us longer */
#endif
    end += now_s();
    do {
        nanosleep(&(struct timespec){0, nap_ns}, NULL);
        left_alone = is_left_alone(self, words, count);
        nap_ns = left_alone ? NAP_NS : 2 * nap_ns < LONGEST_NAP_NS ? 2 * nap_ns : LONGEST_NAP_NS;
    } while (!left_alone && now_s() < end);
    Py_END_ALLOW_THREADS
    self->nap_ns = nap_ns;
    return PyBool_FromLong(left_alone);
}

PyObject *
Repeats_start(Repeats *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3) {
        PyErr_Format(PyExc_TypeError, "start() takes 3 arguments (%zd given)", nargs);
        return NULL;
    }
    Sight sights[ARGUMENTS];
    Known *known = find_known(self, args[0], args[1], sights);
    if (!is_startable(known) || !is_in_order(self))
        Py_RETURN_FALSE;
    int held = hold(self);
    if (held <= 0)
        return held < 0 ? NULL : Py_NewRef(Py_False);
    Started *call = new_started(self, known, args[1], args[2], sights);
    int failed = call == NULL || !begin_record(self, known);
    int in_order = is_in_order(self); /* meanwhile Python may have taken the queue over */
    if (!failed && in_order)
        failed = enqueue(self, call) < 0;
    if (let_go(self) < 0 || failed || !in_order)
        Py_CLEAR(call);
    return in_order || failed ? (PyObject *)call : Py_NewRef(Py_False);
}

PyObject *
Repeats_move(Repeats *self, PyObject *unused)
{
    (void)unused;
    if (move_started(self) < 0)
        return NULL;
    return PyFloat_FromDouble(queued(self) > 0 ? now_s() - first_of(self)->began_s : -1.0);
}

PyObject *
Repeats_take_over(Repeats *self, PyObject *unused)
{
    (void)unused;
    PyObject *taken = PyList_New(0);
    if (taken == NULL || move_started(self) < 0) {
        Py_XDECREF(taken);
        return NULL;
    }
    while (self->moving) {
        Py_BEGIN_ALLOW_THREADS
        give_core(now_s());
        Py_END_ALLOW_THREADS
    }
    if (queued(self) > 0 && first_of(self)->spread != NULL)
        Py_CLEAR(self->spread); /* Python goes on with it */
    while (queued(self) > 0) {
        Started *call = take_first(self);
        int failed = PyList_Append(taken, (PyObject *)call);
        Py_DECREF(call);
        if (failed < 0) {
            Py_DECREF(taken);
            return NULL;
        }
    }
    return taken;
}

/* One of them */

/* Waits a moment for what the first of the queue waits for; 1, 0 where that did not come, or -1 with an error. */
static int
wait_for_first(Repeats *self)
{
    Started *first = first_of(self);
    if (first->execution != NULL) {
        Execution *execution = (Execution *)Py_NewRef(first->execution); /* meanwhile Python may take it over */
        int went_well = run_program(self, first->known, execution);
        int over = execution_is_over(execution);
        Py_DECREF(execution);
        return went_well ? over : -1;
    }
    if (first->spread != NULL) {
        Spread *spread = (Spread *)Py_NewRef(first->spread);
        int over;
        Py_BEGIN_ALLOW_THREADS
        over = spread_run(spread, self->patience_s, self->spin_s);
        Py_END_ALLOW_THREADS
        Py_DECREF(spread);
        return over;
    }
    int64_t count;
    word_t *words = words_awaited(self, &count);
    return wait_for_words(self, words, count, self->stride, arrival_of(first));
}

/* How far a call is that is not over. */
static int
stage_of(const Started *call)
{
    return 2 * call->agreed + (call->spread != NULL);
}

/* Turns of the queue until one is over, or Python has to go on; -1 with an error. */
static int
wait_for_turns(Started *self)
{
    Repeats *repeats = self->repeats;
    double end = now_s() + repeats->patience_s;
    while (!self->done && self->known != NULL && load_word(repeats->words) == 0 && now_s() < end) {
        const Started *before = first_of(repeats);
        int stage = stage_of(before), came = wait_for_first(repeats);
        if (came < 0)
            return -1;
        if (!came || self->known == NULL)
            break;
        if (move_started(repeats) < 0)
            return -1;
        if (queued(repeats) > 0 && first_of(repeats) == before && stage_of(before) == stage)
            break; /* others call something else, or a kernel has failed */
    }
    return 0;
}

static void
tell_wait(const Started *self, Ring *ring, int64_t began_ns)
{
    Event event = {.begin_ns = began_ns, .end_ns = now_ns(), .sequence = self->sequence, .kind = WAITED, .step = -1,
                   .peer = -1};
    if (self->meter != NULL)
        self->meter->sums.waited_ns += event.end_ns - began_ns;
    if (ring != NULL)
        ring_put(ring, &event);
}

/* The queue has moved until this one is over (True), or Python has to go on (False). */
static PyObject *
Started_wait(Started *self, PyObject *unused)
{
    (void)unused;
    Repeats *repeats = self->repeats;
    Ring *ring = repeats->ring != NULL && repeats->ring->events != NULL ? repeats->ring : NULL;
    int64_t began_ns = self->done || (self->meter == NULL && ring == NULL) ? 0 : now_ns();
    if (!self->done && self->known != NULL && move_started(repeats) < 0)
        return NULL;
    touch(repeats);
    int failed = 0;
    if (!self->done) {
        atomic_fetch_add_explicit(&repeats->waiting, 1, memory_order_relaxed);
        failed = wait_for_turns(self);
        atomic_fetch_sub_explicit(&repeats->waiting, 1, memory_order_relaxed);
    }
    if (began_ns != 0)
        tell_wait(self, ring, began_ns);
    return failed ? NULL : PyBool_FromLong(self->done);
}

static PyObject *
Started_test(Started *self, PyObject *unused)
{
    (void)unused;
    touch(self->repeats);
    if (!self->done && self->known != NULL && move_started(self->repeats) < 0)
        return NULL;
    return PyBool_FromLong(self->done);
}

static PyObject *
Started_tell(Started *self, PyObject *action)
{
    if (self->running != NULL)
        return PyObject_CallMethod(self->running, "tell", "O", action);
    Py_XSETREF(self->action, Py_NewRef(action));
    return self->done && tell(self) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
Started_go_on_as(Started *self, PyObject *running)
{
    PyObject *action = self->action;
    self->action = NULL;
    Py_XSETREF(self->running, Py_NewRef(running));
    let_work_go(self);
    Py_CLEAR(self->given);
    Py_CLEAR(self->prepare);
    if (action == NULL)
        Py_RETURN_NONE;
    PyObject *result = PyObject_CallMethod(running, "tell", "O", action);
    Py_DECREF(action);
    return result;
}

static PyObject *
Started_get(Started *self, void *which)
{
    PyObject *found = *(PyObject **)((char *)self + (size_t)which);
    if (found == NULL && which == (void *)offsetof(Started, execution))
        found = (PyObject *)self->spread;
    return Py_NewRef(found == NULL ? Py_None : found);
}

static PyObject *
Started_seconds(Started *self, void *unused)
{
    (void)unused;
    return PyFloat_FromDouble(now_s() - self->began_s);
}

static void
Started_dealloc(Started *self)
{
    PyTypeObject *type = Py_TYPE(self);
    let_work_go(self);
    Py_XDECREF(self->repeats);
    Py_XDECREF(self->collective);
    Py_XDECREF(self->given);
    Py_XDECREF(self->prepare);
    Py_XDECREF(self->action);
    Py_XDECREF(self->running);
    Py_XDECREF(self->meter);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef started_methods[] = {
    {"wait", (PyCFunction)Started_wait, METH_NOARGS, NULL},
    {"test", (PyCFunction)Started_test, METH_NOARGS, NULL},
    {"tell", (PyCFunction)Started_tell, METH_O, NULL},
    {"go_on_as", (PyCFunction)Started_go_on_as, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef started_members[] = {
    {"collective", T_OBJECT, offsetof(Started, collective), READONLY, NULL},
    {"sequence", T_LONGLONG, offsetof(Started, sequence), READONLY, NULL},
    {"arrived", T_INT, offsetof(Started, arrived), READONLY, NULL},
    {"done", T_INT, offsetof(Started, done), READONLY, NULL},
    {"began_s", T_DOUBLE, offsetof(Started, began_s), READONLY, NULL},
    {"agreed_ns", T_LONGLONG, offsetof(Started, agreed_ns), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef started_getters[] = {
    {"running", (getter)Started_get, NULL, NULL, (void *)offsetof(Started, running)},
    {"prepare", (getter)Started_get, NULL, NULL, (void *)offsetof(Started, prepare)},
    {"begun", (getter)Started_get, NULL, NULL, (void *)offsetof(Started, execution)},
    {"seconds", (getter)Started_seconds, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot started_slots[] = {
    {Py_tp_doc, "A known call that was started; hpccoll.runtime.repeats says what each method does."},
    {Py_tp_dealloc, Started_dealloc},
    {Py_tp_methods, started_methods},
    {Py_tp_members, started_members},
    {Py_tp_getset, started_getters},
    {0, NULL},
};

static PyType_Spec started_spec = {
    .name = "hpccoll._native._core.Started",
    .basicsize = sizeof(Started),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = started_slots,
};

int
add_started(PyObject *module)
{
    State *state = PyModule_GetState(module);
    return add_type(module, &started_spec, &state->started);
}
