/* The engine: runs executions, one or several in turn, without the GIL; Bell and run_all. */

#include "engine.h"

#include <sys/syscall.h>
#include <unistd.h>

#define SLEEP_NS 50000

/* Waiting */

/* True when so much time has passed that MPI should have a turn. */
static int
rest(const Patience *patience, double now, double idle_s)
{
    const struct timespec nap = {0, SLEEP_NS};
    if (idle_s < patience->spin_s) {
        cpu_pause();
        return 0;
    }
    if (idle_s < patience->spin_s + patience->yield_s)
        return give_core(now) - now > IDLE_S;
    nanosleep(&nap, NULL);
    return 1;
}

static int
a_pass_of_each(Execution *const *all, Py_ssize_t count)
{
    int moved = 0;
    for (Py_ssize_t i = 0; i < count; ++i)
        moved |= execution_pass(all[i]);
    return moved;
}

static int
one_is_over(Execution *const *all, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; ++i)
        if (execution_is_over(all[i]))
            return 1;
    return 0;
}

/* A turn for MPI where nothing of ours gives it one: the caller may have messages of its own under way. */
static void
progress(Execution *const *all, Py_ssize_t count)
{
    Network *network = NULL;
    for (Py_ssize_t i = 0; i < count; ++i) {
        if (atomic_load_explicit(&all[i]->posted, memory_order_relaxed) > 0)
            return;
        if (all[i]->network != NULL)
            network = all[i]->network;
    }
    if (network != NULL)
        network_progress(network);
}

static double
last_move(Execution *const *all, Py_ssize_t count)
{
    double last = 0.0;
    for (Py_ssize_t i = 0; i < count; ++i)
        if (pthread_mutex_trylock(&all[i]->lock) == 0) {
            last = all[i]->moved_at > last ? all[i]->moved_at : last;
            pthread_mutex_unlock(&all[i]->lock);
        }
    return last;
}

static int
has_rung(Bell *bell)
{
    return bell != NULL && atomic_load_explicit(&bell->rung, memory_order_relaxed)
           && atomic_exchange_explicit(&bell->rung, 0, memory_order_acq_rel);
}

/* Runs until one is over, the bell has rung or `until` has passed.  Without the GIL. */
static End
run_until(Execution *const *all, Py_ssize_t count, double until, const Patience *patience, Bell *bell)
{
    double moved_at = last_move(all, count);
    int rested = 0;
    for (unsigned turn = 1;; ++turn) {
        int moved = a_pass_of_each(all, count);
        if (one_is_over(all, count))
            return OVER;
        if (has_rung(bell))
            return RUNG;
        double now = now_s();
        if ((rested || turn % TURNS_PER_PROGRESS == 0) && now - moved_at > IDLE_S)
            progress(all, count);
        if (now >= until)
            return LATE;
        if (moved)
            moved_at = now;
        rested = !moved && rest(patience, now, now - moved_at);
    }
}

/* Python's signal handlers run in the first thread only. */
static int
in_first_thread(void)
{
    return syscall(SYS_gettid) == getpid();
}

/* As run_until, with a look at signals now and then. */
End
engine_run(Execution *const *all, Py_ssize_t count, double seconds, const Patience *patience, Bell *bell)
{
    double deadline = now_s() + (seconds < FOREVER_S ? seconds : FOREVER_S);
    int handles_signals = in_first_thread();
    for (;;) {
        double until = deadline, signals_due = now_s() + SIGNAL_PERIOD_S;
        End end;
        if (handles_signals && signals_due < until)
            until = signals_due;
        Py_BEGIN_ALLOW_THREADS
        end = run_until(all, count, until, patience, bell);
        Py_END_ALLOW_THREADS
        if (end != LATE || until == deadline)
            return end;
        if (PyErr_CheckSignals() < 0)
            return RAISED;
    }
}

int
seconds_are_right(double seconds, const Patience *patience)
{
    if (seconds == seconds && patience->spin_s >= 0.0 && patience->yield_s >= 0.0)
        return 1;
    PyErr_SetString(PyExc_ValueError, "seconds must be a number, spin_s and yield_s not below 0");
    return 0;
}

/* Bell: by which one thread makes another come back from run_all */

static PyObject *
Bell_ring(Bell *self, PyObject *unused)
{
    (void)unused;
    atomic_store_explicit(&self->rung, 1, memory_order_release);
    Py_RETURN_NONE;
}

static void
Bell_dealloc(Bell *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef bell_methods[] = {
    {"ring", (PyCFunction)Bell_ring, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot bell_slots[] = {
    {Py_tp_doc, "Rung by one thread, it makes another come back from run_all."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, Bell_dealloc},
    {Py_tp_methods, bell_methods},
    {0, NULL},
};

static PyType_Spec bell_spec = {
    .name = "hpccoll._native._core.Bell",
    .basicsize = sizeof(Bell),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = bell_slots,
};

/* Several executions in one thread */

static int
all_are_executions(PyObject *all, PyTypeObject *type)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all); ++i)
        if (!is_of_type(PyTuple_GET_ITEM(all, i), type, 0, "each of executions"))
            return 0;
    return 1;
}

static PyObject *
run_all(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"executions", "seconds", "bell", "spin_s", "yield_s", NULL};
    State *state = PyModule_GetState(module);
    PyObject *sequence, *bell = Py_None;
    double seconds;
    Patience patience = {0.0, YIELD_S};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Od|O$dd:run_all", names, &sequence, &seconds, &bell,
                                     &patience.spin_s, &patience.yield_s)
        || !seconds_are_right(seconds, &patience) || !is_of_type(bell, state->bell, 1, "bell"))
        return NULL;
    PyObject *all = PySequence_Tuple(sequence); /* which keeps them alive */
    if (all == NULL)
        return NULL;
    End end = RAISED;
    if (all_are_executions(all, state->execution))
        end = engine_run((Execution *const *)&PyTuple_GET_ITEM(all, 0), PyTuple_GET_SIZE(all), seconds,
                  &patience, bell == Py_None ? NULL : (Bell *)bell);
    Py_DECREF(all);
    return end == RAISED ? NULL : PyBool_FromLong(end == OVER);
}

static PyObject *
sleep_in_turns(PyObject *module, PyObject *seconds)
{
    (void)module;
    double value = PyFloat_AsDouble(seconds);
    if (value == -1.0 && PyErr_Occurred())
        return NULL;
    if (!(value >= 0.0 && value < 1.0)) {
        PyErr_SetString(PyExc_ValueError, "seconds must be from 0 to below 1");
        return NULL;
    }
    nap_for(value);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"sleep_in_turns", sleep_in_turns, METH_O, NULL},
    {"run_all", (PyCFunction)(void (*)(void))run_all, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

int
add_engine(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (add_type(module, &bell_spec, &state->bell) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
