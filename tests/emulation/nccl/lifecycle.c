/* Communicators: splits, and how they end. */
#define _GNU_SOURCE
#include "nccl_standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* What is left is the object itself, so that a later use of it is noticed. */
void bury_comm(struct ncclComm *comm)
{
    atomic_store(&comm->destroyed, 1);
    comm->magic = 0;
    close_segment(comm);
    CUcontext back;
    if (cuCtxPushCurrent(comm->context) == CUDA_SUCCESS) {
        cuEventDestroy(comm->last);
        cuEventDestroy(comm->captured_last);
        cuCtxPopCurrent(&back);
    }
    cuDevicePrimaryCtxRelease(comm->device);
    free(comm->sends);
    free(comm->receives);
    comm->sends = comm->receives = NULL;
}

/* ---- split ---- */

static bool all_split(struct ncclComm *comm, const void *number)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (atomic_load(&slot_of(comm, rank)->split_sequence) < *(const uint64_t *)number)
            return false;
    return true;
}

/* The ranks of `color` by key, then by rank: where this one comes, and how many they are. */
static void place_in_child(struct ncclComm *parent, const struct job *job, uint64_t number, int *size, int *rank)
{
    *size = *rank = 0;
    for (int other = 0; other < parent->size; other++) {
        struct slot *slot = slot_of(parent, other);
        int color = slot->split[number % 2].color, key = slot->split[number % 2].key;
        if (color != job->color)
            continue;
        ++*size;
        *rank += key < job->key || (key == job->key && other < parent->rank);
    }
}

static ncclResult_t run_split(struct job *job)
{
    struct ncclComm *parent = job->comm, *child = job->child;
    uint64_t number = ++parent->splits;
    struct slot *slot = slot_of(parent, parent->rank);
    slot->split[number % 2].color = job->color;
    slot->split[number % 2].key = job->key;
    atomic_store(&slot->split_sequence, number);
    ring_all_bells(parent);
    ncclResult_t result = wait_until(parent, all_split, &number, "all ranks to split");
    if (!child)
        return result;
    if (result == ncclSuccess) {
        place_in_child(parent, job, number, &child->size, &child->rank);
        char name[64];
        snprintf(name, sizeof name, "standin-nccl-%016lx-%lu-%d", (unsigned long)parent->hash, (unsigned long)number,
                 job->color);
        name_comm(child, name);
        result = start_comm(child, "ncclCommSplit");
    }
    if (result == ncclSuccess)
        __atomic_store_n(job->newcomm, child, __ATOMIC_RELEASE);
    else
        bury_comm(child);
    return result;
}

static ncclResult_t begin_split(ncclComm_t comm, int color, int key, ncclComm_t *out, const ncclConfig_t *config)
{
    ncclResult_t result = check_comm(comm, "CommSplit");
    if (result == ncclSuccess)
        result = check_pointer(out, "CommSplit", "newcomm");
    if (result == ncclSuccess)
        result = check_ready(comm);
    if (result != ncclSuccess)
        return result;
    *out = NULL;
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
        warn("CommSplit : invalid color %d", color);
        return ncclInvalidArgument;
    }
    struct ncclComm *child = NULL;
    if (color == NCCL_SPLIT_NOCOLOR)
        info(comm->device, "Rank %d has color with NCCL_SPLIT_NOCOLOR, not creating a new communicator", comm->rank);
    else
        result = make_comm(&child, comm->size, comm->rank, comm->device, comm->blocking, config);
    if (result != ncclSuccess)
        return result;
    struct job *job = calloc(1, sizeof *job);
    *job = (struct job){.run = run_split, .comm = comm, .child = child, .newcomm = out, .color = color, .key = key};
    return add_job(job, false);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
    enter_group();
    ncclResult_t result = fail_group(begin_split(comm, color, key, newcomm, config));
    ncclResult_t end = leave_group();
    return result == ncclSuccess ? end : result;
}

/* ---- the end ---- */

static ncclResult_t drain(struct ncclComm *comm)
{
    struct timespec part = {0, 200000};
    ncclResult_t result = ncclSuccess;
    CUcontext back;
    bool current = cuCtxPushCurrent(comm->context) == CUDA_SUCCESS;
    if (comm->has_last && (!current || cuEventSynchronize(comm->last) != CUDA_SUCCESS)) {
        warn("Cuda failure while the operations of comm %p were waited for", (void *)comm);
        result = ncclUnhandledCudaError;
    }
    if (current)
        cuCtxPopCurrent(&back);
    while (result == ncclSuccess && atomic_load(&comm->running))
        nanosleep(&part, NULL);
    return result;
}

