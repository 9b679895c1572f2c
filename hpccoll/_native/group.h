/* Calls of a group on one node through its staging segment (transports/shm.py). */

#ifndef HPCCOLL_GROUP_H
#define HPCCOLL_GROUP_H

#include "kernels.h"
#include "program.h"
#include "slots.h"

/* Places of one rank's buffers, read or written as one run of elements. */
typedef struct {
    const Place *places;
    int64_t count;
    char *const *buffers;
    int64_t itemsize;
    int64_t length;
    int is_cold; /* no cache has its lines: what is written there goes past them */
} Stream;

/* One member's part in one action of the group, as far as it has come. */
typedef struct {
    Group *group;
    Kernel *kernel;
    Code code;
    int64_t root;
    Stream source, target;
    Offer source_offer, target_offer;
    const int64_t *counts;
    int64_t itemsize;
    int64_t room; /* elements of one part; of one piece of it where a slot has one for each member */
    int64_t used; /* bytes of a slot, or in a broadcast of all, that a part takes */
    int64_t parts;
    uint64_t ticket;
    uint64_t first; /* block of part 0 */
    int64_t filled, part;
    int64_t taken; /* elements of a part that were taken before all of it had come */
    int started, combined; /* combined: the own share of `part` is; or fetched */
    int both_copy;         /* of a broadcast without slots: the root pushes, the others fetch */
} GroupCall;

/* Checks that an operation fits the group; else -1 and ValueError. */
int group_call_prepare(GroupCall *self, Group *group, const Program *program,
                       const Operation *operation, char *const *buffers, int64_t itemsize,
                       Kernel *kernel);
/* A place in the order of the group's calls, which is the same on all members. */
void group_call_reserve(GroupCall *self);
/* Goes on as far as it can without waiting: 1 complete, 0 not yet, -1 when the kernel raised `*error`, or a
 * member offers memory that is not known here (no error then).  `*moved` is set when anything was done. */
int group_call_test(GroupCall *self, int *moved, PyObject **error);

#endif
