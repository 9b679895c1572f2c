/* The collectives without a configuration. */
#include "nccl_standin.h"

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return ncclAllReduceConfig(send, recv, count, type, op, comm, stream, NULL);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    return ncclReduceConfig(send, recv, count, type, op, root, comm, stream, NULL);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return ncclReduceScatterConfig(send, recv, count, type, op, comm, stream, NULL);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return ncclBroadcastConfig(send, recv, count, type, root, comm, stream, NULL);
}

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)
{
    return ncclBroadcastConfig(buffer, buffer, count, type, root, comm, stream, NULL);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return ncclAllGatherConfig(send, recv, count, type, comm, stream, NULL);
}

ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream)
{
    return ncclAlltoAllConfig(send, recv, count, type, comm, stream, NULL);
}

ncclResult_t ncclGather(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream)
{
    return ncclGatherConfig(send, recv, count, type, root, comm, stream, NULL);
}

ncclResult_t ncclScatter(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream)
{
    return ncclScatterConfig(send, recv, count, type, root, comm, stream, NULL);
}
