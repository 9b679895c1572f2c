/* How bytes and news travel between ranks: FIFOs with one writer and one reader, and a bell for each rank that wakes
 * whoever waits there.  Waiting sleeps in the kernel: there may be more ranks than cores. */
#define _GNU_SOURCE
#include "nccl_standin.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { RING_BYTES = 1 << 17, MESSAGE_BYTES = 1 << 15, YIELDS = 20, LONGEST_SLEEP_MS = 20 };

size_t ring_capacity(void)
{
    return RING_BYTES;
}

size_t fifo_bytes(int size)
{
    size_t rings = (size_t)size, messages = (size_t)size * (size_t)size;
    return (rings + messages) * sizeof(struct fifo_state) + rings * RING_BYTES + messages * MESSAGE_BYTES;
}

/* From a rank to the next one: for collectives. */
struct fifo ring_fifo(const struct ncclComm *comm, int from)
{
    size_t size = (size_t)comm->size;
    char *base = fifos_of(comm), *bytes = base + (size + size * size) * sizeof(struct fifo_state);
    return (struct fifo){(struct fifo_state *)base + from, bytes + (size_t)from * RING_BYTES, RING_BYTES};
}

struct fifo message_fifo(const struct ncclComm *comm, int from, int to)
{
    size_t size = (size_t)comm->size, index = (size_t)from * size + (size_t)to;
    char *base = fifos_of(comm), *bytes = base + (size + size * size) * sizeof(struct fifo_state) + size * RING_BYTES;
    return (struct fifo){(struct fifo_state *)base + size + index, bytes + index * MESSAGE_BYTES, MESSAGE_BYTES};
}

char *fifo_read_at(const struct fifo *fifo, size_t *bytes)
{
    uint64_t taken = atomic_load_explicit(&fifo->state->taken, memory_order_relaxed);
    size_t filled = (size_t)(atomic_load_explicit(&fifo->state->written, memory_order_acquire) - taken);
    size_t at = (size_t)(taken % fifo->capacity), to_end = fifo->capacity - at;
    *bytes = filled < to_end ? filled : to_end;
    return fifo->bytes + at;
}

char *fifo_write_at(const struct fifo *fifo, size_t *bytes)
{
    uint64_t written = atomic_load_explicit(&fifo->state->written, memory_order_relaxed);
    uint64_t taken = atomic_load_explicit(&fifo->state->taken, memory_order_acquire);
    size_t room = fifo->capacity - (size_t)(written - taken);
    size_t at = (size_t)(written % fifo->capacity), to_end = fifo->capacity - at;
    *bytes = room < to_end ? room : to_end;
    return fifo->bytes + at;
}

static size_t padded(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void fifo_taken(const struct fifo *fifo, size_t bytes)
{
    atomic_fetch_add(&fifo->state->taken, padded(bytes));
}

void fifo_written(const struct fifo *fifo, size_t bytes)
{
    atomic_fetch_add(&fifo->state->written, padded(bytes));
}

/* All or nothing. */
bool fifo_put(const struct fifo *fifo, const void *data, size_t bytes)
{
    uint64_t written = atomic_load(&fifo->state->written);
    if (fifo->capacity - (size_t)(written - atomic_load(&fifo->state->taken)) < padded(bytes))
        return false;
    size_t at = (size_t)(written % fifo->capacity), first = fifo->capacity - at < bytes ? fifo->capacity - at : bytes;
    memcpy(fifo->bytes + at, data, first);
    memcpy(fifo->bytes, (const char *)data + first, bytes - first);
    fifo_written(fifo, bytes);
    return true;
}

bool fifo_take(const struct fifo *fifo, void *data, size_t bytes)
{
    uint64_t taken = atomic_load(&fifo->state->taken);
    if ((size_t)(atomic_load(&fifo->state->written) - taken) < padded(bytes))
        return false;
    size_t at = (size_t)(taken % fifo->capacity), first = fifo->capacity - at < bytes ? fifo->capacity - at : bytes;
    memcpy(data, fifo->bytes + at, first);
    memcpy((char *)data + first, fifo->bytes, bytes - first);
    fifo_taken(fifo, bytes);
    return true;
}

static long futex(atomic_uint *word, int operation, unsigned value, const struct timespec *limit)
{
    return syscall(SYS_futex, word, operation, value, limit, NULL, 0);
}

void ring_bell(const struct ncclComm *comm, int rank)
{
    struct slot *slot = slot_of(comm, rank);
    atomic_fetch_add(&slot->bell, 1);
    if (atomic_load(&slot->sleepers))
        futex(&slot->bell, FUTEX_WAKE, INT_MAX, NULL);
}

void ring_all_bells(const struct ncclComm *comm)
{
    for (int rank = 0; rank < comm->size; rank++)
        ring_bell(comm, rank);
}

unsigned bell_of(const struct ncclComm *comm)
{
    return atomic_load(&slot_of(comm, comm->rank)->bell);
}

/* Returns when the bell was rung since `seen`, or after a short time. */
void wait_bell(const struct ncclComm *comm, unsigned seen)
{
    struct slot *slot = slot_of(comm, comm->rank);
    for (int i = 0; i < YIELDS; i++) {
        if (atomic_load(&slot->bell) != seen)
            return;
        sched_yield();
    }
    struct timespec limit = {0, LONGEST_SLEEP_MS * 1000000};
    atomic_fetch_add(&slot->sleepers, 1);
    futex(&slot->bell, FUTEX_WAIT, seen, &limit);
    atomic_fetch_sub(&slot->sleepers, 1);
}

bool peer_aborted(const struct ncclComm *comm)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank && atomic_load(&slot_of(comm, rank)->aborted))
            return true;
    return false;
}

/* The sockets of NCCL's bootstrap break when a process ends. */
static bool peer_died(const struct ncclComm *comm)
{
    for (int rank = 0; rank < comm->size; rank++) {
        struct slot *slot = slot_of(comm, rank);
        int pid = atomic_load(&slot->pid);
        if (pid && !atomic_load(&slot->left) && kill(pid, 0) && errno == ESRCH)
            return true;
    }
    return false;
}

/* The host waits for other ranks: in an initialisation, a split, a first use, at the end. */
ncclResult_t wait_until(struct ncclComm *comm, condition *reached, const void *what, const char *doing)
{
    double started = seconds(), looked = started;
    for (;;) {
        unsigned seen = bell_of(comm);
        if (reached(comm, what))
            return ncclSuccess;
        if (atomic_load(&comm->aborted))
            return ncclInternalError;
        int failed = atomic_load(&comm->segment->failed);
        if (failed)
            return (ncclResult_t)failed;
        if (peer_aborted(comm))
            return ncclRemoteError;
        double now = seconds();
        if (now - looked > 0.1) {
            looked = now;
            if (peer_died(comm)) {
                warn("A process of this communicator has ended while rank %d waited for %s", comm->rank, doing);
                return ncclRemoteError;
            }
        }
        if (settings()->timeout_s > 0 && now - started > settings()->timeout_s) {
            warn("STANDIN_NCCL_TIMEOUT_S: rank %d has waited %.1f s for %s", comm->rank, now - started, doing);
            return ncclRemoteError;
        }
        wait_bell(comm, seen);
    }
}
