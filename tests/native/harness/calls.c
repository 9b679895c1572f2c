/* Calls of the engine on one node: every member is a thread with a group of its own over the same segment, as a process
 * would have; a second thread moves the same executions on, as the worker of a process does. */

#include "harness.h"

#include "execution.h"
#include "plain.h"

#include <sched.h>
#include <string.h>

#define MOST_MEMBERS 5
#define EXECUTIONS 2 /* at the same time; one may have no calls */
#define MOST_CALLS 4
#define MOST_COUNT 200
#define GUARD 3 /* elements between those of two calls */
#define UNTOUCHED (-77)
#define ELEMENT ((int64_t)sizeof(int64_t))
#define LINE_WORDS 8
#define LIMIT_S 60.0

/* One call, the same for all members. */
typedef struct {
    Code code;
    int64_t root, count;
    int64_t counts[MOST_MEMBERS * MOST_MEMBERS];
    int64_t count_of_counts;
} Call;

/* What a round consists of; written before the threads start. */
typedef struct {
    uint64_t seed;
    int64_t members, slot_bytes;
    int64_t firsts[EXECUTIONS + 1]; /* execution e makes the calls firsts[e], ..., firsts[e + 1] - 1 */
    int shares, reaches; /* arrays lie in an area; members read the memory of one another's process */
    int past_caches;
    Call call[MOST_CALLS];
    char *head, *slots;
    int64_t *input[MOST_MEMBERS], *output[MOST_MEMBERS];
} Round;

typedef struct {
    Round *round;
    int64_t me;
} Member;

static PyTypeObject execution_type;

/* What members give and get */

static int64_t
sum(const int64_t *counts, int64_t length, int64_t stride)
{
    int64_t total = 0;
    for (int64_t i = 0; i < length; ++i)
        total += counts[i * stride];
    return total;
}

static int64_t
gives(const Call *call, int64_t members, int64_t me)
{
    switch (call->code) {
    case BROADCAST: return me == call->root ? call->count : 0;
    case REDUCE_SCATTER: return sum(call->counts, members, 1);
    case ALLGATHER: case GATHER: return call->counts[me];
    case SCATTER: return me == call->root ? sum(call->counts, members, 1) : 0;
    case ALLTOALL: return sum(call->counts + me * members, members, 1);
    default: return call->count;
    }
}

static int64_t
takes(const Call *call, int64_t members, int64_t me)
{
    switch (call->code) {
    case REDUCE: return me == call->root ? call->count : 0;
    case BROADCAST: return me == call->root ? 0 : call->count;
    case EXSCAN: return me > 0 ? call->count : 0;
    case REDUCE_SCATTER: case SCATTER: return call->counts[me];
    case ALLGATHER: return sum(call->counts, members, 1);
    case GATHER: return me == call->root ? sum(call->counts, members, 1) : 0;
    case ALLTOALL: return sum(call->counts + me, members, members);
    default: return call->count;
    }
}

static int64_t
value(const Round *round, int64_t member, int64_t call, int64_t element)
{
    return (int64_t)(round->seed % 1000003) + 7919 * member + 104729 * call + 3 * element * element;
}

static int64_t
sum_of_values(const Round *round, int64_t first, int64_t last, int64_t call, int64_t element)
{
    int64_t total = 0;
    for (int64_t member = first; member < last; ++member)
        total += value(round, member, call, element);
    return total;
}

/* Element `at` of what a member gets from pieces of `counts`, one of each giver. */
static int64_t
gathered(const Round *round, int64_t number, const int64_t *counts, int64_t stride, int64_t me, int64_t at)
{
    const Call *call = round->call + number;
    int64_t giver = 0;
    for (; at >= counts[giver * stride]; ++giver)
        at -= counts[giver * stride];
    if (call->code == ALLTOALL)
        at += sum(call->counts + giver * round->members, me, 1);
    return value(round, giver, number, at);
}

