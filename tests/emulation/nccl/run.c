/* The host function of a plan: what would be NCCL's kernel.
 *
 * It moves everything that the group asked of this communicator, all messages at once and the collectives one after
 * the other, until all is done or it is interrupted: by ncclCommAbort here or, as STANDIN_NCCL_ABORT_REACHES says, on
 * another rank.  A rank that does not come is waited for without end, as on a GPU.
 */
#define _GNU_SOURCE
#include "nccl_standin.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static void set_error(struct ncclComm *comm, ncclResult_t error)
{
    int fine = ncclSuccess;
    atomic_compare_exchange_strong(&comm->state, &fine, (int)error);
}

static bool interrupted(struct ncclComm *comm, double started)
{
    if (atomic_load(&comm->aborted))
        return true;
    int failed = atomic_load(&comm->segment->failed);
    if (failed) {
        set_error(comm, (ncclResult_t)failed);
        return true;
    }
    enum reach reach = settings()->reach;
    if (reach != REACH_NOTHING && peer_aborted(comm)) {
        set_error(comm, ncclRemoteError);
        return reach == REACH_END;
    }
    double waited = seconds() - started;
    if (settings()->timeout_s <= 0 || waited < settings()->timeout_s)
        return false;
    warn("STANDIN_NCCL_TIMEOUT_S: an operation of rank %d of %d has waited %.1f s", comm->rank, comm->size, waited);
    set_error(comm, ncclRemoteError);
    return true;
}

static void stand_still(struct ncclComm *comm)
{
    double started = seconds();
    for (;;) {
        unsigned seen = bell_of(comm);
        if (interrupted(comm, started))
            return;
        wait_bell(comm, seen);
    }
}

static void sleep_ms(struct ncclComm *comm, int ms)
{
    double end = seconds() + 1e-3 * ms;
    struct timespec part = {0, 1000000};
    while (seconds() < end && !atomic_load(&comm->aborted))
        nanosleep(&part, NULL);
}

static void *view(const void *pointer, size_t bytes, bool pinned)
{
    if (!bytes || pinned)
        return (void *)(uintptr_t)pointer;
    return standin_host_view((CUdeviceptr)(uintptr_t)pointer, bytes);
}

/* False where memory is gone: on a GPU an illegal address, after which nothing works on this device. */
static bool look_up(const struct ncclComm *comm, struct progress *progress)
{
    const struct task *task = progress->task;
    progress->send = view(task->send, task->send_bytes, task->send_pinned);
    progress->recv = view(task->recv, task->recv_bytes, task->recv_pinned);
    progress->scalar = task->operator.scalar;
    bool fine = (progress->send || !task->send_bytes) && (progress->recv || !task->recv_bytes);
    if (fine && task->operator.scalar_at) {
        const void *scalar = view(task->operator.scalar_at, size_of(task->type), false);
        scalar = scalar ? scalar : task->operator.scalar_at;
        progress->scalar = 0;
        memcpy(&progress->scalar, scalar, size_of(task->type));
    }
    if (!fine) {
        report("%s: a buffer of rank %d was freed before the operation ran (illegal address)", task->name, comm->rank);
        if (standin_break)
            standin_break(comm->device, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    return fine;
}

/* Once through all tasks: those that may move now do. */
static enum advance advance_all(const struct plan *plan, struct progress *all, size_t count, uint64_t sequence)
{
    bool ring_busy = false, moved = false;
    uint64_t sending = 0, receiving = 0;
    for (size_t i = 0; i < count; i++) {
        struct progress *progress = &all[i];
        enum function function = progress->task->function;
        uint64_t bit = function >= SEND ? 1ul << progress->task->root : 0;
        bool waits = function == SEND ? sending & bit : function == RECEIVE ? receiving & bit : ring_busy;
        if (progress->done || waits)
            continue;
        enum advance advance = function >= SEND ? advance_message(plan->comm, progress, sequence)
                                                : advance_ring(plan->comm, plan, progress, sequence);
        if (advance == MISMATCH)
            return MISMATCH;
        moved = moved || advance == MOVED;
        if (progress->done)
            continue;
        if (function == SEND)
            sending |= bit;
        else if (function == RECEIVE)
            receiving |= bit;
        else
            ring_busy = true;
    }
    return moved ? MOVED : BLOCKED;
}

static bool all_done(const struct progress *all, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!all[i].done)
            return false;
    return true;
}

static void move_all(const struct plan *plan, struct progress *all, size_t count, uint64_t sequence)
{
    struct ncclComm *comm = plan->comm;
    double started = seconds();
    while (!all_done(all, count)) {
        unsigned seen = bell_of(comm);
        enum advance advance = advance_all(plan, all, count, sequence);
        if (advance == MISMATCH) {
            atomic_store(&comm->segment->failed, ncclInvalidUsage);
            ring_all_bells(comm);
        }
        if (advance == MOVED) {
            started = seconds();
            continue;
        }
        if (interrupted(comm, started))
            return;
        wait_bell(comm, seen);
    }
    for (size_t i = 0; i < count; i++)
        if (all[i].task->poison)
            memset(all[i].recv, POISON, all[i].task->recv_bytes);
}

static void run_tasks(const struct plan *plan, uint64_t sequence)
{
    size_t count = 0, found = 0;
    for (const struct task *task = plan->tasks; task; task = task->next)
        count++;
    struct progress *all = calloc(count, sizeof *all);
    bool fine = all != NULL;
    for (const struct task *task = plan->tasks; fine && task; task = task->next) {
        all[found].task = task;
        fine = look_up(plan->comm, &all[found++]);
    }
    if (fine)
        move_all(plan, all, count, sequence);
    free(all);
}

void run_plan(void *argument)
{
    struct plan *plan = argument;
    struct ncclComm *comm = plan->comm;
    bool captured = plan->captured;
    if (captured)
        atomic_fetch_add(&comm->running, 1);
    pthread_mutex_lock(&comm->turn);
    if (!atomic_load(&comm->aborted) && !atomic_load(&comm->destroyed)) {
        uint64_t sequence = ++comm->executed;
        struct fault fault = fault_of(comm, sequence);
        sleep_ms(comm, fault.late_ms);
        if (fault.error != ncclSuccess) {
            warn("STANDIN_NCCL_FAULT: operation %lu of rank %d fails", (unsigned long)sequence, comm->rank);
            set_error(comm, fault.error);
        }
        if (fault.absent || fault.error != ncclSuccess)
            stand_still(comm);
        else
            run_tasks(plan, sequence);
    }
    pthread_mutex_unlock(&comm->turn);
    if (!captured)
        drop_plan(plan);
    atomic_fetch_sub(&comm->running, 1);
}

void drop_plan(struct plan *plan)
{
    while (plan->tasks) {
        struct task *task = plan->tasks;
        plan->tasks = task->next;
        free(task);
    }
    free(plan);
}
