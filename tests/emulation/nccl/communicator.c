/* Communicators: how they begin, and what can be asked of them. */
#define _GNU_SOURCE
#include "nccl_standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const char id_prefix[] = "standin-nccl-";
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *list;

const struct ncclComm *all_communicators(void)
{
    return list;
}

/* A rank that ends while others have not come would leave the segment's name behind. */
__attribute__((destructor)) static void unlink_all(void)
{
    for (struct ncclComm *comm = list; comm; comm = comm->next)
        unlink_segment(comm);
}

ncclResult_t check_pointer(const void *pointer, const char *where, const char *name)
{
    if (pointer)
        return ncclSuccess;
    warn("%s : %s argument is NULL", where, name);
    return ncclInvalidArgument;
}

ncclResult_t check_comm(const struct ncclComm *comm, const char *where)
{
    ncclResult_t result = check_pointer(comm, where, "comm");
    if (result != ncclSuccess || comm->magic == COMM_MAGIC)
        return result;
    warn("Error: corrupted comm object detected");
    return ncclInvalidArgument;
}

/* Whether a call may be made with it now. */
ncclResult_t check_ready(struct ncclComm *comm)
{
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(comm, &state);
    if (state != ncclSuccess) {
        warn("Attempt to use communicator before the previous operation returned ncclSuccess");
        return state == ncclInProgress ? ncclInvalidArgument : state;
    }
    if (!atomic_load(&comm->finalize_called))
        return ncclSuccess;
    warn("Attempt to use communicator after ncclCommFinalize");
    return ncclInvalidUsage;
}

static bool has_member(const ncclConfig_t *config, size_t end)
{
    return config->size >= end;
}

#define HAS(config, member) has_member(config, offsetof(ncclConfig_t, member) + sizeof (config)->member)

