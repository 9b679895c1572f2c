/* Group: calls of all members through a staging segment.  Segment and protocol are those of transports/slots.py
 * and shm.py, which have the pictures; members that run those and members that run this understand each other.
 *
 * A call is a walk over parts, each through one block:
 *
 *     turn -> [ fill: wait for LEFT of block - 2, copy in, mark ARRIVED ]  the next part already, when it can
 *             [ drain: wait for ARRIVED, combine, mark COMBINED, wait for it, copy out ]
 *             [ mark LEFT ]  next part
 *     -> where the own elements were offered in place: wait until all have left
 *
 * No function here waits: group_call_test returns where shm.py yields. */

#include "group.h"

#include "copy.h"

/* Elements are combined in pieces of so many bytes, which a cache still has when they are copied out. */
#define PIECE_BYTES 65536
/* Calls of at most so many bytes between two members: each combines all that it wants. */
#define ALLREDUCE_ALONE_BYTES 32768
#define REDUCE_ALONE_BYTES 262144
/* Of results that are not for one run of memory, bytes combined at a time. */
#define ROOM_BYTES 8192
/* Of what one gives to all, or to the other of two, bytes that may be taken while the next ones are copied in. */
#define STRIP_BYTES 8192

static int64_t
least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Streams */

static Stream
stream_of(const Place *places, int64_t count, char *const *buffers, int64_t itemsize)
{
    Stream self = {places, count, buffers, itemsize, 0, 0};
    for (int64_t i = 0; i < count; ++i)
        self.length += places[i].stop - places[i].start;
    return self;
}

/* Elements start, ..., stop - 1 of the stream, out of it or into it. */
static void
stream_copy(const Stream *self, int64_t start, int64_t stop, char *other, int into)
{
    int64_t offset = 0;
    for (int64_t i = 0; i < self->count && offset < stop; ++i) {
        const Place *place = self->places + i;
        int64_t size = place->stop - place->start;
        int64_t low = start > offset ? start : offset, high = least(stop, offset + size);
        if (low < high) {
            char *here = self->buffers[place->memory] + (place->start + low - offset) * self->itemsize;
            char *there = other + (low - start) * self->itemsize;
            size_t nbytes = (size_t)((high - low) * self->itemsize);
            int past = into && self->is_cold;
            (past ? copy_past_caches : copy_bytes)(into ? here : there, into ? there : here, nbytes);
        }
        offset += size;
    }
}

static void
stream_read(const Stream *self, int64_t start, int64_t stop, char *out)
{
    stream_copy(self, start, stop, out, 0);
}

static void
stream_write(const Stream *self, int64_t start, int64_t stop, const char *values)
{
    stream_copy(self, start, stop, (char *)values, 1);
}

/* Where the elements from `start` on lie, if the stream is of one piece; else NULL. */
static char *
stream_at(const Stream *self, int64_t start)
{
    if (self->count != 1)
        return NULL;
    return self->buffers[self->places->memory] + (self->places->start + start) * self->itemsize;
}

/* What a block uses of a member's slot; of a broadcast, which all slots have together, member 0's. */
static char *
slot_of(const GroupCall *self, uint64_t block, int64_t member)
{
    const Group *group = self->group;
    int64_t room = group->slot_bytes * (self->code == BROADCAST ? group->members : 1);
    return group_slot(group, block, member) + group_turn(block, self->used, room);
}

/* A member's elements: those from `start` of all that it gives, which its slot has from `in_slot` on.  NULL when they
 * are not there, or in another process. */
static const char *
given(const GroupCall *self, uint64_t block, int64_t member, int64_t start, int64_t in_slot, int64_t count)
{
    Group *group = self->group;
    const char *own = member == group->me ? stream_at(&self->source, start) : NULL;
    Offer offer = group_source(group, block, member);
    if (own != NULL)
        return own;
    if (offer.area == 0)
        return slot_of(self, block, member) + in_slot * self->itemsize;
    return group_offered(group, member, offer, start * self->itemsize, count * self->itemsize);
}

