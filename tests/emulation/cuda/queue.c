/* Operations and their order.
 *
 * Operations of one stream run one after the other, by a thread that exists as long as the stream has work.  An
 * operation may also have to come after operations of other streams: that is how event waits and the rules of the
 * legacy default stream are kept.
 *
 *     eager   an operation is done, by the calling thread, before the call returns
 *     delay   the worker sleeps for a random time before each operation
 *     lazy    an operation runs only when something waits for it (the host, or an operation that comes after it and
 *             is itself waited for), or when its time limit is over; so a missing wait shows as a wrong result
 */
#include "standin.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IDLE_MS = 200 };

pthread_mutex_t big_lock = PTHREAD_MUTEX_INITIALIZER;
_Thread_local bool in_host_function;

static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static int waiting;

void *make_task(size_t bytes, const char *name, CUgraphNodeType type, CUresult (*run)(struct task *),
                void (*drop)(struct task *))
{
    struct task *task = calloc(1, bytes);
    if (!task)
        abort();
    task->references = 1;
    task->name = name;
    task->type = type;
    task->run = run;
    task->drop = drop;
    return task;
}

void keep_task(struct task *task)
{
    if (task)
        atomic_fetch_add(&task->references, 1);
}

void drop_task(struct task *task)
{
    if (!task || atomic_fetch_sub(&task->references, 1) > 1)
        return;
    if (task->drop)
        task->drop(task);
    free(task);
}

void keep_op(struct op *op)
{
    op->references++;
}

void drop_op(struct op *op)
{
    if (!op || --op->references)
        return;
    free(op->before);
    free(op->after);
    free(op);
}

static void come_after(struct op *op, struct op *earlier)
{
    if (!earlier || earlier->done || earlier->stream == op->stream)
        return;
    op->before = realloc(op->before, sizeof *op->before * (size_t)(op->before_count + 1));
    op->before[op->before_count++] = earlier;
    keep_op(earlier);
    if (earlier->after_count == earlier->after_room) {
        earlier->after_room = earlier->after_room ? 2 * earlier->after_room : 4;
        earlier->after = realloc(earlier->after, sizeof *earlier->after * (size_t)earlier->after_room);
    }
    earlier->after[earlier->after_count++] = op;
    op->missing++;
    op->endless |= earlier->endless;
}

/* The legacy default stream comes after all that is in the blocking streams of its context, and before what they
 * get later. */
static void come_after_default(struct op *op)
{
    CUstream stream = op->stream;
    if (stream->kind == LEGACY) {
        for (CUstream other = stream->context->streams; other; other = other->next)
            if (is_blocking(other))
                come_after(op, other->tail);
    } else if (is_blocking(stream)) {
        come_after(op, stream->context->legacy->tail);
    }
}

struct op *add_op(CUstream stream, struct task *task, struct op *const *before, int before_count)
{
    struct op *op = calloc(1, sizeof *op);
    if (!op)
        abort();
    op->references = 1;
    op->task = task;
    op->stream = stream;
    op->endless = (task && task->endless) || (stream->tail && stream->tail->endless);
    for (int i = 0; i < before_count; i++)
        come_after(op, before[i]);
    come_after_default(op);
    if (settings.mode == LAZY)
        op->due_ns = now_ns() + settings.lazy_us * 1000;
    if (stream->tail)
        stream->tail->next = op;
    else
        stream->head = op;
    stream->tail = op;
    stream->references++;
    if (settings.mode != EAGER && stream->head == op)
        wake_stream(stream);
    return op;
}

static void finish(struct op *op)
{
    CUstream stream = op->stream;
    op->done = true;
    op->finished_ns = now_ns();
    stream->head = op->next;
    if (!stream->head)
        stream->tail = NULL;
    for (int i = 0; i < op->after_count; i++) {
        struct op *later = op->after[i];
        if (--later->missing == 0 && later->stream->head == later)
            wake_stream(later->stream);
    }
    op->after_count = 0;
    for (int i = 0; i < op->before_count; i++)
        drop_op(op->before[i]);
    op->before_count = 0;
    drop_task(op->task);
    op->task = NULL;
    op->stream = NULL;
    drop_op(op);
    if (waiting)
        pthread_cond_broadcast(&finished);
    drop_stream(stream);
}

