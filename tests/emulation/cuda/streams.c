/* Streams: what order operations get, and who may wait for them. */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

_Thread_local bool null_is_per_thread;

enum { LOWEST_PRIORITY = 0, HIGHEST_PRIORITY = -5 };

static uint64_t next_id = 16;

bool is_blocking(CUstream stream)
{
    return stream->kind != LANE && stream->kind != LEGACY && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

static void link_stream(CUstream stream)
{
    CUcontext context = stream->context;
    if (stream->kind == LEGACY || stream->kind == LANE)
        return;
    stream->next = context->streams;
    if (stream->next)
        stream->next->previous = stream;
    context->streams = stream;
}

static void unlink_stream(CUstream stream)
{
    if (!stream->context)
        return;
    if (stream->next)
        stream->next->previous = stream->previous;
    if (stream->previous)
        stream->previous->next = stream->next;
    else if (stream->context->streams == stream)
        stream->context->streams = stream->next;
}

CUstream make_stream(CUcontext context, enum stream_kind kind, unsigned flags, int priority)
{
    CUstream stream = make_object(STREAM, sizeof *stream);
    stream->kind = kind;
    stream->references = 1;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = next_id++;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&stream->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    link_stream(stream);
    return stream;
}

void drop_stream(CUstream stream)
{
    if (--stream->references)
        return;
    unlink_stream(stream);
    free(stream->frontier);
    pthread_cond_destroy(&stream->wake);
    retire_object(stream);
}

/* When its context goes. */
void abandon_stream(CUstream stream)
{
    leave_capture(stream);
    unlink_stream(stream);
    stream->next = stream->previous = NULL;
    stream->context = NULL;
    if (stream->kind != PER_THREAD) {
        stream->magic = 0;
        drop_stream(stream);
    }
}

/* ---- the default stream of each thread ---- */

enum { MOST_CONTEXTS = 128 };

struct own_streams {
    CUstream streams[MOST_CONTEXTS];
    int count;
};

static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

static void forget_own(void *argument)
{
    struct own_streams *own = argument;
    pthread_mutex_lock(&big_lock);
    for (int i = 0; i < own->count; i++)
        drop_stream(own->streams[i]);
    pthread_mutex_unlock(&big_lock);
    free(own);
}

static void make_own_key(void)
{
    pthread_key_create(&own_key, forget_own);
}

static CUstream own_stream(CUcontext context)
{
    pthread_once(&own_once, make_own_key);
    struct own_streams *own = pthread_getspecific(own_key);
    if (!own) {
        own = calloc(1, sizeof *own);
        pthread_setspecific(own_key, own);
    }
    for (int i = 0; i < own->count; i++)
        if (own->streams[i]->context == context)
            return own->streams[i];
    int place = 0;
    while (place < own->count && own->streams[place]->context)
        place++;
    if (place == MOST_CONTEXTS)
        abort();
    if (place < own->count)
        drop_stream(own->streams[place]);
    else
        own->count++;
    return own->streams[place] = make_stream(context, PER_THREAD, 0, LOWEST_PRIORITY);
}

/* ---- finding a stream, waiting for it ---- */

CUresult stream_of(CUstream handle, CUstream *out)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (handle == CU_STREAM_PER_THREAD || (!handle && null_is_per_thread)) {
        *out = own_stream(context);
    } else if (!handle || handle == CU_STREAM_LEGACY) {
        *out = context->legacy;
    } else {
        if (!is_object(handle, STREAM))
            return CUDA_ERROR_INVALID_HANDLE;
        *out = handle;
    }
    return (*out)->context->sticky;
}

/* Work on the legacy stream would have to be ordered with a blocking stream that is capturing. */
static CUresult refuse_implicit(CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    if (stream->kind != LEGACY || !stream->context->captures)
        return result;
    for (CUstream other = stream->context->streams; other; other = other->next)
        if (other->capture && is_blocking(other))
            result = break_capture(other, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    return result;
}

CUresult enqueue_on(CUstream stream, struct task *task, bool wait)
{
    if (stream->capture)
        return capture_task(stream, task);
    CUresult result = refuse_implicit(stream);
    if (result != CUDA_SUCCESS) {
        drop_task(task);
        return result;
    }
    CUcontext context = stream->context;
    struct op *op = add_op(stream, task, NULL, 0);
    keep_op(op);
    if (settings.mode == EAGER)
        settle_op(op);
    if (wait)
        wait_op(op);
    drop_op(op);
    return wait ? context->sticky : CUDA_SUCCESS;
}

CUresult enqueue(CUstream handle, struct task *task, bool wait)
{
    CUstream stream;
    pthread_mutex_lock(&big_lock);
    CUresult result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS)
        result = enqueue_on(stream, task, wait);
    else
        drop_task(task);
    pthread_mutex_unlock(&big_lock);
    return result;
}

/* Waiting for the legacy stream is waiting for the blocking ones too. */
CUresult wait_stream(CUstream stream)
{
    CUcontext context = stream->context;
    if (stream->kind == LEGACY) {
        struct op *op = add_op(stream, NULL, NULL, 0);
        if (settings.mode == EAGER)
            wake_stream(stream);
        wait_op(op);
    } else if (stream->tail) {
        wait_op(stream->tail);
    }
    return context->sticky;
}