static int64_t
wanted(const Round *round, int64_t number, int64_t me, int64_t at)
{
    const Call *call = round->call + number;
    int64_t members = round->members;
    switch (call->code) {
    case SCAN: return sum_of_values(round, 0, me + 1, number, at);
    case EXSCAN: return sum_of_values(round, 0, me, number, at);
    case BROADCAST: return value(round, call->root, number, at);
    case REDUCE_SCATTER: return sum_of_values(round, 0, members, number, sum(call->counts, me, 1) + at);
    case SCATTER: return value(round, call->root, number, sum(call->counts, me, 1) + at);
    case ALLGATHER: case GATHER: return gathered(round, number, call->counts, 1, me, at);
    case ALLTOALL: return gathered(round, number, call->counts + me, members, me, at);
    default: return sum_of_values(round, 0, members, number, at);
    }
}

/* The engine's objects, as the module makes them from Python's */

static void
add(char **addresses, const Py_ssize_t *count, const Py_ssize_t *strides, void *data)
{
    const int64_t *left = (const int64_t *)addresses[0], *right = (const int64_t *)addresses[1];
    int64_t *target = (int64_t *)addresses[2];
    (void)strides, (void)data;
    for (Py_ssize_t i = 0; i < *count; ++i)
        target[i] = left[i] + right[i];
}

static int64_t
room(const Round *round)
{
    int64_t most = MOST_CALLS * (MOST_COUNT * round->members * round->members + GUARD) + GUARD;
    return most * ELEMENT;
}

static Group *
new_group(Round *round, int64_t me)
{
    Group *group = calloc(1, sizeof *group);
    MUST(group != NULL && pthread_mutex_init(&group->lock, NULL) == 0);
    group->me = me;
    group->members = round->members;
    group->words = (word_t *)round->head;
    group->offers = (int64_t *)round->head + COUNTERS * round->members * LINE_WORDS;
    group->slots = round->slots;
    group->slot_bytes = round->slot_bytes;
    group->cache_bytes = round->past_caches ? 0 : INT64_MAX;
    if (round->shares) {
        group->area_count = 2;
        group->areas = calloc(2, sizeof *group->areas);
        for (int area = 0; area < 2; ++area) {
            Py_buffer *parts = calloc((size_t)round->members, sizeof *parts);
            for (int64_t member = 0; member < round->members; ++member) {
                parts[member].buf = (area ? round->output : round->input)[member];
                parts[member].len = room(round);
            }
            group->areas[area] = (Area){4 + area, parts};
        }
    }
    if (round->reaches) {
        group->processes = calloc((size_t)round->members, sizeof *group->processes);
        for (int64_t member = 0; member < round->members; ++member)
            group->processes[member] = getpid();
        group->least_in_process = 64;
        group->has_cores = 1;
    }
    return group;
}

static void
free_group(Group *group)
{
    for (Py_ssize_t i = 0; i < group->area_count; ++i)
        free(group->areas[i].parts);
    free(group->areas);
    free(group->processes);
    pthread_mutex_destroy(&group->lock);
    free(group);
}

/* The program of one execution: every call starts when the one before it has started; its results are then copied to
 * scratch memory. */
typedef struct {
    Program program;
    int64_t first, calls, ends[2]; /* calls of the round; where its memory ends */
    Operation operations[2 * MOST_CALLS];
    Place places[4 * MOST_CALLS];
    int64_t counts[MOST_CALLS * MOST_MEMBERS * MOST_MEMBERS];
    int64_t starts[2 * MOST_CALLS + 1], following[MOST_CALLS];
    int32_t waits[2 * MOST_CALLS];
} Made;

static void
make_program(Made *made, const Round *round, int64_t me, int64_t number, const int64_t *begins)
{
    int64_t calls = round->firsts[number + 1] - round->firsts[number], places = 0, counts = 0;
    *made = (Made){.first = round->firsts[number], .calls = calls, .ends = {begins[0], begins[1]}};
    for (int64_t i = 0; i < calls; ++i) {
        const Call *call = round->call + made->first + i;
        int64_t length[2] = {gives(call, round->members, me), takes(call, round->members, me)};
        made->operations[i] = (Operation){call->code, i, call->root, places, 1, 1, counts, call->count_of_counts,
                                          i + 1 < calls ? i + 1 : -1};
        made->operations[calls + i] = (Operation){COPY, i, 0, places + 2, 1, 1, 0, 0, -1};
        for (int64_t memory = 0; memory < 2; ++memory) {
            int64_t start = made->ends[memory] + GUARD;
            made->ends[memory] = start + length[memory];
            made->places[places + memory] = (Place){memory, start, made->ends[memory]};
        }
        made->places[places + 2] = made->places[places + 3] = made->places[places + 1];
        made->places[places + 3].memory = 2;
        memcpy(made->counts + counts, call->counts, (size_t)call->count_of_counts * sizeof *call->counts);
        places += 4;
        counts += call->count_of_counts;
        made->starts[i + 1] = i + 1;
        made->starts[calls + i + 1] = calls;
        made->following[i] = calls + i;
        made->waits[calls + i] = 1;
        made->waits[i] = i > 0;
    }
    made->program = (Program){
        .length = 2 * calls, .operations = made->operations, .places = made->places, .counts = made->counts,
        .following_starts = made->starts, .following = made->following, .waits = made->waits,
        .group_calls = calls, .needed = {made->ends[0], made->ends[1], made->ends[1]}, .combines = 1,
    };
}