static void dawdle(CUstream stream)
{
    if (settings.mode != DELAY || !settings.delay_us)
        return;
    uint64_t chance = mix(settings.seed ^ mix(stream->id << 32 ^ stream->done++));
    usleep((useconds_t)(chance % (uint64_t)settings.delay_us));
}

/* The first operation of a stream; lets go of the lock meanwhile. */
static void run_first(CUstream stream)
{
    struct op *op = stream->head;
    struct task *task = op->task;
    if (task && stream->context->sticky == CUDA_SUCCESS) {
        pthread_mutex_unlock(&big_lock);
        dawdle(stream);
        in_host_function = task->host;
        CUresult result = task->run(task);
        in_host_function = false;
        pthread_mutex_lock(&big_lock);
        if (result != CUDA_SUCCESS)
            break_context(stream->context, result, task->name);
    }
    finish(op);
}

static void sleep_until(CUstream stream, int64_t when_ns)
{
    struct timespec when = {when_ns / 1000000000, when_ns % 1000000000};
    pthread_cond_timedwait(&stream->wake, &big_lock, &when);
}

/* False: there was nothing to do for a while. */
static bool sleep_while_empty(CUstream stream)
{
    int64_t limit = now_ns() + (int64_t)IDLE_MS * 1000000;
    while (!stream->head && now_ns() < limit)
        sleep_until(stream, limit);
    return stream->head;
}

static bool may_run(const struct op *op)
{
    return op->missing == 0 && (settings.mode != LAZY || op->demanded || now_ns() >= op->due_ns);
}

static void *work(void *argument)
{
    CUstream stream = argument;
    pthread_mutex_lock(&big_lock);
    while (stream->head || sleep_while_empty(stream)) {
        if (may_run(stream->head))
            run_first(stream);
        else if (stream->head->missing)
            pthread_cond_wait(&stream->wake, &big_lock);
        else
            sleep_until(stream, stream->head->due_ns);
    }
    stream->worker = false;
    drop_stream(stream);
    pthread_mutex_unlock(&big_lock);
    return NULL;
}

/* Signals are the business of the caller's threads, but for those of a fault. */
static void start_worker(CUstream stream)
{
    sigset_t blocked, before;
    sigfillset(&blocked);
    int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    pthread_t thread;
    stream->worker = true;
    stream->references++;
    if (pthread_create(&thread, NULL, work, stream)) {
        complain("no thread can be made for a stream");
        abort();
    }
    pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void wake_stream(CUstream stream)
{
    if (!stream->worker)
        start_worker(stream);
    else
        pthread_cond_signal(&stream->wake);
}

void demand_op(struct op *op)
{
    if (settings.mode != LAZY || op->done || op->demanded)
        return;
    CUstream stream = op->stream;
    for (struct op *earlier = stream->head; earlier; earlier = earlier->next) {
        bool known = earlier->demanded;
        earlier->demanded = true;
        for (int i = 0; !known && i < earlier->before_count; i++)
            demand_op(earlier->before[i]);
        if (earlier == op)
            break;
    }
    wake_stream(stream);
}

void wait_op(struct op *op)
{
    if (op->done)
        return;
    keep_op(op);
    demand_op(op);
    waiting++;
    while (!op->done)
        pthread_cond_wait(&finished, &big_lock);
    waiting--;
    drop_op(op);
}

/* In the calling thread where nothing is in the way. */
void settle_op(struct op *op)
{
    CUstream stream = op->stream;
    if (op->done)
        return;
    if (!op->endless && !op->missing && stream->head == op && !stream->worker) {
        stream->worker = true;
        stream->references++;
        run_first(stream);
        stream->worker = false;
        if (stream->head)
            wake_stream(stream);
        drop_stream(stream);
        return;
    }
    wake_stream(stream);
    if (!op->endless)
        wait_op(op);
}