/* Copies elements that a member offers in its process, those from `start` on, to the target from `to` on. */
static int
fetch(const GroupCall *self, int64_t member, Offer offer, int64_t start, int64_t count, int64_t to)
{
    const Stream *target = &self->target;
    int64_t offset = 0;
    for (int64_t i = 0; i < target->count; ++i) {
        const Place *place = target->places + i;
        int64_t size = place->stop - place->start;
        int64_t low = to > offset ? to : offset, high = least(to + count, offset + size);
        if (low < high
            && group_fetch(self->group, member, offer, (start + low - to) * self->itemsize,
                           (high - low) * self->itemsize,
                           target->buffers[place->memory] + (place->start + low - offset) * self->itemsize) < 0)
            return -1;
        offset += size;
    }
    return 0;
}

/* Copies a member's elements, as of `given`, to the target from `to` on; -1 when they are not there. */
static int
take(const GroupCall *self, uint64_t block, int64_t member, int64_t start, int64_t in_slot, int64_t count,
     int64_t to)
{
    Offer offer = group_source(self->group, block, member);
    if (offer.area == IN_PROCESS && member != self->group->me)
        return fetch(self, member, offer, start, count, to);
    const char *from = given(self, block, member, start, in_slot, count);
    if (from == NULL)
        return -1;
    stream_write(&self->target, to, to + count, from);
    return 0;
}

/* Parts: which elements a part is, for calls on one region and for calls with counts */

static int64_t
part_start(const GroupCall *self, int64_t part)
{
    return part * self->room;
}

static int64_t
part_length(const GroupCall *self, int64_t part, int64_t length)
{
    return least(self->room, length - part * self->room);
}

/* Elements of a piece of `count` elements that come before part number `part`. */
static int64_t
before(const GroupCall *self, int64_t part, int64_t count)
{
    return least(part * self->room, count);
}

/* Of a part of `count` elements a member combines low, ..., high - 1. */
typedef struct {
    int64_t low, high;
} Share;

static Share
share_of(const GroupCall *self, int64_t member, int64_t count)
{
    int64_t members = self->group->members;
    return (Share){count * member / members, count * (member + 1) / members};
}

/* What one member gives to another: where it begins in all that it gives, and how many elements it is. */
typedef struct {
    int64_t begin, count;
} Piece;

static Piece
piece_of(const GroupCall *self, int64_t giver, int64_t taker)
{
    if (self->code == ALLGATHER || self->code == GATHER) /* the same for everybody */
        return (Piece){0, self->counts[giver]};
    const int64_t *row = self->counts + (self->code == ALLTOALL ? giver * self->group->members : 0);
    Piece found = {0, row[taker]};
    for (int64_t member = 0; member < taker; ++member)
        found.begin += row[member];
    return found;
}

/* Copies a part of the own piece for a member out of the source, unless that is this one, which reads it there. */
static void
give_piece(const GroupCall *self, int64_t part, int64_t taker, char *out)
{
    if (taker == self->group->me && self->source.count == 1)
        return;
    Piece piece = piece_of(self, self->group->me, taker);
    stream_read(&self->source, piece.begin + before(self, part, piece.count),
                piece.begin + before(self, part + 1, piece.count), out);
}

/* Copies a part of the piece from a member to the target, from element `at` on; -1 when it is not there. */
static int
take_piece(const GroupCall *self, int64_t part, uint64_t block, int64_t giver, int64_t in_slot, int64_t at)
{
    Piece piece = piece_of(self, giver, self->group->me);
    int64_t low = before(self, part, piece.count), high = before(self, part + 1, piece.count);
    return take(self, block, giver, piece.begin + low, in_slot, high - low, at + low);
}

static int
take_pieces(const GroupCall *self, int64_t part, uint64_t block, int64_t in_slot)
{
    int64_t at = 0;
    for (int64_t giver = 0; giver < self->group->members; ++giver) {
        if (take_piece(self, part, block, giver, in_slot, at) < 0)
            return -1;
        at += piece_of(self, giver, self->group->me).count;
    }
    return 0;
}

