/* The environment of the NCCL stand-in, and the faults it asks for.
 *
 *   STANDIN_NCCL_CHECK=1          what the ranks call is compared; a mismatch, communicators used in another order and
 *                                 buffers that overlap wrongly are reported and are errors (NCCL compares nothing)
 *   STANDIN_NCCL_ABORT_REACHES    what the other ranks notice of ncclCommAbort: end (their operations end with
 *                                 ncclRemoteError; the default), error (only the error), nothing (as inside a node)
 *   STANDIN_NCCL_TIMEOUT_S        whoever waits longer for another rank gets ncclRemoteError; default: no limit
 *   STANDIN_NCCL_CONNECT=0        a first use does not wait for the other ranks to call as well
 *   STANDIN_NCCL_FAULT            faults, below
 *   NCCL_DEBUG, NCCL_DEBUG_SUBSYS, NCCL_COMM_BLOCKING, NCCL_MULTI_RANK_GPU_ENABLE, NCCL_HOSTID    as in NCCL
 *
 * STANDIN_NCCL_FAULT is a list with commas.  RANK is the rank in a communicator; SEQUENCE counts the operations
 * that one communicator has run on that rank, from 1: a call outside of a group, or all of one group.
 *
 *   init:RANK              its initialisation fails with ncclSystemError; the others wait for it
 *   late:RANK:MS           each of its operations starts so much later
 *   async:RANK:SEQUENCE    that operation brings an asynchronous ncclRemoteError and does not end
 *   system:RANK:SEQUENCE   the same with ncclSystemError
 *   absent:RANK:SEQUENCE   that operation never starts, and nothing says so
 *
 * "@NAME" behind one of these limits it to communicators whose config.commName is NAME.
 */
#include "nccl_standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct settings values;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool flag(const char *name, bool otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strcmp(text, "0") != 0 : otherwise;
}

static enum reach reach_of(const char *text)
{
    if (!text || !*text || !strcmp(text, "end"))
        return REACH_END;
    if (!strcmp(text, "error"))
        return REACH_ERROR;
    if (!strcmp(text, "nothing"))
        return REACH_NOTHING;
    report("STANDIN_NCCL_ABORT_REACHES=%s: expected end, error or nothing", text);
    abort();
}

static void read_settings(void)
{
    const char *mode = getenv("STANDIN_MODE"), *timeout = getenv("STANDIN_NCCL_TIMEOUT_S");
    const char *meeting = getenv("STANDIN_MEETING");
    values.eager = mode && !strcmp(mode, "eager");
    values.check = flag("STANDIN_NCCL_CHECK", false);
    values.connect = flag("STANDIN_NCCL_CONNECT", true);
    values.share_devices = flag("NCCL_MULTI_RANK_GPU_ENABLE", false);
    values.reach = reach_of(getenv("STANDIN_NCCL_ABORT_REACHES"));
    values.meeting = meeting && *meeting ? meeting : "/dev/shm";
    values.timeout_s = timeout && *timeout ? atof(timeout) : 0;
}

const struct settings *settings(void)
{
    pthread_once(&once, read_settings);
    return &values;
}

/* NCCL tells machines apart by this; NCCL_HOSTID overrides it there as well. */
uint64_t host_hash(void)
{
    char name[256] = "localhost";
    const char *given = getenv("NCCL_HOSTID");
    if (!given || !*given)
        given = getenv("STANDIN_HOST");
    if (given && *given)
        snprintf(name, sizeof name, "%s", given);
    else
        gethostname(name, sizeof name - 1);
    uint64_t hash = 14695981039346656037u;
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    return hash;
}

struct wish { char kind[16], name[64]; int rank; long number; bool numbered; };

/* One entry of the list; false where it cannot be understood. */
static bool read_wish(const char *text, size_t length, struct wish *wish)
{
    char copy[128];
    if (length >= sizeof copy)
        return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    memset(wish, 0, sizeof *wish);
    char *at = strchr(copy, '@');
    if (at) {
        *at = 0;
        snprintf(wish->name, sizeof wish->name, "%s", at + 1);
    }
    int found = sscanf(copy, "%15[a-z]:%d:%ld", wish->kind, &wish->rank, &wish->number);
    wish->numbered = found == 3;
    if (!strcmp(wish->kind, "init"))
        return found == 2;
    bool known = !strcmp(wish->kind, "late") || !strcmp(wish->kind, "async") || !strcmp(wish->kind, "system") ||
                 !strcmp(wish->kind, "absent");
    return known && found == 3;
}

static bool next_wish(const char **list, const struct ncclComm *comm, struct wish *wish)
{
    while (*list && **list) {
        const char *start = *list;
        size_t length = strcspn(start, ",");
        *list = start + length + (start[length] == ',');
        if (!length)
            continue;
        if (!read_wish(start, length, wish)) {
            report("STANDIN_NCCL_FAULT: cannot read \"%.*s\"", (int)length, start);
            abort();
        }
        if (wish->rank == comm->rank && (!*wish->name || !strcmp(wish->name, comm->name)))
            return true;
    }
    return false;
}

struct fault fault_of(const struct ncclComm *comm, uint64_t sequence)
{
    struct fault fault = {false, ncclSuccess, 0};
    struct wish wish;
    const char *list = getenv("STANDIN_NCCL_FAULT");
    while (next_wish(&list, comm, &wish)) {
        bool now = (uint64_t)wish.number == sequence;
        if (!strcmp(wish.kind, "late"))
            fault.late_ms = (int)wish.number;
        else if (!strcmp(wish.kind, "async") && now)
            fault.error = ncclRemoteError;
        else if (!strcmp(wish.kind, "system") && now)
            fault.error = ncclSystemError;
        else if (!strcmp(wish.kind, "absent") && now)
            fault.absent = true;
    }
    return fault;
}

bool init_fails(const struct ncclComm *comm)
{
    struct wish wish;
    const char *list = getenv("STANDIN_NCCL_FAULT");
    while (next_wish(&list, comm, &wish))
        if (!strcmp(wish.kind, "init"))
            return true;
    return false;
}
