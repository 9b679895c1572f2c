/* The collectives and messages: checks of the arguments, with NCCL's texts, and the task that is made of a call.
 *
 * NCCL looks at pointers only with NCCL_CHECK_POINTERS=1; without it, a wrong one is an illegal address or worse.
 * Here they are always looked at.
 */
#include "nccl_standin.h"

#include <stdlib.h>

struct call {
    const char *name;
    enum function function;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    int op, root;
    struct ncclComm *comm;
    CUstream stream;
    const ncclCollConfig_t *config;
};

static ncclResult_t check_buffer(const struct call *call, const void *buffer, size_t bytes, const char *name,
                                 bool *pinned)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)buffer;
    unsigned kind = 0;
    int device = 0;
    bool known = buffer && cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS;
    *pinned = known && kind == CU_MEMORYTYPE_HOST;
    if (!known || (!*pinned && !standin_host_view(address, bytes))) {
        warn("%s : %s %p is not a valid pointer", call->name, name, buffer);
        return ncclInvalidArgument;
    }
    bool there = *pinned || cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) ||
                 device == call->comm->device;
    if (there)
        return ncclSuccess;
    warn("%s : %s allocated on device %d mismatchs with NCCL device %d", call->name, name, device, call->comm->device);
    return ncclInvalidArgument;
}

static ncclResult_t check_arguments(const struct call *call)
{
    const struct ncclComm *comm = call->comm;
    if (call->root < 0 || call->root >= comm->size) {
        warn("%s : invalid root %d (root should be in the 0..%d range)", call->name, call->root, comm->size);
        return ncclInvalidArgument;
    }
    if ((int)call->type < 0 || call->type >= ncclNumTypes) {
        warn("%s : invalid type %d", call->name, call->type);
        return ncclInvalidArgument;
    }
    if (call->op < 0) {
        warn("%s : invalid reduction operation %d", call->name, call->op);
        return ncclInvalidArgument;
    }
    if (call->config && call->config->magic != NCCL_API_MAGIC) {
        warn("ncclCollConfig_t argument not initialized via NCCL_COLLCONFIG_INITIALIZER");
        return ncclInvalidArgument;
    }
    return ncclSuccess;
}

/* A stream of another device: the launch of a kernel would fail. */
static ncclResult_t check_stream(const struct call *call)
{
    CUcontext context;
    if ((uintptr_t)call->stream <= 2)
        return ncclSuccess;
    if (cuStreamGetCtx(call->stream, &context) == CUDA_SUCCESS && context == call->comm->context)
        return ncclSuccess;
    warn("Cuda failure 400 'invalid resource handle'");
    return ncclUnhandledCudaError;
}

static ncclResult_t find_operator(const struct call *call, struct operator *operator)
{
    bool eight = call->type == ncclFloat8e4m3 || call->type == ncclFloat8e5m2;
    bool reduces = call->function == ALL_REDUCE || call->function == REDUCE || call->function == REDUCE_SCATTER;
    *operator = (struct operator){.reduction = SUM};
    if (!reduces)
        return ncclSuccess;
    if (eight && call->comm->capability < 90) {
        warn("FP8 reduction support begins with sm90 capable devices.");
        return ncclInvalidArgument;
    }
    static const enum reduction plain[] = {[ncclSum] = SUM, [ncclProd] = PROD, [ncclMax] = MAX, [ncclMin] = MIN};
    if (call->op == ncclAvg)
        *operator = average(call->type, call->comm->size);
    else if (call->op < ncclAvg)
        operator->reduction = plain[call->op];
    else
        return user_operator(call->comm, call->op, call->type, call->name, operator);
    return ncclSuccess;
}

/* Where a buffer may lie over the other one: the same place, and for blocks the place of one's own. */
static bool allowed_overlap(const struct call *call, size_t bytes)
{
    const char *send = call->send, *recv = call->recv;
    size_t own = (size_t)call->comm->rank * bytes;
    if (call->function == ALL_GATHER)
        return send == recv + own;
    if (call->function == REDUCE_SCATTER)
        return recv == send + own;
    return send == recv;
}

static bool overlapping(const struct task *task)
{
    uintptr_t send = (uintptr_t)task->send, recv = (uintptr_t)task->recv;
    return task->send_bytes && task->recv_bytes && send < recv + task->recv_bytes && recv < send + task->send_bytes;
}

static void set_buffers(const struct call *call, struct task *task)
{
    size_t bytes = call->count * size_of(call->type), all = bytes * (size_t)call->comm->size;
    bool root = call->comm->rank == call->root;
    task->send = call->send;
    task->recv = call->recv;
    task->send_bytes = call->function == REDUCE_SCATTER ? all : bytes;
    task->recv_bytes = call->function == ALL_GATHER ? all : bytes;
    if (call->function == RECEIVE || (call->function == BROADCAST && !root))
        task->send_bytes = 0;
    if (call->function == SEND || (call->function == REDUCE && !root))
        task->recv_bytes = 0;
    if (!task->send_bytes)
        task->send = NULL;
    if (!task->recv_bytes)
        task->recv = NULL;
}