/* Between two members reductions take one hand-over less where each that wants results combines all of them, and as
 * many lines change cores as where each combines half; in a reduce the other need not wait for the root. */
static int
is_combined_alone(const GroupCall *self)
{
    int64_t most = self->code == ALLREDUCE ? ALLREDUCE_ALONE_BYTES : self->code == REDUCE ? REDUCE_ALONE_BYTES : -1;
    return self->group->members == 2 && self->source.length * self->itemsize <= most && self->itemsize <= ROOM_BYTES;
}

/* Filling: a part goes into the slots */

static int
gives(const GroupCall *self)
{
    int rooted = self->code == BROADCAST || self->code == SCATTER;
    return !rooted || self->group->me == self->root;
}

/* Says in every part that it has come: who gives, and who is given by the root's pushing. */
static int
fills(const GroupCall *self)
{
    return gives(self) || self->both_copy;
}

static void
fill_in_strips(const GroupCall *self, uint64_t block, int64_t start, int64_t count, char *slot)
{
    int64_t strip = STRIP_BYTES / self->itemsize + 1;
    for (int64_t done = 0; done < count; done += strip) {
        int64_t next = least(done + strip, count);
        stream_read(&self->source, start + done, start + next, slot + done * self->itemsize);
        if (next < count && next * self->itemsize <= UINT32_MAX)
            group_tell_filled(self->group, block, next * self->itemsize);
    }
}

static void
fill(const GroupCall *self, int64_t part, uint64_t block)
{
    const Group *group = self->group;
    int64_t members = group->members, start = part_start(self, part);
    char *own = slot_of(self, block, group->me);
    switch (self->code) {
    case SCATTER:
        for (int64_t member = 0; member < members; ++member)
            give_piece(self, part, member, slot_of(self, block, member));
        break;
    case REDUCE_SCATTER:
    case ALLTOALL:
        for (int64_t member = 0; member < members; ++member)
            give_piece(self, part, member, own + member * self->room * self->itemsize);
        break;
    case GATHER:
        if (group->me == self->root && self->source.count == 1)
            break;
        /* fall through */
    case ALLGATHER: { /* the same for everybody */
        Piece piece = piece_of(self, group->me, group->me);
        stream_read(&self->source, before(self, part, piece.count), before(self, part + 1, piece.count), own);
        break;
    }
    case ALLREDUCE:
    case REDUCE: {
        int64_t count = part_length(self, part, self->source.length);
        Share mine = share_of(self, group->me, count);
        if (is_combined_alone(self)) {
            if (self->code == ALLREDUCE || self->target.length == 0 || self->source.count != 1)
                fill_in_strips(self, block, start, count, own);
            break;
        }
        stream_read(&self->source, start, start + mine.low, own);
        if (self->source.count != 1) /* else this member, which combines them, reads them there */
            stream_read(&self->source, start + mine.low, start + mine.high, own + mine.low * self->itemsize);
        stream_read(&self->source, start + mine.high, start + count, own + mine.high * self->itemsize);
        break;
    }
    case BROADCAST:
        fill_in_strips(self, block, start, part_length(self, part, self->source.length), slot_of(self, block, 0));
        break;
    default:
        stream_read(&self->source, start, start + part_length(self, part, self->source.length), own);
    }
}

/* As far as the halves are free: the part that comes next, and the one after it. */
static void
fill_ahead(GroupCall *self, int *moved)
{
    while (self->filled < least(self->part + 2, self->parts)) {
        uint64_t block = self->first + (uint64_t)self->filled;
        if (!group_is_free(self->group, block))
            return;
        group_offer(self->group, block, self->source_offer, self->target_offer);
        if (gives(self) && self->source_offer.area == 0)
            fill(self, self->filled, block);
        group_mark(self->group, ARRIVED, block);
        self->filled += 1;
        *moved = 1;
    }
}

/* Combining: `count` elements from `start` of what each member gives, which are in its slot from `in_slot` on.  -1 when
 * the kernel raised, or a member's elements are not there. */

/* The slot into which a member combines its share: the first; but member 1, who need not pass over its own elements
 * before it reads them, its own, as it takes long to write what another core has just written. */
