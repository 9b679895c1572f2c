/* Operators of the caller, memory from NCCL, registration of buffers. */
#include "nccl_standin.h"

#include <stdlib.h>
#include <string.h>

/* Handles differ between communicators, so that one that is used with another is noticed. */
static int new_handle(void)
{
    static atomic_int next = ncclNumOps + 1000;
    return atomic_fetch_add(&next, 7);
}

static struct user_operator *find(struct ncclComm *comm, int handle)
{
    for (int i = 0; i < MOST_OPERATORS; i++)
        if (comm->operators[i].used && comm->operators[i].handle == handle)
            return &comm->operators[i];
    return NULL;
}

ncclResult_t user_operator(struct ncclComm *comm, int handle, ncclDataType_t type, const char *where,
                           struct operator *operator)
{
    struct user_operator *found = find(comm, handle);
    if (!found) {
        warn("%s : reduction operation %d unknown to this communicator", where, handle);
        return ncclInvalidArgument;
    }
    if (found->type != type) {
        warn("Data type supplied to user-created ncclRedOp_t does not match type given to reduction operation");
        return ncclInvalidArgument;
    }
    *operator = found->operator;
    return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    ncclResult_t result = check_comm(comm, "ncclRedOpCreatePreMulSum");
    if (result == ncclSuccess)
        result = check_ready(comm);
    if (result == ncclSuccess)
        result = check_pointer(scalar, "ncclRedOpCreatePreMulSum", "scalar");
    if (result != ncclSuccess)
        return result;
    int free_one = 0;
    while (free_one < MOST_OPERATORS && comm->operators[free_one].used)
        free_one++;
    if (free_one == MOST_OPERATORS || !size_of(type)) {
        warn("ncclRedOpCreatePreMulSum : invalid type %d, or more than %d operators", type, MOST_OPERATORS);
        return ncclInternalError;
    }
    struct user_operator *made = &comm->operators[free_one];
    *made = (struct user_operator){.used = true, .handle = new_handle(), .type = type,
                                   .operator = {.reduction = SUM, .scales = true}};
    if (residence == ncclScalarHostImmediate)
        memcpy(&made->operator.scalar, scalar, size_of(type));
    else
        made->operator.scalar_at = scalar;
    *op = (ncclRedOp_t)made->handle;
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    int handle = (int)op;
    if (handle >= 0 && handle < ncclNumOps) {
        warn("ncclRedOpDestroy : operator is a NCCL builtin.");
        return ncclInvalidArgument;
    }
    if (handle < 0) {
        warn("ncclRedOpDestroy :  operator is garbage.");
        return ncclInvalidArgument;
    }
    if (!comm || comm->magic != COMM_MAGIC) {
        warn("ncclRedOpDestroy : invalid communicator passed.");
        return ncclInvalidArgument;
    }
    struct user_operator *found = find(comm, handle);
    if (!found) {
        warn("ncclRedOpDestroy : operator unknown to this communicator.");
        return ncclInvalidArgument;
    }
    found->used = false;
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **pointer, size_t bytes)
{
    ncclResult_t result = check_pointer(pointer, "ncclMemAlloc", "ptr");
    if (result != ncclSuccess)
        return result;
    *pointer = NULL;
    if (!bytes)
        return ncclSuccess;
    CUdeviceptr address = 0;
    if (cuMemAlloc(&address, bytes) != CUDA_SUCCESS) {
        warn("Cuda failure: ncclMemAlloc of %zu bytes", bytes);
        return ncclUnhandledCudaError;
    }
    *pointer = (void *)(uintptr_t)address;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *pointer)
{
    ncclResult_t result = check_pointer(pointer, "ncclMemFree", "ptr");
    if (result != ncclSuccess)
        return result;
    return cuMemFree((CUdeviceptr)(uintptr_t)pointer) == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

/* Registration changes no result; what must be right is that it is undone once, with the same communicator. */
struct registration { struct ncclComm *comm; void *buffer; };

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buffer, size_t bytes, void **handle)
{
    ncclResult_t result = check_comm(comm, "ncclCommRegister");
    if (result == ncclSuccess)
        result = check_pointer(handle, "ncclCommRegister", "handle");
    if (result != ncclSuccess)
        return result;
    *handle = NULL;
    if (!standin_host_view((CUdeviceptr)(uintptr_t)buffer, bytes)) {
        warn("ncclCommRegister : buff %p is not a valid pointer", buffer);
        return ncclInvalidArgument;
    }
    struct registration *made = malloc(sizeof *made);
    *made = (struct registration){comm, buffer};
    *handle = made;
    return ncclSuccess;
}

