/* How a plan gets into the caller's streams, in the order that NCCL keeps:
 *
 *     the other streams of the group -> first stream: after the last plan of this communicator, then this one
 *                                    -> the other streams
 *
 * The first time that a communicator needs its ring, or a message goes to a rank, the host waits for the other side
 * to call as well: NCCL makes its connections then.
 */
#include "nccl_standin.h"

#include <stdlib.h>
#include <string.h>

static ncclResult_t cuda(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return ncclSuccess;
    const char *text = "unknown error";
    cuGetErrorString(result, &text);
    warn("Cuda failure %d '%s' in %s", result, text, what);
    return ncclUnhandledCudaError;
}

static bool is_message(const struct task *task)
{
    return task->function == SEND || task->function == RECEIVE;
}

static bool overlaps(const void *one, size_t one_bytes, const void *other, size_t other_bytes)
{
    uintptr_t a = (uintptr_t)one, b = (uintptr_t)other;
    return one_bytes && other_bytes && a < b + other_bytes && b < a + one_bytes;
}

/* Messages of a group go at the same time: what one of them reads another must not write. */
static ncclResult_t check_messages(struct plan *plan)
{
    for (struct task *in = plan->tasks; in; in = in->next)
        for (struct task *out = plan->tasks; out && in->function == RECEIVE; out = out->next) {
            bool both = out != in && is_message(out);
            const void *buffer = out->function == SEND ? out->send : out->recv;
            size_t bytes = out->function == SEND ? out->send_bytes : out->recv_bytes;
            bool itself = out->function == SEND && out->send == in->recv && out->root == in->root &&
                          in->root == plan->comm->rank;
            if (!both || itself || !overlaps(in->recv, in->recv_bytes, buffer, bytes))
                continue;
            report("%s of a group writes what a %s of the same group uses", in->name, out->name);
            in->poison = true;
            if (plan->comm->segment->check)
                return ncclInvalidArgument;
        }
    return ncclSuccess;
}

static ncclResult_t check_self(const struct plan *plan)
{
    int sends = 0, receives = 0;
    for (const struct task *task = plan->tasks; task; task = task->next)
        if (is_message(task) && task->root == plan->comm->rank)
            *(task->function == SEND ? &sends : &receives) += 1;
    if (sends == receives)
        return ncclSuccess;
    warn("Trying to %s to self without a matching %s", sends > receives ? "send" : "recv",
         sends > receives ? "recv" : "send");
    return ncclInvalidUsage;
}

ncclResult_t close_plan(struct plan *plan)
{
    struct ncclComm *comm = plan->comm;
    ncclResult_t result = check_self(plan);
    if (result == ncclSuccess)
        result = check_messages(plan);
    for (const struct task *task = plan->tasks; task && settings()->connect; task = task->next) {
        bool *known = task->function == SEND ? comm->sends : comm->receives;
        if (is_message(task) ? !known[task->root] : !comm->ring_connected)
            plan->first_use = comm->size > 1;
    }
    return result;
}

void announce_plan(struct plan *plan)
{
    struct ncclComm *comm = plan->comm;
    if (!plan->first_use)
        return;
    for (const struct task *task = plan->tasks; task; task = task->next) {
        if (task->function == SEND)
            atomic_store(connection(comm, comm->rank, task->root, false), 1);
        else if (task->function == RECEIVE)
            atomic_store(connection(comm, task->root, comm->rank, true), 1);
        else
            atomic_store(&slot_of(comm, comm->rank)->connected, 1);
    }
    ring_all_bells(comm);
}

static bool connected(struct ncclComm *comm, const void *what)
{
    for (const struct task *task = ((const struct plan *)what)->tasks; task; task = task->next) {
        bool there = true;
        if (task->function == SEND)
            there = atomic_load(connection(comm, comm->rank, task->root, true));
        else if (task->function == RECEIVE)
            there = atomic_load(connection(comm, task->root, comm->rank, false));
        for (int rank = 0; rank < comm->size && !is_message(task); rank++)
            there = there && atomic_load(&slot_of(comm, rank)->connected);
        if (!there)
            return false;
    }
    return true;
}

ncclResult_t connect_plan(struct plan *plan)
{
    struct ncclComm *comm = plan->comm;
    if (!plan->first_use)
        return ncclSuccess;
    atomic_fetch_add(&comm->jobs, 1);
    ncclResult_t result = wait_until(comm, connected, plan, "other ranks at a first use");
    for (const struct task *task = plan->tasks; task && result == ncclSuccess; task = task->next) {
        if (task->function == SEND)
            comm->sends[task->root] = true;
        else if (task->function == RECEIVE)
            comm->receives[task->root] = true;
        else
            comm->ring_connected = true;
    }
    atomic_fetch_sub(&comm->jobs, 1);
    return result;
}

/* How often this process has used its other communicators on this device, for the other ranks to compare. */
static void note_order(struct plan *plan)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct ncclComm *comm = plan->comm;
    bool collective = false;
    for (const struct task *task = plan->tasks; task; task = task->next)
        collective = collective || !is_message(task);
    if (!collective || plan->captured || !comm->segment->check)
        return;
    pthread_mutex_lock(&lock);
    for (const struct ncclComm *other = all_communicators(); other && plan->orders < MOST_ORDERS; other = other->next)
        if (other->hash != comm->hash && other->device == comm->device && !atomic_load(&other->destroyed))
            plan->order[plan->orders++] = (struct order){other->hash, other->launched};
    comm->launched++;
    pthread_mutex_unlock(&lock);
}