static char *
results_of(const GroupCall *self, uint64_t block, int64_t member)
{
    return slot_of(self, block, member == 1);
}

/* All of them to where `result` is: none of them but member 0's and the own of member 1 may lie there. */
static int
combine_all(const GroupCall *self, uint64_t block, int64_t start, int64_t in_slot, int64_t count, char *result,
            PyObject **error)
{
    Group *group = self->group;
    const char *left = given(self, block, 0, start, in_slot, count);
    if (left != NULL && left != result && group->members == 1)
        copy_bytes(result, left, (size_t)(count * self->itemsize));
    for (int64_t member = 1; member < group->members; ++member) {
        const char *right = given(self, block, member, start, in_slot, count);
        if (left == NULL || right == NULL
            || kernel_combine(self->kernel, left, right, result, count, error) < 0)
            return -1;
        left = result;
    }
    return left == NULL ? -1 : 0;
}

/* Where in the target `count` results from element `at` on may be combined, whose own operands are those from `start`
 * on; NULL: in a slot. */
static char *
place_in_target(const GroupCall *self, int64_t start, int64_t at, int64_t count)
{
    if (self->target.is_cold || self->target.length == 0)
        return NULL;
    char *place = stream_at(&self->target, at);
    const char *own = stream_at(&self->source, start);
    int apart = place != NULL && own != NULL && lie_apart(place, own, (size_t)(count * self->itemsize));
    return apart ? place : NULL;
}

/* Each with all before it, into its own slot. */
static int
combine_running(const GroupCall *self, uint64_t block, int64_t start, int64_t in_slot, int64_t count,
                PyObject **error)
{
    Group *group = self->group;
    int64_t last = group->members - (self->code == EXSCAN);
    for (int64_t member = 0; member < last; ++member) {
        const char *right = given(self, block, member, start, in_slot, count);
        char *into = slot_of(self, block, member) + in_slot * self->itemsize;
        if (right == NULL)
            return -1;
        if (member == 0 && right != into)
            copy_bytes(into, right, (size_t)(count * self->itemsize));
        if (member > 0
            && kernel_combine(self->kernel, into - group->slot_bytes, right, into, count, error) < 0)
            return -1;
    }
    return 0;
}

/* Elements that are combined at a time: what a cache holds, or all where the kernel is Python's. */
static int64_t
piece_length(const GroupCall *self, int64_t count)
{
    int64_t length = PIECE_BYTES / self->itemsize;
    return self->kernel->loop == NULL || length < 1 ? count : length;
}

static int
all_offer_targets(const GroupCall *self, uint64_t block)
{
    for (int64_t member = 0; member < self->group->members; ++member)
        if (group_target(self->group, block, member).area == 0)
            return 0;
    return 1;
}

/* The own share of the result to where all members want it. */
static int
hand_out(const GroupCall *self, uint64_t block, int64_t start, int64_t count, const char *result)
{
    size_t nbytes = (size_t)(count * self->itemsize);
    for (int64_t member = 0; member < self->group->members; ++member) {
        char *target = group_offered(self->group, member, group_target(self->group, block, member),
                                     start * self->itemsize, (int64_t)nbytes);
        if (target == NULL)
            return -1;
        if (target != result)
            (self->target.is_cold ? copy_past_caches : copy_bytes)(target, result, nbytes);
    }
    return 0;
}

/* `count` elements of the own share, of all from `start` on, and of the slots from `low` on. */
static int
combine_piece(const GroupCall *self, uint64_t block, int64_t start, int64_t low, int64_t count, int hands_out,
              PyObject **error)
{
    char *here = hands_out || self->code == REDUCE ? place_in_target(self, start, start, count) : NULL;
    char *result = here == NULL ? results_of(self, block, self->group->me) + low * self->itemsize : here;
    if (combine_all(self, block, start, low, count, result, error) < 0)
        return -1;
    if (hands_out)
        return hand_out(self, block, start, count, result);
    if (here == NULL && self->target.length > 0) /* as long as a cache has it */
        stream_write(&self->target, start, start + count, result);
    return 0;
}