/* `owner`: where what was made says whose it is; NULL: nothing was made. */
static ncclResult_t disown(const struct ncclComm *comm, struct ncclComm **owner, const char *function)
{
    ncclResult_t result = check_comm(comm, function);
    if (result != ncclSuccess || !owner)
        return result;
    if (*owner != comm) {
        warn("%s : it is of another communicator, or gone", function);
        return ncclInvalidArgument;
    }
    *owner = NULL;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    struct registration *made = handle;
    return disown(comm, made ? &made->comm : NULL, "ncclCommDeregister");
}

/* ---- windows ---- */

struct ncclWindow_vidmem { struct ncclComm *comm; void *buffer; };   /* what a ncclWindow_t points to */

static bool all_registered(struct ncclComm *comm, const void *number)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (atomic_load(&slot_of(comm, rank)->window_sequence) < *(const uint64_t *)number)
            return false;
    return true;
}

/* All ranks come, with buffers of one size. */
static ncclResult_t run_window(struct job *job)
{
    struct ncclComm *comm = job->comm;
    uint64_t number = ++comm->windows;
    struct slot *slot = slot_of(comm, comm->rank);
    slot->window_bytes[number % 2] = job->bytes;
    atomic_store(&slot->window_sequence, number);
    ring_all_bells(comm);
    ncclResult_t result = wait_until(comm, all_registered, &number, "all ranks to register a window");
    if (result != ncclSuccess)
        return result;
    for (int rank = 0; rank < comm->size; rank++)
        if (slot_of(comm, rank)->window_bytes[number % 2] != job->bytes) {
            warn("ncclCommWindowRegister : rank %d has %zu bytes, this one %zu", rank,
                 slot_of(comm, rank)->window_bytes[number % 2], job->bytes);
            return ncclInvalidArgument;
        }
    struct ncclWindow_vidmem *made = malloc(sizeof *made);
    *made = (struct ncclWindow_vidmem){comm, job->buffer};
    __atomic_store_n(job->window, made, __ATOMIC_RELEASE);
    return ncclSuccess;
}

static ncclResult_t begin_window(ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window, int flags)
{
    ncclResult_t result = check_comm(comm, "ncclCommWindowRegister");
    if (result == ncclSuccess)
        result = check_pointer(window, "ncclCommWindowRegister", "win");
    if (result == ncclSuccess)
        result = check_ready(comm);
    if (result != ncclSuccess)
        return result;
    *window = NULL;
    if (flags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING) ||
        !standin_host_view((CUdeviceptr)(uintptr_t)buffer, bytes)) {
        warn("ncclCommWindowRegister : buff %p is not a valid pointer, or flags %d", buffer, flags);
        return ncclInvalidArgument;
    }
    struct job *job = calloc(1, sizeof *job);
    *job = (struct job){.run = run_window, .comm = comm, .window = window, .buffer = buffer, .bytes = bytes};
    return add_job(job, false);
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window, int flags)
{
    enter_group();
    ncclResult_t result = fail_group(begin_window(comm, buffer, bytes, window, flags));
    ncclResult_t end = leave_group();
    return result == ncclSuccess ? end : result;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    return disown(comm, window ? &window->comm : NULL, "ncclCommWindowDeregister");
}