static bool all_finalized(struct ncclComm *comm, const void *unused)
{
    (void)unused;
    for (int rank = 0; rank < comm->size; rank++)
        if (!atomic_load(&slot_of(comm, rank)->finalized))
            return false;
    return true;
}

static ncclResult_t run_finalize(struct job *job)
{
    struct ncclComm *comm = job->comm;
    ncclResult_t result = drain(comm);
    atomic_store(&slot_of(comm, comm->rank)->finalized, 1);
    ring_all_bells(comm);
    if (result == ncclSuccess)
        result = wait_until(comm, all_finalized, NULL, "all ranks to finalize");
    return result;
}

static ncclResult_t begin_finalize(struct ncclComm *comm)
{
    ncclResult_t result = check_comm(comm, "CommFinalize");
    if (result == ncclSuccess)
        result = check_ready(comm);
    if (result != ncclSuccess)
        return atomic_load(&comm->finalize_called) ? ncclInvalidArgument : result;
    atomic_store(&comm->finalize_called, 1);
    info(comm->device, "comm %p rank %d nRanks %d cudaDev %d commId 0x%lx - Finalize START", (void *)comm, comm->rank,
         comm->size, comm->device, (unsigned long)comm->hash);
    struct job *job = calloc(1, sizeof *job);
    *job = (struct job){.run = run_finalize, .comm = comm};
    return add_job(job, false);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    enter_group();
    ncclResult_t result = fail_group(begin_finalize(comm));
    ncclResult_t end = leave_group();
    return result == ncclSuccess ? end : result;
}

/* The ranks of one process leave together with the last of them; the processes wait for each other. */
static bool all_left(struct ncclComm *comm, const void *unused)
{
    (void)unused;
    for (int rank = 0; rank < comm->size; rank++)
        if (!atomic_load(&slot_of(comm, rank)->left))
            return false;
    return true;
}

static bool last_of_process(const struct ncclComm *comm)
{
    for (int rank = 0; rank < comm->size; rank++) {
        struct slot *slot = slot_of(comm, rank);
        if (atomic_load(&slot->pid) == getpid() && !atomic_load(&slot->left))
            return false;
    }
    return true;
}

static ncclResult_t run_destroy(struct job *job)
{
    struct ncclComm *comm = job->comm;
    ncclResult_t result = ncclSuccess;
    while (atomic_load(&comm->jobs))
        usleep(200);
    if (comm->segment) {
        drain(comm);
        bool finalized = atomic_load(&comm->finalize_called);
        atomic_store(&slot_of(comm, comm->rank)->left, 1);
        ring_all_bells(comm);
        if (!finalized && atomic_load(&comm->state) == ncclSuccess && last_of_process(comm))
            result = wait_until(comm, all_left, NULL, "all processes to destroy");
        if (result == ncclRemoteError)
            result = ncclSuccess;
    }
    info(comm->device, "comm %p rank %d nranks %d cudaDev %d commId 0x%lx - Destroy COMPLETE", (void *)comm, comm->rank,
         comm->size, comm->device, (unsigned long)comm->hash);
    bury_comm(comm);
    return result;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    ncclResult_t result = check_comm(comm, "CommDestroy");
    if (result != ncclSuccess)
        return result;
    struct job *job = calloc(1, sizeof *job);
    *job = (struct job){.run = run_destroy, .comm = comm};
    enter_group();
    add_job(job, true);
    return leave_group();
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    ncclResult_t result = check_comm(comm, "CommAbort");
    if (result != ncclSuccess)
        return result;
    atomic_store(&comm->aborted, 1);
    if (comm->segment) {
        atomic_store(&slot_of(comm, comm->rank)->aborted, 1);
        atomic_store(&slot_of(comm, comm->rank)->left, 1);
        ring_all_bells(comm);
    }
    while (atomic_load(&comm->jobs))
        usleep(200);
    info(comm->device, "comm %p rank %d nranks %d cudaDev %d commId 0x%lx - Abort COMPLETE", (void *)comm, comm->rank,
         comm->size, comm->device, (unsigned long)comm->hash);
    if (comm->segment && drain(comm) != ncclSuccess)
        return ncclSuccess;   /* operations may still be at work: their memory stays */
    bury_comm(comm);
    return ncclSuccess;
}