static int
combine_share(const GroupCall *self, uint64_t block, int64_t start, Share mine, PyObject **error)
{
    int scans = self->code == SCAN || self->code == EXSCAN;
    int hands_out = !scans && all_offer_targets(self, block);
    int64_t piece = piece_length(self, mine.high - mine.low);
    for (int64_t low = mine.low; low < mine.high; low += piece) {
        int64_t size = least(piece, mine.high - low);
        int failed = scans ? combine_running(self, block, start + low, low, size, error)
                           : combine_piece(self, block, start + low, low, size, hands_out, error);
        if (failed)
            return -1;
    }
    return 0;
}

/* What the others have combined of a part, to the target. */
static void
take_results(const GroupCall *self, uint64_t block, int64_t start, int64_t count)
{
    for (int64_t member = 0; member < self->group->members; ++member) {
        Share share = share_of(self, member, count);
        if (member != self->group->me)
            stream_write(&self->target, start + share.low, start + share.high,
                         results_of(self, block, member) + share.low * self->itemsize);
    }
}

/* Draining: a part comes out of the slots.  1 done, 0 not yet, -1 as above. */

/* Elements of a part of `count` that a member has given. */
static int64_t
here_of(const GroupCall *self, uint64_t block, int64_t member, int64_t count)
{
    if (group_one_reached(self->group, ARRIVED, member, block + 1))
        return count;
    return least(group_filled(self->group, block, member) / self->itemsize, count);
}

/* 2: not now, as the other may read the own elements where results go. */
static int
drain_alone(GroupCall *self, uint64_t block, int *moved, PyObject **error)
{
    Group *group = self->group;
    int64_t start = part_start(self, self->part), count = part_length(self, self->part, self->source.length);
    _Alignas(64) char room[ROOM_BYTES];
    if (self->target.length == 0)
        return 1;
    int64_t here = here_of(self, block, 1 - group->me, count);
    if (self->code == ALLREDUCE && here < count)
        return 0; /* until then it may offer them */
    if (self->code == ALLREDUCE && (group_source(group, block, 0).area != 0 || group_source(group, block, 1).area != 0))
        return 2;
    for (int64_t size; self->taken < here; self->taken += size) {
        int64_t at = start + self->taken;
        size = least(piece_length(self, count), here - self->taken);
        char *to = stream_at(&self->target, at);
        const char *own = stream_at(&self->source, at);
        int fits = to != NULL && (own == NULL || own == to || lie_apart(to, own, (size_t)(size * self->itemsize)));
        if (!fits)
            size = least(size, ROOM_BYTES / self->itemsize);
        if (combine_all(self, block, at, self->taken, size, fits ? to : room, error) < 0)
            return -1;
        if (!fits)
            stream_write(&self->target, at, at + size, room);
        *moved = 1;
    }
    return self->taken == count;
}

static int
drain_combined(GroupCall *self, uint64_t block, int *moved, PyObject **error)
{
    int outcome = is_combined_alone(self) ? drain_alone(self, block, moved, error) : 2;
    if (outcome != 2)
        return outcome;
    Group *group = self->group;
    int scans = self->code == SCAN || self->code == EXSCAN;
    int64_t start = part_start(self, self->part);
    int64_t count = part_length(self, self->part, self->source.length);
    if (!self->combined) {
        if (!group_all_reached(group, ARRIVED, block + 1))
            return 0;
        if (combine_share(self, block, start, share_of(self, group->me, count), error) < 0)
            return -1;
        group_mark(group, COMBINED, block);
        self->combined = 1;
        *moved = 1;
    }
    if (self->target.length == 0)
        return 1;
    if (!group_all_reached(group, COMBINED, block + 1))
        return 0;
    if (scans) {
        int64_t from = self->code == SCAN ? group->me : group->me - 1;
        stream_write(&self->target, start, start + count, slot_of(self, block, from));
    }
    else if (!all_offer_targets(self, block))
        take_results(self, block, start, count);
    return 1;
}

