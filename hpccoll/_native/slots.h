/* A node's staging segment: counters, slots and offers (transports/slots.py), and areas that all members reach. */

#ifndef HPCCOLL_SLOTS_H
#define HPCCOLL_SLOTS_H

#include "module.h"
#include "wait.h"

#include <pthread.h>
#include <sys/types.h>

enum { ARRIVED, COMBINED, LEFT, COUNTERS };

/* Where elements lie in the own part of an area: its number + 1, or 0 for nowhere, and the byte; or IN_PROCESS and
 * the address in the memory of the member's process. */
typedef struct {
    int64_t area;
    int64_t offset;
} Offer;

#define IN_PROCESS (-1)

/* Memory outside the segment that all members reach, by a number that they agree on: a part for each. */
typedef struct {
    int64_t number;
    Py_buffer *parts;
} Area;

/* Results that this member was given, and how many bytes its calls had moved then. */
typedef struct {
    const char *at;
    int64_t moved;
} Written;

#define MOST_WRITTEN 16

typedef struct {
    PyObject_HEAD
    Py_buffer head, data;
    word_t *words;   /* counters */
    int64_t *offers; /* for each half a line of each member */
    char *slots;     /* two halves of a slot for each member */
    int64_t slot_bytes;
    int64_t me, members;
    long long cache_bytes; /* that the members share */
    long long least_cold;  /* bytes of results that go past the caches where these do not have their lines */
    int64_t moved;         /* bytes of all calls, read and written by this member */
    Written written[MOST_WRITTEN];
    long long past; /* calls whose results went past the caches */
    _Atomic uint64_t tickets; /* given out */
    _Atomic uint64_t served;  /* calls that are over; the next has the group */
    uint64_t block;           /* the next one; of the call that has the group */
    pthread_mutex_t lock;     /* of the areas; held for a look-up only */
    int has_lock;
    Area *areas; /* ascending numbers */
    Py_ssize_t area_count;
    pid_t *processes;          /* of the members, where each may read the memory of all; or NULL */
    int64_t least_in_process;  /* bytes; less is not read from another process */
    int has_cores;             /* each member has a core */
} Group;

/* The half of a member's slot that a block uses. */
char *group_slot(const Group *self, uint64_t block, int64_t member);
/* Where in it, or in all of them, the `nbytes` begin that a block uses of `room`: short blocks go round, as it takes
 * three times as long to write lines that another core has just read. */
int64_t group_turn(uint64_t block, int64_t nbytes, int64_t room);

void group_mark(Group *self, int which, uint64_t block);
int group_all_reached(const Group *self, int which, uint64_t value);
int group_one_reached(const Group *self, int which, int64_t member, uint64_t value);
/* Of a block that has not ARRIVED as a whole: says how many bytes are in the slot, and what a member has said. */
void group_tell_filled(Group *self, uint64_t block, int64_t nbytes);
int64_t group_filled(const Group *self, uint64_t block, int64_t member);
/* Nobody reads the half of the slots any more, which block - 2 used. */
int group_is_free(const Group *self, uint64_t block);

/* Says where the own elements are and where the results may be put; area 0: in the slot, nowhere. */
void group_offer(Group *self, uint64_t block, Offer source, Offer target);
Offer group_source(const Group *self, uint64_t block, int64_t member);
Offer group_target(const Group *self, uint64_t block, int64_t member);
/* So many bytes of what a member offers in an area, from `start` on; NULL when they are not there. */
char *group_offered(Group *self, int64_t member, Offer offer, int64_t start, int64_t nbytes);
/* Copies so many bytes of what a member offers in its process, from `start` on; -1 when they are not there. */
int group_fetch(const Group *self, int64_t member, Offer offer, int64_t start, int64_t nbytes, char *out);
/* The other way: into what a member offers in its process. */
int group_push(const Group *self, int64_t member, Offer offer, int64_t start, int64_t nbytes, const char *from);
/* Where own memory lies that others may write: in an area, if it does. */
Offer group_locate(Group *self, const char *at, int64_t nbytes);
/* The same where others read, or push, by process: also in this one, where it is long enough. */
Offer group_reachable(Group *self, const char *at, int64_t nbytes);
/* Whether so many bytes are long enough for that. */
int group_is_reached(const Group *self, int64_t nbytes);
/* Notes that a call writes from `at` on, whose bytes are in `moved` already.  Whether no cache has the lines there, as far
 * as this group's calls tell: between the last one that wrote there and the end of this one they move more than fits. */
int group_is_cold(Group *self, const char *at);

#endif
