/* The collectives, along a ring of the ranks as NCCL's ring algorithm does them, so that the order of summation
 * depends on the place of an element only and all ranks get the same bits.
 *
 *     all-reduce       reduce-scatter, then all-gather, of `ranks` chunks at a time
 *     broadcast        a chain that begins at the root
 *     reduce           a chain that ends at the root
 *
 * A collective can stop anywhere: where it has no room or nothing to read, advance_ring returns and is called again.
 * A chunk is a quarter of a FIFO: all ranks may send one before any of them reads.
 */
#include "nccl_standin.h"

#include <string.h>

struct step {
    bool take, combine, store, give, final;
    size_t own_at, store_at, count;      /* elements */
};

static int modulo(int value, int size)
{
    return ((value % size) + size) % size;
}

static size_t smaller(size_t one, size_t other)
{
    return one < other ? one : other;
}

static size_t left_of(size_t total, size_t start, size_t most)
{
    return start >= total ? 0 : smaller(total - start, most);
}

static size_t chunk_elements(const struct task *task)
{
    return ring_capacity() / 4 / size_of(task->type);
}

static int steps_of(enum function function, int size)
{
    if (size == 1 || function == BROADCAST || function == REDUCE)
        return 1;
    return function == ALL_REDUCE ? 2 * size - 1 : size;
}

static size_t elements_of_loop(const struct task *task, int size)
{
    return chunk_elements(task) * (task->function == ALL_REDUCE ? (size_t)size : 1);
}

static struct step all_reduce_step(const struct task *task, int rank, int size, size_t loop, int number)
{
    size_t base = loop * elements_of_loop(task, size), unit = ALIGNMENT / size_of(task->type);
    size_t share = (task->count - base + (size_t)size - 1) / (size_t)size;
    size_t chunk = smaller(chunk_elements(task), (share + unit - 1) / unit * unit);
    size_t at = base + (size_t)modulo(rank - 1 - number, size) * chunk;
    return (struct step){.take = number > 0, .combine = number > 0 && number < size, .store = number >= size - 1,
                         .give = number < 2 * size - 2, .final = number == size - 1, .own_at = at, .store_at = at,
                         .count = left_of(task->count, at, chunk)};
}

static struct step step_of(const struct task *task, int rank, int size, size_t loop, int number)
{
    size_t start = loop * chunk_elements(task), count = left_of(task->count, start, chunk_elements(task));
    struct step step = {.own_at = start, .store_at = start, .count = count};
    int place, block;
    switch (task->function) {
    case ALL_REDUCE:
        return all_reduce_step(task, rank, size, loop, number);
    case REDUCE_SCATTER:
        block = modulo(rank - 1 - number, size);
        step.take = step.combine = number > 0;
        step.store = step.final = number == size - 1;
        step.give = !step.store;
        step.own_at += (size_t)block * task->count;
        break;
    case ALL_GATHER:
        block = modulo(rank - number, size);
        step.take = number > 0;
        step.store = true;
        step.give = number < size - 1;
        step.store_at += (size_t)block * task->count;
        break;
    case BROADCAST:
        place = modulo(rank - task->root, size);
        step.take = place > 0;
        step.store = true;
        step.give = place < size - 1;
        break;
    default:
        place = modulo(rank - task->root - 1, size);
        step.take = step.combine = place > 0;
        step.store = step.final = place == size - 1;
        step.give = !step.store;
    }
    return step;
}

/* The links on which a rank gives and takes; with checks every rank hears of the one before it. */
static bool gives(const struct ncclComm *comm, const struct task *task)
{
    if (comm->size == 1)
        return false;
    return comm->segment->check || step_of(task, comm->rank, comm->size, 0, 0).give;
}

static bool takes(const struct ncclComm *comm, const struct task *task)
{
    if (comm->size == 1)
        return false;
    bool chain = task->function == BROADCAST || task->function == REDUCE;
    return comm->segment->check || !chain || step_of(task, comm->rank, comm->size, 0, 0).take;
}

