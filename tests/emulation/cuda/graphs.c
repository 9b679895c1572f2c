/* Graphs: nodes with an order, and their launch.
 *
 * A launch becomes operations like any others.  Nodes that follow one another share a lane (a stream of the graph's
 * own), so that branches run side by side as they would on a device:
 *
 *     stream of the launch   ... start ----------------------> end ...
 *     lane 0                       a ---> b ---------> d -----^
 *     lane 1                       `----> c ----------^
 */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

struct kept {
    struct kept *next;
    CUuserObject object;
    unsigned count;
};

struct CUuserObject_st {
    uint32_t magic;
    atomic_int references;
    CUhostFn destroy;
    void *argument;
};

struct step {
    struct task *task;
    int lane;
    size_t *before;                /* earlier steps */
    size_t before_count;
    bool last;                     /* nothing comes after it */
};

struct CUgraphExec_st {
    uint32_t magic;
    CUcontext context;
    struct step *steps;
    size_t count;
    CUstream *lanes;
    int lane_count;
    struct op *end;                /* of the latest launch */
    struct kept *kept;
};

/* ---- objects whose life a graph prolongs ---- */

static void keep_object(struct kept **list, CUuserObject object, unsigned count)
{
    struct kept *kept = malloc(sizeof *kept);
    *kept = (struct kept){*list, object, count};
    *list = kept;
}

static void release_object(CUuserObject object, unsigned count)
{
    if (atomic_fetch_sub(&object->references, (int)count) > (int)count)
        return;
    object->destroy(object->argument);
    retire_object(object);
}

static void release_kept(struct kept *list)
{
    while (list) {
        struct kept *next = list->next;
        release_object(list->object, list->count);
        free(list);
        list = next;
    }
}