/* One member's part in a round */

/* What the two threads of a member share. */
typedef struct {
    Round *round;
    int64_t me;
    Made made[EXECUTIONS];
    Execution *executions[EXECUTIONS];
    int64_t *scratch;
} Part;

static void
move_on(Part *part, uint64_t chance)
{
    double end = now_s() + LIMIT_S;
    while (!execution_is_over(part->executions[0]) || !execution_is_over(part->executions[1])) {
        execution_pass(part->executions[draw(&chance, EXECUTIONS)]);
        for (int64_t turn = draw(&chance, 3); turn > 0; --turn)
            sched_yield();
        MUST(now_s() < end);
    }
}

static void *
help(void *argument)
{
    Part *part = argument;
    move_on(part, part->round->seed * 2 + (uint64_t)part->me * 1000 + 3);
    return NULL;
}

static void
fill_memory(const Part *part)
{
    const Round *round = part->round;
    for (int64_t i = 0; i < room(round) / ELEMENT; ++i)
        round->output[part->me][i] = part->scratch[i] = UNTOUCHED;
    for (const Made *made = part->made; made < part->made + EXECUTIONS; ++made)
        for (int64_t i = 0; i < made->calls; ++i) {
            const Place *place = made->places + 4 * i;
            for (int64_t at = 0; at < place->stop - place->start; ++at)
                round->input[part->me][place->start + at] = value(round, part->me, made->first + i, at);
        }
}

/* The calls' results, with elements between them that nobody has touched. */
static void
check_results(const Part *part)
{
    const int64_t *output = part->round->output[part->me], *scratch = part->scratch;
    int64_t end = 0;
    for (const Made *made = part->made; made < part->made + EXECUTIONS; ++made)
        for (int64_t i = 0; i < made->calls; ++i) {
            const Place *place = made->places + 4 * i + 1;
            for (; end < place->start; ++end)
                MUST(output[end] == UNTOUCHED && scratch[end] == UNTOUCHED);
            for (; end < place->stop; ++end) {
                int64_t right = wanted(part->round, made->first + i, part->me, end - place->start);
                MUST(output[end] == right && scratch[end] == right);
            }
        }
    for (int64_t i = 0; i < GUARD; ++i)
        MUST(output[end + i] == UNTOUCHED && scratch[end + i] == UNTOUCHED);
}

static Part *
new_part(Round *round, int64_t me, Group *group, Kernel *kernel)
{
    Part *part = calloc(1, sizeof *part);
    MUST(part != NULL && (part->scratch = malloc((size_t)room(round))) != NULL);
    part->round = round;
    part->me = me;
    for (int64_t i = 0; i < EXECUTIONS; ++i) {
        const int64_t none[2] = {0, 0};
        make_program(part->made + i, round, me, i, i == 0 ? none : part->made[i - 1].ends);
    }
    fill_memory(part);
    Plain plain[MEMORIES] = {
        PLAIN(round->input[me], room(round)), PLAIN(round->output[me], room(round)),
        PLAIN(part->scratch, room(round)),
    };
    /* The last one is for elements that travel otherwise, of which there are none. */
    PyObject *memory[MEMORIES] = {(PyObject *)plain, (PyObject *)(plain + 1), (PyObject *)(plain + 2),
                                  (PyObject *)(plain + 2)};
    for (int64_t i = 0; i < EXECUTIONS; ++i) {
        part->executions[i] =
            new_execution(&execution_type, &part->made[i].program, memory, ELEMENT, NULL, group, kernel, 0, 1,
                          NO_WIRE);
        MUST(part->executions[i] != NULL);
    }
    return part;
}

