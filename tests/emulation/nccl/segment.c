/* The shared memory of a communicator: a file in /dev/shm, or where the hosts of STANDIN_MEETING meet, named by the
 * unique id.
 *
 *     header | a slot for each rank | who is connected with whom | states of the FIFOs | bytes of the FIFOs
 *
 * The first rank makes it, the last one to come takes its name away, so that nothing is left in /dev/shm however the
 * job ends from then on.
 */
#define _GNU_SOURCE
#include "nccl_standin.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t connections_at(int size)
{
    return rounded(sizeof(struct header) + (size_t)size * sizeof(struct slot));
}

static size_t fifos_at(int size)
{
    return connections_at(size) + rounded(2 * (size_t)size * (size_t)size);
}

struct slot *slot_of(const struct ncclComm *comm, int rank)
{
    return &comm->segment->slots[rank];
}

/* Set by the sender, and by the receiver, of messages from one rank to another. */
atomic_uchar *connection(const struct ncclComm *comm, int from, int to, bool receiver)
{
    size_t size = (size_t)comm->size;
    char *base = (char *)comm->segment + connections_at(comm->size);
    return (atomic_uchar *)base + ((size_t)receiver * size + (size_t)from) * size + (size_t)to;
}

char *fifos_of(const struct ncclComm *comm)
{
    return (char *)comm->segment + fifos_at(comm->size);
}

static void *map(int file, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static struct header *create(struct ncclComm *comm, int file)
{
    size_t bytes = fifos_at(comm->size) + fifo_bytes(comm->size);
    int error = posix_fallocate(file, 0, (off_t)bytes);
    struct header *header = error ? NULL : map(file, bytes);
    if (!header) {
        warn("Error while creating shared memory segment %s (size %zu): %s", comm->segment_path, bytes,
             strerror(error ? error : errno));
        unlink(comm->segment_path);
        return NULL;
    }
    header->size = comm->size;
    header->check = settings()->check;
    header->bytes = bytes;
    atomic_store(&header->ready, 1);
    return header;
}

/* Made by another rank, perhaps at this moment. */
static struct header *join(struct ncclComm *comm, int file)
{
    struct stat facts;
    do {
        if (fstat(file, &facts))
            return NULL;
        sched_yield();
    } while (facts.st_size < (off_t)sizeof(struct header) && !atomic_load(&comm->aborted));
    struct header *header = map(file, (size_t)facts.st_size);
    while (header && !atomic_load(&header->ready) && !atomic_load(&comm->aborted))
        sched_yield();
    return header;
}

static ncclResult_t map_segment(struct ncclComm *comm)
{
    for (;;) {
        int file = open(comm->segment_path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        bool first = file >= 0;
        if (!first && errno == EEXIST)
            file = open(comm->segment_path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (file < 0 && errno == ENOENT)
            continue;
        if (file < 0) {
            warn("Error while opening shared memory segment %s: %s", comm->segment_path, strerror(errno));
            return ncclSystemError;
        }
        comm->segment = first ? create(comm, file) : join(comm, file);
        close(file);
        comm->linked = comm->segment != NULL;
        return comm->segment ? ncclSuccess : ncclSystemError;
    }
}

static ncclResult_t take_slot(struct ncclComm *comm)
{
    struct header *header = comm->segment;
    if (header->size != comm->size) {
        warn("Bootstrap Root : mismatch in info from procs, nranks %d vs %d", header->size, comm->size);
        atomic_store(&header->failed, ncclRemoteError);
        return ncclInternalError;
    }
    struct slot *slot = slot_of(comm, comm->rank);
    int nobody = 0;
    if (!atomic_compare_exchange_strong(&slot->pid, &nobody, getpid())) {
        warn("Bootstrap Root : rank %d of %d ranks has already checked in", comm->rank, comm->size);
        return ncclInternalError;
    }
    slot->device = comm->device;
    slot->host = host_hash();
    char bus[32] = "";
    unsigned domain = 0, number = 0, unit = 0;
    cuDeviceGetPCIBusId(bus, sizeof bus, comm->device);
    sscanf(bus, "%x:%x:%x", &domain, &number, &unit);
    slot->bus_id = (unsigned long)domain << 20 | number << 12 | unit << 4;
    if (cuDeviceGetUuid(&slot->uuid, comm->device) != CUDA_SUCCESS)
        return ncclUnhandledCudaError;
    atomic_store(&slot->ready, 1);
    return ncclSuccess;
}

static bool all_here(struct ncclComm *comm, const void *unused)
{
    (void)unused;
    return atomic_load(&comm->segment->attached) >= comm->size;
}

static ncclResult_t check_devices(const struct ncclComm *comm)
{
    for (int i = 0; i < comm->size; i++)
        for (int j = 0; j < i; j++) {
            const struct slot *one = slot_of(comm, i), *other = slot_of(comm, j);
            if (one->host == other->host && !memcmp(&one->uuid, &other->uuid, sizeof one->uuid) &&
                !settings()->share_devices) {
                warn("Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable "
                     "this configuration.");
                return ncclInvalidUsage;
            }
        }
    return ncclSuccess;
}

/* Waits for all ranks. */
ncclResult_t open_segment(struct ncclComm *comm)
{
    ncclResult_t result = map_segment(comm);
    if (result != ncclSuccess)
        return result;
    result = take_slot(comm);
    if (result != ncclSuccess) {  /* it belongs to others */
        comm->linked = false;
        close_segment(comm);
        return result;
    }
    if (atomic_fetch_add(&comm->segment->attached, 1) == comm->size - 1)
        unlink_segment(comm);
    ring_all_bells(comm);
    result = wait_until(comm, all_here, NULL, "all ranks to initialise");
    if (result != ncclSuccess) {
        unlink_segment(comm);
        return result;
    }
    comm->linked = false;
    return check_devices(comm);
}

void unlink_segment(struct ncclComm *comm)
{
    if (comm->linked)
        unlink(comm->segment_path);
    comm->linked = false;
}

void close_segment(struct ncclComm *comm)
{
    unlink_segment(comm);
    if (comm->segment)
        munmap(comm->segment, comm->segment->bytes);
    comm->segment = NULL;
}