CUresult cuUserObjectCreate(CUuserObject *out, void *argument, CUhostFn destroy, unsigned references, unsigned flags)
{
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    if (!out || !destroy || !references || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    CUuserObject object = make_object(OBJECT, sizeof *object);
    object->references = (int)references;
    object->destroy = destroy;
    object->argument = argument;
    *out = object;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned count)
{
    if (!is_object(object, OBJECT) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    atomic_fetch_add(&object->references, (int)count);
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count)
{
    if (!is_object(object, OBJECT) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    release_object(object, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags)
{
    if (!is_object(graph, GRAPH) || !is_object(object, OBJECT) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE))
        atomic_fetch_add(&object->references, (int)count);
    keep_object(&graph->kept, object, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count)
{
    if (!is_object(graph, GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    for (struct kept **link = &graph->kept; *link; link = &(*link)->next) {
        struct kept *kept = *link;
        if (kept->object != object || kept->count < count)
            continue;
        kept->count -= count;
        if (!kept->count) {
            *link = kept->next;
            free(kept);
        }
        release_object(object, count);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- building ---- */

CUgraph make_graph(void)
{
    return make_object(GRAPH, sizeof(struct CUgraph_st));
}

void drop_graph(CUgraph graph)
{
    for (size_t i = 0; i < graph->count; i++) {
        drop_task(graph->nodes[i]->task);
        free(graph->nodes[i]->before);
        free(graph->nodes[i]);
    }
    free(graph->nodes);
    release_kept(graph->kept);
    retire_object(graph);
}

bool add_dependency(CUgraphNode node, CUgraphNode before)
{
    for (size_t i = 0; i < node->before_count; i++)
        if (node->before[i] == before)
            return false;
    node->before = realloc(node->before, sizeof *node->before * (node->before_count + 1));
    node->before[node->before_count++] = before;
    return true;
}

/* Takes the task over. */
CUgraphNode add_node(CUgraph graph, CUgraphNodeType type, struct task *task, const CUgraphNode *before, size_t count)
{
    if (graph->count == graph->room) {
        graph->room = graph->room ? 2 * graph->room : 16;
        graph->nodes = realloc(graph->nodes, sizeof *graph->nodes * graph->room);
    }
    CUgraphNode node = calloc(1, sizeof *node);
    node->graph = graph;
    node->type = type;
    node->task = task;
    node->index = graph->count;
    graph->nodes[graph->count++] = node;
    for (size_t i = 0; i < count; i++)
        add_dependency(node, before[i]);
    return node;
}

static CUresult check_nodes(CUgraph graph, const CUgraphNode *nodes, size_t count)
{
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_object(graph, GRAPH) || (count && !nodes))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!nodes[i] || nodes[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    CUresult result = initialised();
    if (result == CUDA_SUCCESS && (!graph || flags))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *graph = make_graph();
    return result;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    CUresult result = check_nodes(graph, NULL, 0);
    if (result == CUDA_SUCCESS)
        drop_graph(graph);
    return result;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count)
{
    CUresult result = check_nodes(graph, before, count);
    if (result == CUDA_SUCCESS)
        *node = add_node(graph, CU_GRAPH_NODE_TYPE_EMPTY, NULL, before, count);
    return result;
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                            const CUDA_HOST_NODE_PARAMS *parameters)
{
    CUresult result = check_nodes(graph, before, count);
    if (result == CUDA_SUCCESS && (!parameters || !parameters->fn))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *node = add_node(graph, CU_GRAPH_NODE_TYPE_HOST, make_host_task(parameters->fn, parameters->userData), before,
                         count);
    return result;
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    CUresult result = check_nodes(graph, from, count);
    if (result == CUDA_SUCCESS)
        result = check_nodes(graph, to, count);
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++)
        if (from[i] == to[i] || !add_dependency(to[i], from[i]))
            result = CUDA_ERROR_INVALID_VALUE;
    return result;
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edges, size_t count)
{
    return edges ? unsupported("edge data of a graph") : cuGraphAddDependencies(graph, from, to, count);
}

/* ---- questions ---- */

/* Fills `out` with as many as fit; without it, only says how many there are. */
static void give_node(CUgraphNode *out, size_t room, size_t *count, CUgraphNode node)
{
    if (out && *count < room)
        out[*count] = node;
    ++*count;
}

static CUresult list_nodes(CUgraph graph, CUgraphNode *out, size_t *count, bool roots)
{
    CUresult result = check_nodes(graph, NULL, 0);
    if (result != CUDA_SUCCESS)
        return result;
    size_t room = *count;
    *count = 0;
    for (size_t i = 0; i < graph->count; i++)
        if (!roots || !graph->nodes[i]->before_count)
            give_node(out, room, count, graph->nodes[i]);
    for (size_t i = *count; out && i < room; i++)
        out[i] = NULL;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    return list_nodes(graph, nodes, count, false);
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    return list_nodes(graph, nodes, count, true);
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    CUresult result = check_nodes(graph, NULL, 0);
    if (result != CUDA_SUCCESS)
        return result;
    size_t room = *count, starts = 0, ends = 0;
    for (size_t i = 0; i < graph->count; i++)
        for (size_t j = 0; j < graph->nodes[i]->before_count; j++) {
            give_node(from, room, &starts, graph->nodes[i]->before[j]);
            give_node(to, room, &ends, graph->nodes[i]);
        }
    *count = starts;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count)
{
    if (edges)
        memset(edges, 0, sizeof *edges * *count);
    return cuGraphGetEdges(graph, from, to, count);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    if (!node || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *before, size_t *count)
{
    if (!node || !count)
        return CUDA_ERROR_INVALID_VALUE;
    size_t room = *count;
    *count = 0;
    for (size_t i = 0; i < node->before_count; i++)
        give_node(before, room, count, node->before[i]);
    return CUDA_SUCCESS;
}

/* ---- making it ready for launches ---- */

/* Orders the nodes so that each comes after what it depends on; false where they go in a circle. */
static bool put_in_order(CUgraph graph, CUgraphNode *order)
{
    size_t done = 0;
    bool *placed = calloc(graph->count + 1, sizeof *placed);
    for (bool progress = true; progress && done < graph->count;) {
        progress = false;
        for (size_t i = 0; i < graph->count; i++) {
            CUgraphNode node = graph->nodes[i];
            bool free = !placed[i];
            for (size_t j = 0; free && j < node->before_count; j++)
                free = placed[node->before[j]->index];
            if (!free)
                continue;
            placed[i] = progress = true;
            order[done++] = node;
        }
    }
    free(placed);
    return done == graph->count;
}

static void make_step(CUgraphExec exec, size_t index, CUgraphNode node, const size_t *place)
{
    struct step *step = &exec->steps[index];
    keep_task(node->task);
    *step = (struct step){.task = node->task, .lane = -1, .last = true, .before_count = node->before_count};
    step->before = malloc(sizeof *step->before * (node->before_count + 1));
    for (size_t i = 0; i < node->before_count; i++) {
        struct step *earlier = &exec->steps[step->before[i] = place[node->before[i]->index]];
        if (step->lane < 0 && earlier->last)
            step->lane = earlier->lane;
        earlier->last = false;
    }
    if (step->lane < 0)
        step->lane = exec->lane_count++;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, CUcontext context)
{
    CUgraphNode *order = malloc(sizeof *order * (graph->count + 1));
    if (!put_in_order(graph, order)) {
        free(order);
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphExec exec = make_object(EXEC, sizeof *exec);
    size_t *place = malloc(sizeof *place * (graph->count + 1));
    exec->context = context;
    exec->count = graph->count;
    exec->steps = calloc(graph->count + 1, sizeof *exec->steps);
    for (size_t i = 0; i < graph->count; i++) {
        place[order[i]->index] = i;
        make_step(exec, i, order[i], place);
    }
    exec->lanes = calloc((size_t)exec->lane_count + 1, sizeof(CUstream));
    for (int i = 0; i < exec->lane_count; i++)
        exec->lanes[i] = make_stream(context, LANE, CU_STREAM_NON_BLOCKING, 0);
    for (struct kept *kept = graph->kept; kept; kept = kept->next) {
        atomic_fetch_add(&kept->object->references, (int)kept->count);
        keep_object(&exec->kept, kept->object, kept->count);
    }
    free(order);
    free(place);
    *out = exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    CUcontext context;
    CUresult result = check_nodes(graph, NULL, 0);
    if (result != CUDA_SUCCESS)
        return result;
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
        return unsupported("a graph launched from the device");
    pthread_mutex_lock(&big_lock);
    result = current_context(&context);
    if (result == CUDA_SUCCESS)
        result = instantiate(exec, graph, context);
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *wrong, char *log, size_t room)
{
    if (wrong)
        *wrong = NULL;
    if (log && room)
        *log = 0;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *wrong, char *log, size_t room)
{
    return cuGraphInstantiate_v2(exec, graph, wrong, log, room);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    parameters->hErrNode_out = NULL;
    CUresult result = cuGraphInstantiateWithFlags(exec, graph, parameters->flags);
    parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_object(exec, EXEC))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&big_lock);
    for (int i = 0; i < exec->lane_count; i++)
        drop_stream(exec->lanes[i]);
    drop_op(exec->end);
    pthread_mutex_unlock(&big_lock);
    for (size_t i = 0; i < exec->count; i++) {
        drop_task(exec->steps[i].task);
        free(exec->steps[i].before);
    }
    free(exec->steps);
    free(exec->lanes);
    release_kept(exec->kept);
    retire_object(exec);
    return CUDA_SUCCESS;
}

/* ---- launching ---- */

static struct op *add_step(CUgraphExec exec, size_t index, struct op **ops, struct op *start)
{
    struct step *step = &exec->steps[index];
    struct op **before = malloc(sizeof *before * (step->before_count + 1));
    before[0] = start;
    for (size_t i = 0; i < step->before_count; i++)
        before[i + 1] = ops[step->before[i]];
    keep_task(step->task);
    struct op *op = add_op(exec->lanes[step->lane], step->task, before, (int)step->before_count + 1);
    keep_op(op);
    free(before);
    return op;
}

/* Two launches of one graph run one after the other, whatever their streams. */
static void launch(CUgraphExec exec, CUstream stream)
{
    struct op **ops = malloc(sizeof *ops * (exec->count + 2));
    struct op **last = malloc(sizeof *last * (exec->count + 1));
    int last_count = 0;
    struct op *start = ops[exec->count] = add_op(stream, NULL, &exec->end, exec->end ? 1 : 0);
    keep_op(start);
    for (size_t i = 0; i < exec->count; i++) {
        ops[i] = add_step(exec, i, ops, start);
        if (exec->steps[i].last)
            last[last_count++] = ops[i];
    }
    struct op *end = add_op(stream, NULL, last, last_count);
    drop_op(exec->end);
    exec->end = end;
    keep_op(end);
    for (size_t i = 0; i <= exec->count; i++)
        drop_op(ops[i]);
    free(ops);
    free(last);
    if (settings.mode == EAGER) {
        for (int i = 0; i < exec->lane_count; i++)
            wake_stream(exec->lanes[i]);
        settle_op(end);
    }
}

/* A launch that is captured becomes a copy of the nodes. */
static CUresult launch_into_capture(CUgraphExec exec, CUstream stream)
{
    if (stream->capture->broken)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUgraph graph = stream->capture->graph;
    CUgraphNode *nodes = malloc(sizeof(CUgraphNode) * (exec->count + 1)), *last = malloc(sizeof *last * (exec->count + 1));
    size_t last_count = 0;
    for (size_t i = 0; i < exec->count; i++) {
        struct step *step = &exec->steps[i];
        keep_task(step->task);
        CUgraphNodeType type = step->task ? step->task->type : CU_GRAPH_NODE_TYPE_EMPTY;
        nodes[i] = add_node(graph, type, step->task, stream->frontier, step->before_count ? 0 : stream->frontier_count);
        for (size_t j = 0; j < step->before_count; j++)
            add_dependency(nodes[i], nodes[step->before[j]]);
        if (step->last)
            last[last_count++] = nodes[i];
    }
    if (last_count)
        set_frontier(stream, last, last_count);
    free(nodes);
    free(last);
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    CUstream stream;
    pthread_mutex_lock(&big_lock);
    CUresult result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS && !is_object(exec, EXEC))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && stream->capture)
        result = launch_into_capture(exec, stream);
    else if (result == CUDA_SUCCESS)
        launch(exec, stream);
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    (void)stream;
    CUcontext context;
    CUresult result = current_context(&context);
    return result == CUDA_SUCCESS && !is_object(exec, EXEC) ? CUDA_ERROR_INVALID_VALUE : result;
}
