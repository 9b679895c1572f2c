/* Groups: what is called between ncclGroupStart and ncclGroupEnd is done at the outermost end.  Every call is a group
 * of its own at least.
 *
 * Jobs (initialisation, split, the end) of one group run at the same time, each in a thread.  Then the plans: all
 * first uses are announced before any is waited for, as one thread may speak for several ranks.  With non-blocking
 * communicators whatever would wait for other ranks is done by a thread, and the call returns ncclInProgress.
 */
#include "nccl_standin.h"

#include <stdlib.h>

struct group {
    int depth;
    ncclResult_t error;
    int blocking;                 /* of its communicators; -1: none yet */
    struct job *jobs, **jobs_end;
    struct plan *plans, **plans_end;
};

static _Thread_local struct group current;

void enter_group(void)
{
    if (current.depth++)
        return;
    current.error = ncclSuccess;
    current.blocking = -1;
    current.jobs = NULL;
    current.jobs_end = &current.jobs;
    current.plans = NULL;
    current.plans_end = &current.plans;
}

ncclResult_t fail_group(ncclResult_t result)
{
    if (current.depth && result != ncclSuccess && result != ncclInProgress)
        current.error = result;
    return result;
}

static ncclResult_t join_group(bool blocking)
{
    if (current.blocking >= 0 && current.blocking != blocking) {
        warn("Blocking and nonblocking communicators are not allowed in the same group.");
        return ncclInvalidArgument;
    }
    current.blocking = blocking;
    return ncclSuccess;
}

ncclResult_t add_job(struct job *job, bool always_blocking)
{
    if (always_blocking)
        current.blocking = 1;
    else if (join_group(job->comm->blocking) != ncclSuccess)
        return ncclInvalidArgument;
    job->next = NULL;
    *current.jobs_end = job;
    current.jobs_end = &job->next;
    return ncclSuccess;
}

static struct plan *plan_of(struct ncclComm *comm)
{
    for (struct plan *plan = current.plans; plan; plan = plan->next)
        if (plan->comm == comm)
            return plan;
    struct plan *plan = calloc(1, sizeof *plan);
    plan->comm = comm;
    plan->end = &plan->tasks;
    *current.plans_end = plan;
    current.plans_end = &plan->next;
    return plan;
}

/* The task is the group's from now on, or freed. */
ncclResult_t add_task(struct ncclComm *comm, struct task *task)
{
    ncclResult_t result = join_group(comm->blocking);
    if (result != ncclSuccess) {
        free(task);
        return result;
    }
    struct plan *plan = plan_of(comm);
    *plan->end = task;
    plan->end = &task->next;
    return ncclSuccess;
}

static void *run_job(void *argument)
{
    struct job *job = argument;
    job->result = job->run(job);
    return NULL;
}

static ncclResult_t run_jobs(struct job *jobs)
{
    ncclResult_t result = ncclSuccess;
    size_t count = 0, started = 0;
    for (struct job *job = jobs; job; job = job->next)
        count++;
    pthread_t *threads = calloc(count + 1, sizeof *threads);
    for (struct job *job = jobs; job && count > 1; job = job->next)
        pthread_create(&threads[started++], NULL, run_job, job);
    if (count == 1)
        run_job(jobs);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    while (jobs) {
        struct job *job = jobs;
        jobs = job->next;
        if (job->result != ncclSuccess)
            result = job->result;
        free(job);
    }
    return result;
}

struct launch { struct plan *plan; ncclResult_t result; };

static void *launch_in_thread(void *argument)
{
    struct launch *launch = argument;
    launch->result = launch_plan(launch->plan);
    return NULL;
}

/* In eager mode a launch returns when the operation is done, which the other plans of the group may be needed for. */
static ncclResult_t launch_together(struct plan *plans)
{
    enum { MOST = 4 * MOST_RANKS };
    struct launch launches[MOST];
    pthread_t threads[MOST];
    size_t count = 0;
    ncclResult_t result = ncclSuccess;
    while (plans && count < MOST) {
        struct plan *plan = plans;
        plans = plan->next;
        launches[count] = (struct launch){plan, ncclSuccess};
        pthread_create(&threads[count], NULL, launch_in_thread, &launches[count]);
        count++;
    }
    for (size_t i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        if (launches[i].result != ncclSuccess)
            result = launches[i].result;
    }
    return result;
}