static void *
take_part(void *argument)
{
    const Member *member = argument;
    Round *round = member->round;
    Group *group = new_group(round, member->me);
    Kernel kernel = {.itemsize = ELEMENT, .loop = add};
    Part *part = new_part(round, member->me, group, &kernel);
    pthread_t helper;
    MUST(pthread_create(&helper, NULL, help, part) == 0);
    move_on(part, round->seed * 2 + (uint64_t)member->me * 1000 + 1);
    /* Before the other thread has come back: completion alone says that the results are there. */
    check_results(part);
    for (int64_t i = 0; i < EXECUTIONS; ++i)
        MUST(execution_is_complete(part->executions[i]));
    for (int64_t i = 0; i < room(round) / ELEMENT; ++i) /* the arrays are their owner's again */
        round->input[member->me][i] = round->output[member->me][i] = 0;
    MUST(pthread_join(helper, NULL) == 0);
    for (int64_t i = 0; i < EXECUTIONS; ++i)
        free_plain_execution(part->executions[i]);
    free_group(group);
    free(part->scratch);
    free(part);
    return NULL;
}

/* Rounds */

static Call
draw_call(uint64_t *chance, int64_t members)
{
    Call call = {.code = (Code)(FIRST_GROUP_CODE + draw(chance, CODES - FIRST_GROUP_CODE))};
    call.root = draw(chance, members);
    call.count = draw(chance, MOST_COUNT);
    switch (call.code) {
    case REDUCE_SCATTER: case ALLGATHER: case GATHER: case SCATTER:
        call.count_of_counts = members;
        break;
    case ALLTOALL:
        call.count_of_counts = members * members;
        break;
    default:
        break;
    }
    for (int64_t i = 0; i < call.count_of_counts; ++i)
        call.counts[i] = draw(chance, 3) ? draw(chance, MOST_COUNT) : 0;
    return call;
}

static void
play(Round *round)
{
    pthread_t threads[MOST_MEMBERS];
    Member members[MOST_MEMBERS];
    for (int64_t me = 0; me < round->members; ++me) {
        members[me] = (Member){round, me};
        MUST(pthread_create(threads + me, NULL, take_part, members + me) == 0);
    }
    for (int64_t me = 0; me < round->members; ++me)
        MUST(pthread_join(threads[me], NULL) == 0);
}

static void
check_round(uint64_t *chance)
{
    int64_t calls = 1 + draw(chance, MOST_CALLS);
    Round round = {.seed = *chance, .members = 1 + draw(chance, MOST_MEMBERS)};
    round.firsts[1] = draw(chance, calls + 1);
    round.firsts[2] = calls;
    round.slot_bytes = ELEMENT * round.members * (1 + draw(chance, draw(chance, 2) ? 8 : 300));
    round.shares = (int)draw(chance, 2);
    round.reaches = draw(chance, 3) == 0;
    round.past_caches = (int)draw(chance, 2);
    for (int64_t i = 0; i < calls; ++i)
        round.call[i] = draw_call(chance, round.members);
    size_t head = (size_t)((COUNTERS + 2) * round.members) * LINE_WORDS * sizeof(word_t);
    round.head = aligned_alloc(64, head);
    round.slots = malloc((size_t)(2 * round.members * round.slot_bytes));
    MUST(round.head != NULL && round.slots != NULL);
    memset(round.head, 0, head);
    for (int64_t me = 0; me < round.members; ++me) {
        round.input[me] = malloc((size_t)room(&round));
        round.output[me] = malloc((size_t)room(&round));
        MUST(round.input[me] != NULL && round.output[me] != NULL);
    }
    play(&round);
    for (int64_t me = 0; me < round.members; ++me) {
        free(round.input[me]);
        free(round.output[me]);
    }
    free(round.head);
    free(round.slots);
}

void
check_calls(uint64_t seed, int rounds)
{
    uint64_t chance = seed * 0x9e3779b97f4a7c15u + 1;
    prepare_plain_type(&execution_type);
    for (int round = 0; round < rounds; ++round)
        check_round(&chance);
}