static ncclResult_t read_config(struct ncclComm *comm, const ncclConfig_t *config)
{
    const char *forced = getenv("NCCL_COMM_BLOCKING");
    int blocking = NCCL_CONFIG_UNDEF_INT;
    if (config) {
        if (config->magic != NCCL_API_MAGIC) {
            warn("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
            return ncclInvalidArgument;
        }
        blocking = config->blocking;
        int least = HAS(config, minCTAs) ? config->minCTAs : NCCL_CONFIG_UNDEF_INT;
        int most = HAS(config, maxCTAs) ? config->maxCTAs : NCCL_CONFIG_UNDEF_INT;
        bool odd = (least != NCCL_CONFIG_UNDEF_INT && least <= 0) || (most != NCCL_CONFIG_UNDEF_INT && most <= 0) ||
                   (least != NCCL_CONFIG_UNDEF_INT && most != NCCL_CONFIG_UNDEF_INT && least > most);
        if (odd) {
            warn("Invalid config min/max channels attribute value %d/%d", least, most);
            return ncclInvalidArgument;
        }
        if (HAS(config, commName) && config->commName)
            snprintf(comm->name, sizeof comm->name, "%s", config->commName);
    }
    if (forced && *forced)
        blocking = atoi(forced);
    if (blocking != NCCL_CONFIG_UNDEF_INT && blocking != 0 && blocking != 1) {
        warn("Invalid config blocking attribute value %d", blocking);
        return ncclInvalidArgument;
    }
    if (blocking != NCCL_CONFIG_UNDEF_INT)
        comm->blocking = blocking;
    return ncclSuccess;
}

static ncclResult_t use_device(struct ncclComm *comm, int device)
{
    int major = 0, minor = 0;
    bool fine = cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) == CUDA_SUCCESS &&
                cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) == CUDA_SUCCESS &&
                cuDevicePrimaryCtxRetain(&comm->context, device) == CUDA_SUCCESS &&
                cuCtxPushCurrent(comm->context) == CUDA_SUCCESS;
    comm->device = device;
    comm->capability = 10 * major + minor;
    if (!fine) {
        warn("Cuda failure: device %d cannot be used", device);
        return ncclUnhandledCudaError;
    }
    CUcontext back;
    fine = cuEventCreate(&comm->last, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
           cuEventCreate(&comm->captured_last, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
    cuCtxPopCurrent(&back);
    return fine ? ncclSuccess : ncclUnhandledCudaError;
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 14695981039346656037u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

ncclResult_t make_comm(struct ncclComm **out, int size, int rank, int device, bool blocking,
                       const ncclConfig_t *config)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    comm->magic = COMM_MAGIC;
    comm->rank = rank;
    comm->size = size;
    comm->blocking = blocking;
    comm->sends = calloc((size_t)MOST_RANKS, sizeof *comm->sends);
    comm->receives = calloc((size_t)MOST_RANKS, sizeof *comm->receives);
    pthread_mutex_init(&comm->turn, NULL);
    ncclResult_t result = read_config(comm, config);
    if (result == ncclSuccess)
        result = use_device(comm, device);
    if (result != ncclSuccess) {
        free(comm->sends);
        free(comm->receives);
        free(comm);
        return result;
    }
    pthread_mutex_lock(&list_lock);
    comm->next = list;
    list = comm;
    pthread_mutex_unlock(&list_lock);
    *out = comm;
    return ncclSuccess;
}

void name_comm(struct ncclComm *comm, const char *name)
{
    snprintf(comm->segment_path, sizeof comm->segment_path, "%s/%.*s", settings()->meeting, NCCL_UNIQUE_ID_BYTES, name);
    comm->hash = hash_of(comm->segment_path);
}

ncclResult_t start_comm(struct ncclComm *comm, const char *function)
{
    if (comm->rank == 0)
        show_version();
    if (init_fails(comm)) {
        warn("STANDIN_NCCL_FAULT: the initialisation of rank %d fails", comm->rank);
        return ncclSystemError;
    }
    info(comm->device, "%s comm %p rank %d nranks %d cudaDev %d commId 0x%lx - Init START", function, (void *)comm,
         comm->rank, comm->size, comm->device, (unsigned long)comm->hash);
    ncclResult_t result = open_segment(comm);
    if (result == ncclSuccess)
        info(comm->device, "%s comm %p rank %d nranks %d cudaDev %d nvmlDev %d busId %lx commId 0x%lx - Init COMPLETE",
             function, (void *)comm, comm->rank, comm->size, comm->device, comm->device,
             slot_of(comm, comm->rank)->bus_id, (unsigned long)comm->hash);
    return result;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    ncclResult_t result = check_pointer(id, "GetUniqueId", "out");
    if (result != ncclSuccess)
        return result;
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return ncclSystemError;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%s%d-%016lx", id_prefix, getpid(), (unsigned long)number);
    return ncclSuccess;
}

/* An id is good for one communicator: its root listens no more afterwards. */
static bool used_before(const struct ncclComm *comm)
{
    bool found = false;
    pthread_mutex_lock(&list_lock);
    for (const struct ncclComm *other = list; other; other = other->next)
        found = found || (other != comm && other->hash == comm->hash && other->rank == comm->rank);
    pthread_mutex_unlock(&list_lock);
    return found;
}

static ncclResult_t run_init(struct job *job)
{
    struct ncclComm *comm = job->comm;
    ncclResult_t result = start_comm(comm, "ncclCommInitRank");
    if (result != ncclSuccess && comm->blocking) {
        *job->newcomm = NULL;
        bury_comm(comm);
    }
    return result;
}

static ncclResult_t current_device(int *device)
{
    CUdevice found = 0;
    if (cuInit(0) != CUDA_SUCCESS) {
        warn("Cuda failure: no driver or no device");
        return ncclUnhandledCudaError;
    }
    *device = cuCtxGetDevice(&found) == CUDA_SUCCESS ? found : 0;
    return ncclSuccess;
}

static ncclResult_t begin(ncclComm_t *out, int size, const ncclUniqueId *id, int rank, int device,
                          const ncclConfig_t *config)
{
    ncclResult_t result = check_pointer(out, "CommInitRank", "newcomm");
    if (result != ncclSuccess)
        return result;
    *out = NULL;
    if (size < 1 || rank < 0 || rank >= size || size > MOST_RANKS) {
        warn("Invalid rank requested : %d/%d", rank, size);
        return ncclInvalidArgument;
    }
    if (strncmp(id->internal, id_prefix, sizeof id_prefix - 1)) {
        warn("This unique id does not come from ncclGetUniqueId");
        return ncclInvalidArgument;
    }
    struct ncclComm *comm;
    result = make_comm(&comm, size, rank, device, true, config);
    if (result != ncclSuccess)
        return result;
    name_comm(comm, id->internal);
    if (used_before(comm)) {
        warn("socketStartConnect: Connect failed : Connection refused (a unique id is used for a second time)");
        bury_comm(comm);
        return ncclSystemError;
    }
    struct job *job = calloc(1, sizeof *job);
    *job = (struct job){.run = run_init, .comm = comm, .newcomm = out};
    *out = comm;
    atomic_store(&comm->state, comm->blocking ? ncclSuccess : ncclInProgress);
    return add_job(job, false);
}

static ncclResult_t init_rank(ncclComm_t *out, int size, const ncclUniqueId *id, int rank, const ncclConfig_t *config)
{
    int device = 0;
    ncclResult_t result = current_device(&device);
    if (result != ncclSuccess)
        return result;
    enter_group();
    result = fail_group(begin(out, size, id, rank, device, config));
    ncclResult_t end = leave_group();
    return result == ncclSuccess ? end : result;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank)
{
    return init_rank(comm, size, &id, rank, NULL);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    return init_rank(comm, size, &id, rank, config);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int size, int rank, int ids, ncclUniqueId *id,
                                      ncclConfig_t *config)
{
    if (check_pointer(id, "CommInitRankScalable", "commIds") != ncclSuccess)
        return ncclInvalidArgument;
    if (ids < 1 || ids > size) {
        warn("CommInitRankScalable : %d unique ids for %d ranks", ids, size);
        return ncclInvalidArgument;
    }
    return init_rank(comm, size, id, rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices)
{
    int device, total = 0;
    ncclUniqueId id;
    ncclResult_t result = check_pointer(comms, "CommInitAll", "comms");
    if (result == ncclSuccess)
        result = current_device(&device);
    if (result != ncclSuccess || cuDeviceGetCount(&total) != CUDA_SUCCESS)
        return result == ncclSuccess ? ncclUnhandledCudaError : result;
    if (count < 1 || (!devices && count > total)) {
        warn("Invalid device count requested : %d", count);
        return ncclInvalidArgument;
    }
    for (int i = 0; devices && i < count; i++)
        if (devices[i] < 0 || devices[i] >= total) {
            warn("Invalid device %d (totalnDev=%d)", devices[i], total);
            return ncclInvalidArgument;
        }
    result = ncclGetUniqueId(&id);
    enter_group();
    for (int i = 0; i < count && result == ncclSuccess; i++)
        result = fail_group(begin(&comms[i], count, &id, i, devices ? devices[i] : i, NULL));
    ncclResult_t end = leave_group();
    return result == ncclSuccess ? end : result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    ncclResult_t result = check_comm(comm, "ncclGetAsyncError");
    if (result == ncclSuccess)
        result = check_pointer(error, "ncclGetAsyncError", "asyncError");
    if (result != ncclSuccess)
        return result;
    *error = (ncclResult_t)atomic_load(&comm->state);
    if (*error != ncclSuccess || !comm->segment)
        return ncclSuccess;
    int failed = atomic_load(&comm->segment->failed);
    if (!failed && settings()->reach != REACH_NOTHING && peer_aborted(comm))
        failed = ncclRemoteError;
    if (failed) {
        int fine = ncclSuccess;
        atomic_compare_exchange_strong(&comm->state, &fine, failed);
        *error = (ncclResult_t)failed;
    }
    return ncclSuccess;
}

static ncclResult_t answer(int *out, const char *where, const char *name, int value)
{
    ncclResult_t result = check_pointer(out, where, name);
    if (result == ncclSuccess)
        *out = value;
    return result;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    ncclResult_t result = check_comm(comm, "CommCount");
    return result == ncclSuccess ? answer(count, "CommCount", "count", comm->size) : result;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    ncclResult_t result = check_comm(comm, "CommCuDevice");
    return result == ncclSuccess ? answer(device, "CommCuDevice", "device", comm->device) : result;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    ncclResult_t result = check_comm(comm, "CommUserRank");
    return result == ncclSuccess ? answer(rank, "CommUserRank", "rank", comm->rank) : result;
}