static CUresult after_the_last(struct ncclComm *comm, CUstream stream, bool capturing, unsigned long long capture)
{
    if (capturing && comm->capture == capture && comm->captured_stream != stream)
        return cuStreamWaitEvent(stream, comm->captured_last, 0);
    if (!capturing && comm->has_last && comm->last_stream != stream)
        return cuStreamWaitEvent(stream, comm->last, 0);
    return CUDA_SUCCESS;
}

static CUresult mark_last(struct ncclComm *comm, CUstream stream, bool capturing, unsigned long long capture)
{
    CUresult result = cuEventRecord(capturing ? comm->captured_last : comm->last, stream);
    if (capturing) {
        comm->capture = capture;
        comm->captured_stream = stream;
    } else {
        comm->has_last = true;
        comm->last_stream = stream;
    }
    return result;
}

static CUresult before_streams(const struct plan *plan, CUstream first)
{
    CUresult result = CUDA_SUCCESS;
    for (const struct task *task = plan->tasks; task && result == CUDA_SUCCESS; task = task->next) {
        if (task->stream == first)
            continue;
        CUevent event;
        result = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
        if (result == CUDA_SUCCESS)
            result = cuEventRecord(event, task->stream);
        if (result == CUDA_SUCCESS)
            result = cuStreamWaitEvent(first, event, 0);
        cuEventDestroy(event);
    }
    return result;
}

static CUresult after_streams(CUevent done, const struct task *tasks, CUstream first)
{
    CUresult result = CUDA_SUCCESS;
    for (const struct task *task = tasks; task && result == CUDA_SUCCESS; task = task->next) {
        if (task->stream != first)
            result = cuStreamWaitEvent(task->stream, done, 0);
        if (task->completion && result == CUDA_SUCCESS)
            result = cuEventRecord(task->completion, task->stream);
    }
    return result;
}

static ncclResult_t capture_of(const struct plan *plan, bool *capturing, unsigned long long *id)
{
    *capturing = false;
    for (const struct task *task = plan->tasks; task; task = task->next) {
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        ncclResult_t result = cuda(cuStreamIsCapturing(task->stream, &status), "cuStreamIsCapturing");
        if (result != ncclSuccess)
            return result;
        bool this_one = status != CU_STREAM_CAPTURE_STATUS_NONE;
        if (task != plan->tasks && this_one != *capturing) {
            warn("Either none or all communicators in a ncclGroup() can be CUDA graph captured.");
            return ncclInvalidUsage;
        }
        *capturing = this_one;
    }
    if (!*capturing)
        return ncclSuccess;
    CUstreamCaptureStatus status;
    cuuint64_t number = 0;
    CUresult result = cuStreamGetCaptureInfo(plan->tasks->stream, &status, &number, NULL, NULL, NULL);
    *id = number;
    return cuda(result, "cuStreamGetCaptureInfo");
}

/* With the communicator's context current.  The tasks of a plan may be gone as soon as it is in the stream. */
static ncclResult_t put_in_streams(struct plan *plan)
{
    struct ncclComm *comm = plan->comm;
    CUstream first = plan->tasks->stream;
    unsigned long long capture = 0;
    bool capturing, alone = true;
    ncclResult_t result = capture_of(plan, &capturing, &capture);
    struct task *copies = NULL, **end = &copies;
    for (const struct task *task = plan->tasks; task; task = task->next)
        if (task->stream != first || task->completion) {
            struct task *copy = *end = malloc(sizeof *copy);
            *copy = *task;
            copy->next = NULL;
            end = &copy->next;
            alone = false;
        }
    plan->captured = capturing;
    if (result == ncclSuccess && !alone)
        result = cuda(before_streams(plan, first), "cuStreamWaitEvent");
    if (result == ncclSuccess)
        result = cuda(after_the_last(comm, first, capturing, capture), "cuStreamWaitEvent");
    if (result == ncclSuccess) {
        note_order(plan);
        if (!capturing)
            atomic_fetch_add(&comm->running, 1);
        result = cuda(cuLaunchHostFunc(first, run_plan, plan), "cuLaunchHostFunc");
        if (result != ncclSuccess && !capturing)
            atomic_fetch_sub(&comm->running, 1);
    }
    if (result != ncclSuccess)
        drop_plan(plan);
    else
        result = cuda(mark_last(comm, first, capturing, capture), "cuEventRecord");
    if (result == ncclSuccess && !alone)
        result = cuda(after_streams(capturing ? comm->captured_last : comm->last, copies, first), "cuStreamWaitEvent");
    while (copies) {
        struct task *copy = copies;
        copies = copy->next;
        free(copy);
    }
    return result;
}

ncclResult_t launch_plan(struct plan *plan)
{
    CUcontext before;
    ncclResult_t result = cuda(cuCtxPushCurrent(plan->comm->context), "cuCtxPushCurrent");
    if (result != ncclSuccess) {
        drop_plan(plan);
        return result;
    }
    result = put_in_streams(plan);
    cuCtxPopCurrent(&before);
    return result;
}