static void drop_plans(struct plan *plans)
{
    while (plans) {
        struct plan *plan = plans;
        plans = plan->next;
        drop_plan(plan);
    }
}

static ncclResult_t run_plans(struct plan *plans)
{
    ncclResult_t result = ncclSuccess;
    for (struct plan *plan = plans; plan; plan = plan->next)
        announce_plan(plan);
    for (struct plan *plan = plans; plan && result == ncclSuccess; plan = plan->next)
        result = connect_plan(plan);
    if (result != ncclSuccess) {
        drop_plans(plans);
        return result;
    }
    if (settings()->eager && plans && plans->next)
        return launch_together(plans);
    while (plans) {
        struct plan *plan = plans;
        plans = plan->next;
        ncclResult_t launched = launch_plan(plan);
        if (launched != ncclSuccess)
            result = launched;
    }
    return result;
}

/* What a non-blocking group leaves to a thread. */
struct later {
    struct job *jobs;
    struct plan *plans;
    size_t count;
    struct ncclComm *comms[];
};

static void *run_later(void *argument)
{
    struct later *later = argument;
    ncclResult_t result = run_jobs(later->jobs);
    if (result == ncclSuccess)
        result = run_plans(later->plans);
    else
        drop_plans(later->plans);
    for (size_t i = 0; i < later->count; i++) {
        int before = ncclInProgress;
        atomic_compare_exchange_strong(&later->comms[i]->state, &before, (int)result);
        atomic_fetch_sub(&later->comms[i]->jobs, 1);
    }
    free(later);
    return NULL;
}

static void add_comm(struct later *later, struct ncclComm *comm)
{
    for (size_t i = 0; i < later->count; i++)
        if (later->comms[i] == comm)
            return;
    atomic_store(&comm->state, ncclInProgress);
    atomic_fetch_add(&comm->jobs, 1);
    later->comms[later->count++] = comm;
}

static ncclResult_t start_later(struct group group)
{
    size_t most = 0;
    for (struct job *job = group.jobs; job; job = job->next)
        most++;
    for (struct plan *plan = group.plans; plan; plan = plan->next)
        most++;
    struct later *later = calloc(1, sizeof *later + most * sizeof later->comms[0]);
    later->jobs = group.jobs;
    later->plans = group.plans;
    for (struct job *job = group.jobs; job; job = job->next)
        add_comm(later, job->comm);
    for (struct plan *plan = group.plans; plan; plan = plan->next)
        add_comm(later, plan->comm);
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_later, later))
        return ncclSystemError;
    pthread_detach(thread);
    return ncclInProgress;
}

static ncclResult_t give_up(struct group group)
{
    while (group.jobs) {
        struct job *job = group.jobs;
        group.jobs = job->next;
        free(job);
    }
    drop_plans(group.plans);
    return group.error;
}

ncclResult_t leave_group(void)
{
    if (--current.depth)
        return ncclSuccess;
    struct group group = current;
    bool waits = group.jobs != NULL;
    for (struct plan *plan = group.plans; plan && group.error == ncclSuccess; plan = plan->next) {
        group.error = close_plan(plan);
        waits = waits || plan->first_use;
    }
    if (group.error != ncclSuccess)
        return give_up(group);
    if (group.blocking == 0 && waits)
        return start_later(group);
    ncclResult_t result = run_jobs(group.jobs);
    if (result == ncclSuccess)
        return run_plans(group.plans);
    drop_plans(group.plans);
    return result;
}

ncclResult_t ncclGroupStart(void)
{
    enter_group();
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (!current.depth) {
        warn("ncclGroupEnd: not in a group call.");
        return ncclInvalidUsage;
    }
    return leave_group();
}