static ncclResult_t append(const struct call *call)
{
    struct task task = {.function = call->function, .name = call->name, .count = call->count, .type = call->type,
                        .op = call->op < ncclNumOps ? call->op : ncclNumOps, .root = call->root,
                        .stream = call->stream};
    bool message = call->function == SEND || call->function == RECEIVE;
    ncclResult_t result = find_operator(call, &task.operator);
    if (result == ncclSuccess)
        result = check_stream(call);
    if (result != ncclSuccess)
        return result;
    set_buffers(call, &task);
    if (task.send_bytes)
        result = check_buffer(call, task.send, task.send_bytes, message ? "buff" : "sendbuff", &task.send_pinned);
    if (task.recv_bytes && result == ncclSuccess)
        result = check_buffer(call, task.recv, task.recv_bytes, message ? "buff" : "recvbuff", &task.recv_pinned);
    if (result != ncclSuccess)
        return result;
    if (overlapping(&task) && !allowed_overlap(call, call->count * size_of(call->type))) {
        report("%s: recvbuff overlaps sendbuff, but not in the way of an in-place operation", call->name);
        if (call->comm->segment->check)
            return ncclInvalidArgument;
        task.poison = true;
    }
    if (call->config && call->config->size >= sizeof *call->config)
        task.completion = call->config->launchCompletionEvent;
    struct task *kept = malloc(sizeof *kept);
    *kept = task;
    return add_task(call->comm, kept);
}

static ncclResult_t append_message(const struct call *call, enum function function, const void *buffer, size_t block,
                                   int peer)
{
    struct call message = *call;
    char *at = (char *)(uintptr_t)buffer + block * call->count * size_of(call->type);
    message.function = function;
    message.send = message.recv = at;
    message.root = peer;
    return append(&message);
}

/* All-to-all, gather and scatter are groups of messages, as in NCCL. */
enum exchange { ALL_TO_ALL = 100, GATHER, SCATTER };

static ncclResult_t append_messages(const struct call *call, int exchange)
{
    ncclResult_t result = ncclSuccess;
    int rank = call->comm->rank, size = call->comm->size;
    bool root = rank == call->root;
    for (int peer = 0; peer < size && result == ncclSuccess; peer++) {
        bool sends = exchange == ALL_TO_ALL || (exchange == SCATTER && root) || (exchange == GATHER && peer == call->root);
        bool takes = exchange == ALL_TO_ALL || (exchange == GATHER && root) || (exchange == SCATTER && peer == call->root);
        if (sends)
            result = append_message(call, SEND, call->send, exchange == GATHER ? 0 : (size_t)peer, peer);
        if (takes && result == ncclSuccess)
            result = append_message(call, RECEIVE, call->recv, exchange == SCATTER ? 0 : (size_t)peer, peer);
    }
    return result;
}

static ncclResult_t check_and_append(const struct call *call, int exchange)
{
    ncclResult_t result = check_comm(call->comm, call->name);
    if (result == ncclSuccess)
        result = check_ready(call->comm);
    if (result == ncclSuccess)
        result = check_arguments(call);
    bool message = call->function == SEND || call->function == RECEIVE;
    if (result != ncclSuccess || (!call->count && (!message || exchange)))
        return result;
    if (shows_calls())
        info(call->comm->device, "%s: opCount %lx sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p "
             "[nranks=%d] stream %p", call->name, (unsigned long)call->comm->executed, call->send, call->recv,
             call->count, call->type, call->op, call->root, (void *)call->comm, call->comm->size,
             (void *)call->stream);
    return exchange ? append_messages(call, exchange) : append(call);
}

static ncclResult_t submit(struct call call, int exchange)
{
    enter_group();
    ncclResult_t result = fail_group(check_and_append(&call, exchange)), end = leave_group();
    if (result == ncclSuccess && end != ncclInProgress)
        result = end;
    if (!call.comm || call.comm->magic != COMM_MAGIC || call.comm->blocking)
        return result;
    if (result != ncclSuccess) {
        int fine = ncclSuccess;
        atomic_compare_exchange_strong(&call.comm->state, &fine, (int)result);
        return result;
    }
    return (ncclResult_t)atomic_load(&call.comm->state);
}

ncclResult_t ncclAllReduceConfig(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit((struct call){"AllReduce", ALL_REDUCE, send, recv, count, type, (int)op, 0, comm, stream, config}, 0);
}

ncclResult_t ncclReduceConfig(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                              int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit((struct call){"Reduce", REDUCE, send, recv, count, type, (int)op, root, comm, stream, config}, 0);
}

ncclResult_t ncclReduceScatterConfig(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                     ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit((struct call){"ReduceScatter", REDUCE_SCATTER, send, recv, count, type, (int)op, 0, comm, stream,
                                config}, 0);
}

ncclResult_t ncclBroadcastConfig(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit((struct call){"Broadcast", BROADCAST, send, recv, count, type, 0, root, comm, stream, config}, 0);
}

ncclResult_t ncclAllGatherConfig(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit((struct call){"AllGather", ALL_GATHER, send, recv, count, type, 0, 0, comm, stream, config}, 0);
}

ncclResult_t ncclAlltoAllConfig(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                                cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit((struct call){"AlltoAll", SEND, send, recv, count, type, 0, 0, comm, stream, config}, ALL_TO_ALL);
}

ncclResult_t ncclGatherConfig(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                              ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit((struct call){"Gather", SEND, send, recv, count, type, 0, root, comm, stream, config}, GATHER);
}

ncclResult_t ncclScatterConfig(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return submit((struct call){"Scatter", SEND, send, recv, count, type, 0, root, comm, stream, config}, SCATTER);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return submit((struct call){"Send", SEND, send, NULL, count, type, 0, peer, comm, stream, NULL}, 0);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return submit((struct call){"Recv", RECEIVE, NULL, recv, count, type, 0, peer, comm, stream, NULL}, 0);
}