static int
drain_reduce_scatter(GroupCall *self, uint64_t block, PyObject **error)
{
    const Group *group = self->group;
    Piece mine = piece_of(self, group->me, group->me);
    int64_t low = before(self, self->part, mine.count), high = before(self, self->part + 1, mine.count);
    int64_t in_slot = group->me * self->room;
    if (!group_all_reached(group, ARRIVED, block + 1))
        return 0;
    int64_t piece = piece_length(self, high - low);
    for (int64_t done = 0; done < high - low; done += piece) {
        int64_t size = least(piece, high - low - done), from = mine.begin + low + done;
        char *here = place_in_target(self, from, low + done, size);
        char *result = here == NULL ? results_of(self, block, group->me) + (in_slot + done) * self->itemsize : here;
        if (combine_all(self, block, from, in_slot + done, size, result, error) < 0)
            return -1;
        if (here == NULL)
            stream_write(&self->target, low + done, low + done + size, result);
    }
    return 1;
}

/* Of each part the root pushes the first elements to the others, who fetch the rest at the same time. */
static int64_t
pushed_elements(const GroupCall *self, int64_t count)
{
    return count / self->group->members;
}

static int
push(const GroupCall *self, uint64_t block, int64_t start, int64_t count)
{
    int64_t at = start * self->itemsize, nbytes = pushed_elements(self, count) * self->itemsize;
    const char *from = stream_at(&self->source, start);
    for (int64_t member = 0; member < self->group->members; ++member) {
        Offer target = group_target(self->group, block, member);
        if (member == self->group->me || target.area == 0)
            continue;
        if (target.area == IN_PROCESS) {
            if (group_push(self->group, member, target, at, nbytes, from) < 0)
                return -1;
            continue;
        }
        char *to = group_offered(self->group, member, target, at, nbytes);
        if (to == NULL)
            return -1;
        (self->source.is_cold ? copy_past_caches : copy_bytes)(to, from, (size_t)nbytes);
    }
    return 0;
}

static int
drain_of_root(GroupCall *self, uint64_t block, int64_t start, int *moved)
{
    if (!self->both_copy || self->source_offer.area == 0)
        return 1;
    if (!group_all_reached(self->group, ARRIVED, block + 1))
        return 0;
    if (push(self, block, start, part_length(self, self->part, self->source.length)) < 0)
        return -1;
    group_mark(self->group, COMBINED, block);
    *moved = 1;
    return 1;
}

/* What has come of a part of `count` elements out of the slots: 1 when that is all. */
static int
take_strips(GroupCall *self, uint64_t block, int64_t start, int64_t count, int *moved)
{
    int64_t here;
    while (self->taken < count && (here = here_of(self, block, self->root, count)) > self->taken) {
        stream_write(&self->target, start + self->taken, start + here,
                     slot_of(self, block, 0) + self->taken * self->itemsize);
        self->taken = here;
        *moved = 1;
    }
    return self->taken == count;
}

static int
drain_broadcast(GroupCall *self, uint64_t block, int *moved)
{
    Group *group = self->group;
    int64_t start = part_start(self, self->part);
    int64_t count = part_length(self, self->part, self->target.length);
    if (group->me == self->root)
        return drain_of_root(self, block, start, moved);
    if (here_of(self, block, self->root, count) == 0 && count > 0)
        return 0;
    int64_t area = group_source(group, block, self->root).area;
    if (area == 0)
        return take_strips(self, block, start, count, moved);
    int pushes = self->both_copy && self->target_offer.area != 0;
    if (!self->combined) {
        int64_t first = pushes ? pushed_elements(self, count) : 0;
        if (take(self, block, self->root, start + first, 0, count - first, start + first) < 0)
            return -1;
        self->combined = 1;
        *moved = 1;
    }
    return !pushes || group_one_reached(group, COMBINED, self->root, block + 1);
}

