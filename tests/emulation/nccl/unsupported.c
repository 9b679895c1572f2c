/* What NCCL has and the stand-in has not: refused, so that no test passes on it by accident. */
#include "nccl_standin.h"

static ncclResult_t refuse(const char *function)
{
    warn("%s: the CPU stand-in does not have this", function);
    report("%s: the CPU stand-in does not have this", function);
    return ncclInvalidUsage;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    (void)comm, (void)flags;
    return refuse("ncclCommRevoke");
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *ranks, int count, ncclComm_t *newcomm, ncclConfig_t *config, int flags)
{
    (void)comm, (void)ranks, (void)count, (void)newcomm, (void)config, (void)flags;
    return refuse("ncclCommShrink");
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id)
{
    (void)comm, (void)id;
    return refuse("ncclCommGetUniqueId");
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int size, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                          ncclConfig_t *config)
{
    (void)comm, (void)size, (void)id, (void)rank, (void)newcomm, (void)config;
    return refuse("ncclCommGrow");
}

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags)
{
    (void)comm, (void)flags;
    return refuse("ncclCommSuspend");
}

ncclResult_t ncclCommResume(ncclComm_t comm)
{
    (void)comm;
    return refuse("ncclCommResume");
}

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
    (void)comm, (void)stat, (void)value;
    return refuse("ncclCommMemStats");
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void **pointer)
{
    (void)comm, (void)window, (void)pointer;
    return refuse("ncclWinGetUserPtr");
}

ncclResult_t ncclPutSignal(const void *buffer, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,
                           size_t offset, int signal, int context, unsigned flags, ncclComm_t comm, cudaStream_t stream)
{
    (void)buffer, (void)count, (void)type, (void)peer, (void)window, (void)offset, (void)signal, (void)context;
    (void)flags, (void)comm, (void)stream;
    return refuse("ncclPutSignal");
}

ncclResult_t ncclSignal(int peer, int signal, int context, unsigned flags, ncclComm_t comm, cudaStream_t stream)
{
    (void)peer, (void)signal, (void)context, (void)flags, (void)comm, (void)stream;
    return refuse("ncclSignal");
}

ncclResult_t ncclWaitSignal(int count, ncclWaitSignalDesc_t *signals, ncclComm_t comm, cudaStream_t stream)
{
    (void)count, (void)signals, (void)comm, (void)stream;
    return refuse("ncclWaitSignal");
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *result)
{
    (void)result;
    return refuse("ncclGroupSimulateEnd");
}
