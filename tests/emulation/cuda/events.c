/* Events: an operation that marks a place in a stream, and what waits for it. */
#include "standin.h"

#include <stdlib.h>

static CUresult check_event(CUevent event)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    return is_object(event, EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!event || flags & ~known || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    *event = make_object(EVENT, sizeof **event);
    (*event)->context = context;
    (*event)->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&big_lock);
    if (is_object(event, EVENT)) {
        drop_op(event->record);
        free(event->nodes);
        retire_object(event);
    } else {
        result = CUDA_ERROR_INVALID_HANDLE;
    }
    pthread_mutex_unlock(&big_lock);
    return result;
}

/* ---- recording, waiting ---- */

static CUresult record(CUevent event, CUstream stream)
{
    if (event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture)
        return capture_record(stream, event);
    struct op *op = add_op(stream, NULL, NULL, 0);
    keep_op(op);
    if (settings.mode == EAGER)
        settle_op(op);
    drop_op(event->record);
    event->record = op;
    event->capture_id = 0;
    return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags)
{
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    CUstream stream;
    pthread_mutex_lock(&big_lock);
    CUresult result = check_event(event);
    if (result == CUDA_SUCCESS)
        result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS && flags)
        result = stream->capture ? unsupported("an external event record in a graph") : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = record(event, stream);
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return cuEventRecordWithFlags(event, stream, 0);
}

static void wait_in_stream(CUstream stream, CUevent event)
{
    if (!event->record || event->record->done)
        return;
    struct op *op = add_op(stream, NULL, &event->record, 1);
    if (settings.mode == EAGER)
        settle_op(op);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
    if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    CUstream stream;
    bool captured = false;
    pthread_mutex_lock(&big_lock);
    CUresult result = check_event(event);
    if (result == CUDA_SUCCESS)
        result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS && flags)
        result = stream->capture ? unsupported("an external event wait in a graph") : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = capture_wait(stream, event, &captured);
    if (result == CUDA_SUCCESS && !captured)
        wait_in_stream(stream, event);
    pthread_mutex_unlock(&big_lock);
    return result;
}

/* ---- what the host asks ---- */

static CUresult usable_by_host(CUevent event)
{
    CUresult result = check_event(event);
    if (result == CUDA_SUCCESS)
        result = refuse_unsafe_held();
    if (result == CUDA_SUCCESS && event_is_captured(event))
        result = CUDA_ERROR_CAPTURED_EVENT;
    return result;
}

CUresult cuEventQuery(CUevent event)
{
    pthread_mutex_lock(&big_lock);
    CUresult result = usable_by_host(event);
    if (result == CUDA_SUCCESS && event->record && !event->record->done) {
        demand_op(event->record);
        result = CUDA_ERROR_NOT_READY;
    }
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuEventSynchronize(CUevent event)
{
    pthread_mutex_lock(&big_lock);
    CUresult result = usable_by_host(event);
    if (result == CUDA_SUCCESS && event->record) {
        CUcontext context = event->context;
        wait_op(event->record);
        result = context->sticky;
    }
    pthread_mutex_unlock(&big_lock);
    return result;
}

static CUresult time_of(CUevent event, int64_t *when_ns)
{
    CUresult result = check_event(event);
    if (result != CUDA_SUCCESS)
        return result;
    if (event->flags & CU_EVENT_DISABLE_TIMING || !event->record || event_is_captured(event))
        return CUDA_ERROR_INVALID_HANDLE;
    demand_op(event->record);
    if (!event->record->done)
        return CUDA_ERROR_NOT_READY;
    *when_ns = event->record->finished_ns;
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    int64_t first, last;
    pthread_mutex_lock(&big_lock);
    CUresult result = time_of(start, &first);
    if (result == CUDA_SUCCESS)
        result = time_of(end, &last);
    if (result == CUDA_SUCCESS)
        *milliseconds = (float)((double)(last - first) * 1e-6);
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    return cuEventElapsedTime(milliseconds, start, end);
}