static int
drain_scatter(GroupCall *self, uint64_t block)
{
    const Group *group = self->group;
    Piece mine = piece_of(self, self->root, group->me);
    int64_t low = before(self, self->part, mine.count), high = before(self, self->part + 1, mine.count);
    if (!group_one_reached(group, ARRIVED, self->root, block + 1))
        return 0;
    if (group_source(group, block, self->root).area != 0 || group->me == self->root)
        return take(self, block, self->root, mine.begin + low, 0, high - low, low) < 0 ? -1 : 1;
    stream_write(&self->target, low, high, slot_of(self, block, group->me));
    return 1;
}

static int
drain(GroupCall *self, uint64_t block, int *moved, PyObject **error)
{
    switch (self->code) {
    case ALLGATHER:
    case GATHER:
    case ALLTOALL:
        if (self->code != ALLTOALL && self->target.length == 0)
            return 1;
        if (!group_all_reached(self->group, ARRIVED, block + 1))
            return 0;
        return take_pieces(self, self->part, block,
                           self->code == ALLTOALL ? self->group->me * self->room : 0) < 0 ? -1 : 1;
    case REDUCE_SCATTER:
        return drain_reduce_scatter(self, block, error);
    case BROADCAST:
        return drain_broadcast(self, block, moved);
    case SCATTER:
        return drain_scatter(self, block);
    default:
        return drain_combined(self, block, moved, error);
    }
}

/* The walk */

int
group_call_test(GroupCall *self, int *moved, PyObject **error)
{
    Group *group = self->group;
    if (!self->started) {
        if (atomic_load_explicit(&group->served, memory_order_acquire) != self->ticket)
            return 0;
        self->first = group->block;
        self->started = 1;
    }
    while (self->part < self->parts) {
        uint64_t block = self->first + (uint64_t)self->part;
        if (fills(self)) {
            fill_ahead(self, moved);
            if (self->filled <= self->part)
                return 0;
        }
        int outcome = drain(self, block, moved, error);
        if (outcome <= 0)
            return outcome;
        group_mark(group, LEFT, block);
        self->part += 1;
        self->combined = 0;
        self->taken = 0;
        *moved = 1;
    }
    uint64_t end = self->first + (uint64_t)self->parts;
    group->block = end;
    /* The caller may change its elements from here on, which others read where they are. */
    if (self->source_offer.area != 0 && self->parts > 0 && !group_all_reached(group, LEFT, end))
        return 0;
    atomic_store_explicit(&group->served, self->ticket + 1, memory_order_release);
    *moved = 1;
    return 1;
}

/* Preparing a call */

static int64_t
parts_of(int64_t elements, int64_t room)
{
    return elements / room + (elements % room != 0);
}

static int64_t
wanted_counts(Code code, int64_t members)
{
    switch (code) {
    case REDUCE_SCATTER: case ALLGATHER: case GATHER: case SCATTER:
        return members;
    case ALLTOALL:
        return members * members;
    default:
        return 0;
    }
}

static int64_t
longest(const int64_t *counts, int64_t count)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i)
        if (counts[i] > found)
            found = counts[i];
    return found;
}

/* Elements that this member gives by the counts: its sources have to have them. */
static int64_t
given_by_counts(const GroupCall *self)
{
    int64_t members = self->group->members, me = self->group->me, total = 0;
    if (self->code == ALLGATHER || self->code == GATHER)
        return self->counts[me];
    if (self->code == SCATTER && me != self->root)
        return 0;
    for (int64_t member = 0; member < members; ++member)
        total += self->counts[(self->code == ALLTOALL ? me * members : 0) + member];
    return total;
}

static int
check_counts(const GroupCall *self, int64_t counts)
{
    int64_t left = INT64_MAX / 2 / self->itemsize; /* so that sums of them are numbers of bytes */
    for (int64_t i = 0; i < counts; ++i) {
        if (self->counts[i] < 0 || self->counts[i] > left)
            return refused("a group call has counts below 0, or too large");
        left -= self->counts[i];
    }
    if (counts > 0 && given_by_counts(self) > self->source.length)
        return refused("a group call gives more elements by its counts than its sources have");
    return 0;
}

/* A slot has a piece for each member. */
static int
holds_pieces(Code code)
{
    return code == REDUCE_SCATTER || code == ALLTOALL;
}