static enum advance open_links(struct ncclComm *comm, const struct plan *plan, struct progress *progress,
                               uint64_t sequence)
{
    const struct task *task = progress->task;
    int next = modulo(comm->rank + 1, comm->size), before = modulo(comm->rank - 1, comm->size);
    struct frame mine = frame_of(task, sequence);
    mine.orders = plan->orders;
    memcpy(mine.order, plan->order, sizeof mine.order);
    if (!progress->announced) {
        struct fifo out = ring_fifo(comm, comm->rank);
        if (gives(comm, task)) {
            if (!fifo_put(&out, &mine, sizeof mine))
                return BLOCKED;
            ring_bell(comm, next);
        }
        progress->announced = true;
    }
    struct fifo in = ring_fifo(comm, before);
    struct frame theirs;
    if (takes(comm, task)) {
        if (!fifo_take(&in, &theirs, sizeof theirs))
            return BLOCKED;
        ring_bell(comm, before);
        if (!frame_fits(comm, &theirs, &mine, before))
            return MISMATCH;
    }
    progress->met = true;
    return MOVED;
}

/* One piece of a step: from our memory and the FIFO of the rank before, to our memory and the FIFO to the next. */
static void move_piece(const struct progress *progress, const struct step *step, size_t bytes, const char *in,
                       char *out)
{
    const struct task *task = progress->task;
    size_t size = size_of(task->type), count = bytes / size;
    const char *own = progress->send + step->own_at * size + progress->moved;
    char *store = step->store ? progress->recv + step->store_at * size + progress->moved : NULL;
    char *target = out ? out : store;
    char scaled[4096];
    if (task->operator.scales && (!step->take || step->combine)) {
        scale(task->type, scaled, own, progress->scalar, count);
        own = scaled;
    }
    if (step->take && step->combine)
        combine(task->operator.reduction, task->type, target, own, in, count);
    else if (target != (step->take ? in : own))
        memmove(target, step->take ? in : own, bytes);
    if (step->final && task->operator.divides)
        divide(task->type, target, task->operator.divisor, count);
    if (out && store)
        memcpy(store, out, bytes);
}

static size_t piece_of(const struct progress *progress, const struct step *step, size_t readable, size_t room)
{
    size_t rest = step->count * size_of(progress->task->type) - progress->moved, bytes = rest;
    if (step->take)
        bytes = smaller(bytes, readable);
    if (step->give)
        bytes = smaller(bytes, room);
    if (progress->task->operator.scales)
        bytes = smaller(bytes, 4096);
    return bytes == rest ? bytes : bytes / ALIGNMENT * ALIGNMENT;
}

static enum advance advance_step(struct ncclComm *comm, struct progress *progress, const struct step *step)
{
    size_t total = step->count * size_of(progress->task->type);
    struct fifo in = ring_fifo(comm, modulo(comm->rank - 1, comm->size)), out = ring_fifo(comm, comm->rank);
    while (progress->moved < total) {
        size_t readable, room;
        char *from = fifo_read_at(&in, &readable), *to = fifo_write_at(&out, &room);
        size_t bytes = piece_of(progress, step, readable, room);
        if (!bytes)
            return BLOCKED;
        move_piece(progress, step, bytes, from, step->give ? to : NULL);
        progress->moved += bytes;
        if (step->take) {
            fifo_taken(&in, bytes);
            ring_bell(comm, modulo(comm->rank - 1, comm->size));
        }
        if (step->give) {
            fifo_written(&out, bytes);
            ring_bell(comm, modulo(comm->rank + 1, comm->size));
        }
    }
    return MOVED;
}

enum advance advance_ring(struct ncclComm *comm, const struct plan *plan, struct progress *progress,
                          uint64_t sequence)
{
    const struct task *task = progress->task;
    if (!progress->met) {
        enum advance opened = open_links(comm, plan, progress, sequence);
        if (opened != MOVED)
            return opened;
    }
    size_t per_loop = elements_of_loop(task, comm->size);
    while (progress->loop * per_loop < task->count) {
        size_t before = progress->moved;
        struct step step = step_of(task, comm->rank, comm->size, progress->loop, progress->step);
        if (advance_step(comm, progress, &step) == BLOCKED)
            return progress->moved > before ? MOVED : BLOCKED;
        progress->moved = 0;
        if (++progress->step == steps_of(task->function, comm->size)) {
            progress->step = 0;
            progress->loop++;
        }
    }
    progress->done = true;
    return MOVED;
}