/* The list may change while one of its streams is waited for, so it is read anew after each. */
CUresult wait_context(CUcontext context)
{
    struct op *op;
    do {
        op = context->legacy->tail;
        for (CUstream stream = context->streams; stream; stream = stream->next)
            if (stream->tail) {
                demand_op(stream->tail);
                op = stream->tail;
            }
        if (op)
            wait_op(op);
    } while (op);
    return context->sticky;
}

/* ---- entry points ---- */

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    if (!stream || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    if (priority < HIGHEST_PRIORITY)
        priority = HIGHEST_PRIORITY;
    if (priority > LOWEST_PRIORITY)
        priority = LOWEST_PRIORITY;
    CUcontext context;
    pthread_mutex_lock(&big_lock);
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        *stream = make_stream(context, ORDINARY, flags, priority);
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    return cuStreamCreateWithPriority(stream, flags, LOWEST_PRIORITY);
}

/* Returns at once; what is in the stream still runs. */
CUresult cuStreamDestroy_v2(CUstream stream)
{
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&big_lock);
    if (!is_object(stream, STREAM) || stream->kind != ORDINARY) {
        result = CUDA_ERROR_INVALID_HANDLE;
    } else {
        leave_capture(stream);
        result = stream->context->sticky;
        drop_stream(stream);
    }
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuStreamSynchronize(CUstream handle)
{
    CUstream stream;
    pthread_mutex_lock(&big_lock);
    CUresult result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS)
        result = stream->capture ? break_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
                                 : refuse_implicit(stream);
    if (result == CUDA_SUCCESS)
        result = wait_stream(stream);
    pthread_mutex_unlock(&big_lock);
    return result;
}

/* A query asks for the result, so in lazy mode it is a demand, though it does not wait. */
static CUresult query_stream(CUstream stream)
{
    bool busy = stream->tail;
    if (busy)
        demand_op(stream->tail);
    for (CUstream other = stream->context->streams; stream->kind == LEGACY && other; other = other->next)
        if (is_blocking(other) && other->tail) {
            demand_op(other->tail);
            busy = true;
        }
    return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle)
{
    CUstream stream;
    pthread_mutex_lock(&big_lock);
    CUresult result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS)
        result = stream->capture ? break_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
                                 : refuse_implicit(stream);
    if (result == CUDA_SUCCESS)
        result = query_stream(stream);
    pthread_mutex_unlock(&big_lock);
    return result;
}

enum property { FLAGS, PRIORITY, ID, OF_CONTEXT, OF_DEVICE };

static CUresult read_property(CUstream handle, enum property property, void *out)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    CUstream stream;
    pthread_mutex_lock(&big_lock);
    CUresult result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS && property == FLAGS)
        *(unsigned *)out = stream->flags;
    else if (result == CUDA_SUCCESS && property == PRIORITY)
        *(int *)out = stream->priority;
    else if (result == CUDA_SUCCESS && property == ID)
        *(unsigned long long *)out = stream->id;
    else if (result == CUDA_SUCCESS && property == OF_CONTEXT)
        *(CUcontext *)out = stream->context;
    else if (result == CUDA_SUCCESS)
        *(CUdevice *)out = stream->context->device->ordinal;
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned *flags)
{
    return read_property(stream, FLAGS, flags);
}

CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    return read_property(stream, PRIORITY, priority);
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
    return read_property(stream, ID, id);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    return read_property(stream, OF_CONTEXT, context);
}

CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    if (green)
        *green = NULL;
    return read_property(stream, OF_CONTEXT, context);
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice *device)
{
    return read_property(stream, OF_DEVICE, device);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS && least)
        *least = LOWEST_PRIORITY;
    if (result == CUDA_SUCCESS && greatest)
        *greatest = HIGHEST_PRIORITY;
    return result;
}

/* ---- functions of the host ---- */

struct host_task {
    struct task task;
    CUhostFn function;
    CUstreamCallback callback;
    CUstream stream;
    void *argument;
};

static CUresult run_host(struct task *task)
{
    struct host_task *host = (struct host_task *)task;
    if (host->callback)
        host->callback(host->stream, CUDA_SUCCESS, host->argument);
    else
        host->function(host->argument);
    return CUDA_SUCCESS;
}

struct task *make_host_task(CUhostFn function, void *argument)
{
    struct host_task *host = make_task(sizeof *host, "a host function", CU_GRAPH_NODE_TYPE_HOST, run_host, NULL);
    host->task.host = true;
    host->function = function;
    host->argument = argument;
    return &host->task;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument)
{
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    return enqueue(stream, make_host_task(function, argument), false);
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *argument, unsigned flags)
{
    if (!callback || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_capturing(stream)) {
        pthread_mutex_lock(&big_lock);
        CUresult result = break_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        pthread_mutex_unlock(&big_lock);
        return result;
    }
    struct task *task = make_host_task(NULL, argument);
    ((struct host_task *)task)->callback = callback;
    ((struct host_task *)task)->stream = stream;
    return enqueue(stream, task, false);
}