/* Elements of one part: a slot, all slots, or one slot's share for a member. */
static int64_t
room_of(Code code, const Group *group, int64_t itemsize)
{
    int64_t slot_room = group->slot_bytes / itemsize;
    if (code == BROADCAST)
        return group->slot_bytes * group->members / itemsize;
    return holds_pieces(code) ? slot_room / group->members : slot_room;
}

/* Where others may read the elements, and write results: also in this process, where the call `moves` them as they are
 * and to several members.  What is combined, or all for one, goes as fast through slots, which caches hold; and with
 * more ranks than cores all but a scatter, which one member would have to copy for all. */
static void
prepare_offers(GroupCall *self, int moves)
{
    Group *group = self->group;
    const Stream *source = &self->source, *target = &self->target;
    int64_t given = source->length * self->itemsize, taken = target->length * self->itemsize;
    moves = moves && (self->code == SCATTER || group->has_cores);
    self->both_copy = self->code == BROADCAST && moves && group_is_reached(group, given > taken ? given : taken);
    if (gives(self) && source->count == 1 && given > 0)
        self->source_offer = (moves ? group_reachable : group_locate)(group, stream_at(source, 0), given);
    if (fills(self) && target->count == 1 && taken > 0)
        self->target_offer = (self->both_copy ? group_reachable : group_locate)(group, stream_at(target, 0), taken);
}

/* Whether results go past the caches: not where the elements are of which they are combined, which a cache has then. */
static int
goes_past(const GroupCall *self, int reduces)
{
    Group *group = self->group;
    int pushes = self->code == BROADCAST && group->me == self->root;
    const Stream *written = pushes ? &self->source : &self->target;
    const char *from = stream_at(&self->source, 0), *to = stream_at(written, 0);
    int64_t given = pushes ? 0 : self->source.length * self->itemsize, taken = written->length * self->itemsize;
    group->moved += given + taken;
    if (taken < group->least_cold || to == NULL)
        return 0;
    int past = group_is_cold(group, to) /* in any case: it notes the call */
               && (!reduces || from == NULL || lie_apart(from, to, (size_t)taken));
    group->past += past;
    return past;
}

int
group_call_prepare(GroupCall *self, Group *group, const Program *program, const Operation *operation,
                   char *const *buffers, int64_t itemsize, Kernel *kernel)
{
    Code code = (Code)operation->code;
    int64_t counts = wanted_counts(code, group->members);
    if (operation->counts != counts)
        return refused("a group call has not as many counts as the group asks for");
    if (operation->peer >= group->members)
        return refused("a group call has a root that is no member");
    *self = (GroupCall){
        .group = group,
        .kernel = kernel,
        .code = code,
        .root = operation->peer,
        .source = stream_of(sources_of(program, operation), operation->sources, buffers, itemsize),
        .target = stream_of(targets_of(program, operation), operation->targets, buffers, itemsize),
        .counts = program->counts + operation->count,
        .itemsize = itemsize,
        .room = room_of(code, group, itemsize),
    };
    self->target.is_cold = self->source.is_cold = goes_past(self, combines(operation));
    if (check_counts(self, counts) < 0)
        return -1;
    if (self->room < 1)
        return refused("a slot of the staging segment has not room for one element of each member");
    if (code == EXSCAN && group->me == 0 && self->target.length > 0)
        return refused("the first member of an exclusive scan has no results");
    prepare_offers(self, !combines(operation) && code != GATHER);
    int64_t length = code == BROADCAST && group->me != self->root ? self->target.length
                                                                  : self->source.length;
    if (counts > 0)
        length = longest(self->counts, counts);
    self->room = least(self->room, length > 0 ? length : 1);
    self->used = self->room * itemsize * (holds_pieces(code) ? group->members : 1);
    self->parts = parts_of(length, self->room);
    return 0;
}

void
group_call_reserve(GroupCall *self)
{
    self->ticket = atomic_fetch_add_explicit(&self->group->tickets, 1, memory_order_relaxed);
}
