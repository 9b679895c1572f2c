/* Stream capture: what is enqueued becomes nodes of a graph, ordered as the streams and events order it. */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_CAPTURES = 64, MOST_STREAMS = 256 };

static struct capture *captures[MOST_CAPTURES];       /* that are going on */
static CUstream taking_part[MOST_STREAMS];
static uint64_t next_id = 1;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- what takes part ---- */

void set_frontier(CUstream stream, const CUgraphNode *nodes, size_t count)
{
    CUgraphNode *copy = count ? malloc(sizeof *copy * count) : NULL;
    if (count)
        memcpy(copy, nodes, sizeof *copy * count);
    free(stream->frontier);
    stream->frontier = copy;
    stream->frontier_count = count;
}

void add_frontier(CUstream stream, const CUgraphNode *nodes, size_t count)
{
    stream->frontier = realloc(stream->frontier, sizeof *stream->frontier * (stream->frontier_count + count + 1));
    for (size_t i = 0; i < count; i++) {
        bool known = false;
        for (size_t j = 0; j < stream->frontier_count; j++)
            known |= stream->frontier[j] == nodes[i];
        if (!known)
            stream->frontier[stream->frontier_count++] = nodes[i];
    }
}

static struct capture *capture_by_id(uint64_t id)
{
    for (int i = 0; i < MOST_CAPTURES; i++)
        if (captures[i] && captures[i]->id == id)
            return captures[i];
    return NULL;
}

