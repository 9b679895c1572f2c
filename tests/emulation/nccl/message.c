/* Messages: a send on one rank and a receive on another (or on the same); and what both kinds of task tell the
 * other side about themselves. */
#include "nccl_standin.h"

#include <string.h>

enum { FRAME_MAGIC = 0x4652414d };

struct frame frame_of(const struct task *task, uint64_t sequence)
{
    return (struct frame){.magic = FRAME_MAGIC, .function = task->function, .type = (uint32_t)task->type,
                          .op = task->op, .root = task->root, .count = task->count, .sequence = sequence};
}

static const char *name_of(uint32_t function)
{
    static const char *const names[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "Send",
                                        "Recv"};
    return function < sizeof names / sizeof *names ? names[function] : "nothing known";
}

/* Communicators that two ranks use in a different order may dead-lock on a GPU, whatever the streams. */
static bool same_order(const struct ncclComm *comm, const struct frame *theirs, const struct frame *mine, int peer)
{
    for (uint32_t i = 0; i < mine->orders && i < MOST_ORDERS; i++)
        for (uint32_t j = 0; j < theirs->orders && j < MOST_ORDERS; j++) {
            const struct order *one = &mine->order[i], *other = &theirs->order[j];
            if (one->communicator != other->communicator || one->count == other->count)
                continue;
            report("ranks %d and %d of communicator %016lx use it and communicator %016lx in a different order: "
                   "before operation %lu of the first, %lu and %lu of the other", comm->rank, peer,
                   (unsigned long)comm->hash, (unsigned long)one->communicator, (unsigned long)mine->sequence,
                   (unsigned long)one->count, (unsigned long)other->count);
            return false;
        }
    return true;
}

/* Always true without STANDIN_NCCL_CHECK: NCCL does not compare what ranks call, the results are wrong or never
 * come. */
bool frame_fits(struct ncclComm *comm, const struct frame *theirs, const struct frame *mine, int peer)
{
    if (!comm->segment->check)
        return true;
    bool message = mine->function == RECEIVE;
    bool same = theirs->magic == FRAME_MAGIC && theirs->count == mine->count && theirs->type == mine->type;
    if (!message)
        same = same && theirs->function == mine->function && theirs->op == mine->op && theirs->root == mine->root;
    if (!same)
        report("MISMATCH in communicator %016lx: rank %d calls %s(count %lu, datatype %u, op %d, root %d), rank %d "
               "calls %s(count %lu, datatype %u, op %d, root %d)", (unsigned long)comm->hash, comm->rank,
               name_of(mine->function), (unsigned long)mine->count, mine->type, mine->op, mine->root, peer,
               name_of(theirs->function), (unsigned long)theirs->count, theirs->type, theirs->op, theirs->root);
    return same && same_order(comm, theirs, mine, peer);
}

static enum advance advance_send(struct ncclComm *comm, struct progress *progress, uint64_t sequence)
{
    const struct task *task = progress->task;
    struct fifo fifo = message_fifo(comm, comm->rank, task->root);
    struct frame frame = frame_of(task, sequence);
    size_t start = progress->moved;
    if (!progress->announced && !fifo_put(&fifo, &frame, sizeof frame))
        return BLOCKED;
    bool moved = !progress->announced;
    progress->announced = true;
    while (progress->moved < task->send_bytes) {
        size_t room, rest = task->send_bytes - progress->moved;
        char *to = fifo_write_at(&fifo, &room);
        size_t bytes = rest <= room ? rest : room;
        if (!bytes)
            break;
        memcpy(to, progress->send + progress->moved, bytes);
        fifo_written(&fifo, bytes);
        progress->moved += bytes;
    }
    progress->done = progress->moved == task->send_bytes;
    if (!moved && progress->moved == start && !progress->done)
        return BLOCKED;
    ring_bell(comm, task->root);
    return MOVED;
}

static enum advance advance_receive(struct ncclComm *comm, struct progress *progress, uint64_t sequence)
{
    const struct task *task = progress->task;
    struct fifo fifo = message_fifo(comm, task->root, comm->rank);
    struct frame theirs, mine = frame_of(task, sequence);
    size_t start = progress->moved;
    if (!progress->met && !fifo_take(&fifo, &theirs, sizeof theirs))
        return BLOCKED;
    bool moved = !progress->met;
    if (moved && !frame_fits(comm, &theirs, &mine, task->root))
        return MISMATCH;
    progress->met = true;
    while (progress->moved < task->recv_bytes) {
        size_t readable, rest = task->recv_bytes - progress->moved;
        const char *from = fifo_read_at(&fifo, &readable);
        size_t bytes = rest <= readable ? rest : readable;
        if (!bytes)
            break;
        memcpy(progress->recv + progress->moved, from, bytes);
        fifo_taken(&fifo, bytes);
        progress->moved += bytes;
    }
    progress->done = progress->moved == task->recv_bytes;
    if (!moved && progress->moved == start && !progress->done)
        return BLOCKED;
    ring_bell(comm, task->root);
    return MOVED;
}

enum advance advance_message(struct ncclComm *comm, struct progress *progress, uint64_t sequence)
{
    return progress->task->function == SEND ? advance_send(comm, progress, sequence)
                                            : advance_receive(comm, progress, sequence);
}