static CUresult join(CUstream stream, struct capture *capture)
{
    for (int i = 0; i < MOST_STREAMS; i++)
        if (!taking_part[i]) {
            taking_part[i] = stream;
            stream->references++;
            stream->capture = capture;
            stream->context->captures++;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void end(struct capture *capture)
{
    for (int i = 0; i < MOST_STREAMS; i++) {
        CUstream stream = taking_part[i];
        if (!stream || stream->capture != capture)
            continue;
        stream->capture = NULL;
        set_frontier(stream, NULL, 0);
        taking_part[i] = NULL;
        if (stream->context)
            stream->context->captures--;
        drop_stream(stream);
    }
    for (int i = 0; i < MOST_CAPTURES; i++)
        if (captures[i] == capture)
            captures[i] = NULL;
    free(capture);
}

/* A capture ends with the stream that it began in, and is of no use without another. */
void leave_capture(CUstream stream)
{
    struct capture *capture = stream->capture;
    if (!capture)
        return;
    capture->broken = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (capture->origin == stream) {
        drop_graph(capture->graph);
        end(capture);
    }
}

/* ---- what a capture forbids ---- */

CUresult break_capture(CUstream stream, CUresult error)
{
    if (stream->capture)
        stream->capture->broken = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return error;
}

CUresult refuse_while_capturing(CUcontext context)
{
    if (!context->captures)
        return CUDA_SUCCESS;
    for (int i = 0; i < MOST_STREAMS; i++)
        if (taking_part[i] && taking_part[i]->context == context)
            break_capture(taking_part[i], CUDA_SUCCESS);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static bool forbids(const struct capture *capture)
{
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    if (pthread_equal(capture->thread, pthread_self()))
        return true;
    return capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult refuse_unsafe_held(void)
{
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < MOST_CAPTURES; i++)
        if (captures[i] && forbids(captures[i])) {
            captures[i]->broken = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return result;
}

CUresult refuse_unsafe(void)
{
    pthread_mutex_lock(&big_lock);
    CUresult result = refuse_unsafe_held();
    pthread_mutex_unlock(&big_lock);
    return result;
}

uint64_t capture_of(CUstream handle)
{
    CUstream stream;
    pthread_mutex_lock(&big_lock);
    uint64_t id = stream_of(handle, &stream) == CUDA_SUCCESS && stream->capture ? stream->capture->id : 0;
    pthread_mutex_unlock(&big_lock);
    return id;
}

bool is_capturing(CUstream handle)
{
    return capture_of(handle) != 0;
}

CUresult keep_with_capture(CUstream handle, CUhostFn destroy, void *argument)
{
    CUstream stream;
    CUuserObject object;
    CUresult result = cuUserObjectCreate(&object, argument, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&big_lock);
    result = stream_of(handle, &stream) == CUDA_SUCCESS && stream->capture
                 ? cuGraphRetainUserObject(stream->capture->graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE)
                 : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    pthread_mutex_unlock(&big_lock);
    return result;
}

/* ---- what is captured ---- */

CUresult capture_task(CUstream stream, struct task *task)
{
    if (stream->capture->broken) {
        drop_task(task);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    CUgraphNode node = add_node(stream->capture->graph, task->type, task, stream->frontier, stream->frontier_count);
    set_frontier(stream, &node, 1);
    return CUDA_SUCCESS;
}

bool event_is_captured(CUevent event)
{
    return event->capture_id != 0;
}

CUresult capture_record(CUstream stream, CUevent event)
{
    if (stream->capture->broken)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture_id = stream->capture->id;
    event->node_count = stream->frontier_count;
    free(event->nodes);
    event->nodes = malloc(sizeof *event->nodes * (event->node_count + 1));
    if (event->node_count)
        memcpy(event->nodes, stream->frontier, sizeof *event->nodes * event->node_count);
    return CUDA_SUCCESS;
}

static CUresult wait_within(CUstream stream, CUevent event)
{
    struct capture *other = capture_by_id(event->capture_id);
    if (stream->capture->broken)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!event->capture_id)
        return break_capture(stream, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    if (other != stream->capture) {
        if (other)
            other->broken = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return break_capture(stream, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    add_frontier(stream, event->nodes, event->node_count);
    return CUDA_SUCCESS;
}

/* A stream that waits for an event of a capture becomes part of it. */
CUresult capture_wait(CUstream stream, CUevent event, bool *taken)
{
    *taken = true;
    if (stream->capture)
        return wait_within(stream, event);
    if (!event->capture_id) {
        *taken = false;
        return CUDA_SUCCESS;
    }
    struct capture *capture = capture_by_id(event->capture_id);
    if (!capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (capture->broken)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->kind == LEGACY) {
        capture->broken = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    CUresult result = join(stream, capture);
    if (result == CUDA_SUCCESS)
        set_frontier(stream, event->nodes, event->node_count);
    return result;
}

/* ---- entry points ---- */

static CUresult begin(CUstream stream, CUstreamCaptureMode mode, CUgraph graph)
{
    if (stream->kind == LEGACY)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    for (int i = 0; i < MOST_CAPTURES; i++) {
        if (captures[i])
            continue;
        struct capture *capture = captures[i] = calloc(1, sizeof *capture);
        capture->id = next_id++;
        capture->mode = mode;
        capture->thread = pthread_self();
        capture->origin = stream;
        capture->graph = graph ? graph : make_graph();
        return join(stream, capture);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstream stream;
    pthread_mutex_lock(&big_lock);
    CUresult result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS)
        result = begin(stream, mode, NULL);
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuStreamBeginCapture(CUstream stream)
{
    return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* Every node that nothing comes after has to be what the first stream has come to. */
static bool is_joined(CUstream origin)
{
    CUgraph graph = origin->capture->graph;
    bool *has_later = calloc(graph->count + 1, sizeof *has_later);
    for (size_t i = 0; i < graph->count; i++)
        for (size_t j = 0; j < graph->nodes[i]->before_count; j++)
            has_later[graph->nodes[i]->before[j]->index] = true;
    for (size_t i = 0; i < origin->frontier_count; i++)
        has_later[origin->frontier[i]->index] = true;
    bool joined = true;
    for (size_t i = 0; i < graph->count; i++)
        joined &= has_later[i];
    free(has_later);
    return joined;
}

static CUresult finish(CUstream stream, CUgraph *graph)
{
    struct capture *capture = stream->capture;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream)
        return break_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    CUresult result = capture->broken;
    if (result == CUDA_SUCCESS && !is_joined(stream))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS)
        *graph = capture->graph;
    else
        drop_graph(capture->graph);
    end(capture);
    return result;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = NULL;
    CUstream stream;
    pthread_mutex_lock(&big_lock);
    CUresult result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS)
        result = finish(stream, graph);
    pthread_mutex_unlock(&big_lock);
    return result;
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
    if (!stream->capture)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/* Asked about the legacy stream while a blocking stream captures, the driver refuses. */
static CUresult find_for_status(CUstream handle, CUstream *stream)
{
    CUresult result = stream_of(handle, stream);
    if (result != CUDA_SUCCESS || (*stream)->kind != LEGACY)
        return result;
    for (CUstream other = (*stream)->context->streams; other; other = other->next)
        if (other->capture && is_blocking(other))
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    CUstream stream;
    pthread_mutex_lock(&big_lock);
    CUresult result = find_for_status(handle, &stream);
    if (result == CUDA_SUCCESS)
        *status = status_of(stream);
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count)
{
    CUstream stream;
    pthread_mutex_lock(&big_lock);
    CUresult result = find_for_status(handle, &stream);
    if (result == CUDA_SUCCESS) {
        *status = status_of(stream);
        bool active = *status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
        if (active && id)
            *id = stream->capture->id;
        if (active && graph)
            *graph = stream->capture->graph;
        if (active && nodes)
            *nodes = stream->frontier;
        if (active && edges)
            *edges = NULL;
        if (active && count)
            *count = stream->frontier_count;
    }
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **nodes, size_t *count)
{
    return cuStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, NULL, count);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    return cuStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *nodes, size_t count, unsigned flags)
{
    CUstream stream;
    pthread_mutex_lock(&big_lock);
    CUresult result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS && status_of(stream) != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        result = CUDA_ERROR_ILLEGAL_STATE;
    if (result == CUDA_SUCCESS && flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        set_frontier(stream, nodes, count);
    else if (result == CUDA_SUCCESS)
        add_frontier(stream, nodes, count);
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges,
                                              size_t count, unsigned flags)
{
    return edges ? unsupported("edge data of a graph") : cuStreamUpdateCaptureDependencies(stream, nodes, count, flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
