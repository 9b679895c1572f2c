/* Stream-ordered allocation.  Memory of a pool comes from the device each time; a pool only counts.
 *
 * An allocation may be used by what comes after it in stream order; an operation that runs before that gets
 * CUDA_ERROR_ILLEGAL_ADDRESS, and so does one that runs after the free. */
#include "standin.h"

#include <string.h>

static CUmemoryPool new_pool(struct device *device)
{
    CUmemoryPool pool = make_object(POOL, sizeof *pool);
    pool->device = device;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    if (device)
        pool->readers = (uint64_t)1 << device->ordinal;
    return pool;
}

CUmemoryPool default_pool(struct device *device)
{
    pthread_mutex_lock(&big_lock);
    if (!device->default_pool) {
        device->default_pool = new_pool(device);
        device->default_pool->implicit = true;
        device->pool = device->default_pool;
    }
    pthread_mutex_unlock(&big_lock);
    return device->default_pool;
}

void pool_took(CUmemoryPool pool, size_t size)
{
    size_t used = atomic_fetch_add(&pool->used, size) + size, most = pool->most_used;
    while (used > most && !atomic_compare_exchange_weak(&pool->most_used, &most, used))
        ;
}

void pool_gave(CUmemoryPool pool, size_t size)
{
    atomic_fetch_sub(&pool->used, size);
}

static CUresult check_pool(CUmemoryPool pool)
{
    CUresult result = initialised();
    return result == CUDA_SUCCESS && !is_object(pool, POOL) ? CUDA_ERROR_INVALID_HANDLE : result;
}

/* ---- pools ---- */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    if (!pool || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return unsupported("cuMemPoolCreate of a pool that other processes may open");
    struct device *device = NULL;
    if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        result = device_of(properties->location.id, &device);
    else if (properties->location.type == CU_MEM_LOCATION_TYPE_INVALID)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    *pool = new_pool(device);
    (*pool)->properties = *properties;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult result = check_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    if (pool->implicit)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool->device && pool->device->pool == pool)
        pool->device->pool = pool->device->default_pool;
    pool->magic = 0;   /* what was taken from it may still be given back */
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    (void)keep;
    return check_pool(pool);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CUresult result = check_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = pool->threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->used;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = pool->most_used;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CUresult result = check_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *(cuuint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        atomic_store(&pool->most_used, pool->used);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *accesses, size_t count)
{
    CUresult result = check_pool(pool);
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        struct device *device;
        if (accesses[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            continue;
        result = device_of(accesses[i].location.id, &device);
        if (result != CUDA_SUCCESS)
            return result;
        uint64_t bit = (uint64_t)1 << device->ordinal;
        if (accesses[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && pool->device == device)
            return CUDA_ERROR_INVALID_DEVICE;
        pool->readers = accesses[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? pool->readers & ~bit : pool->readers | bit;
    }
    return result;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
    CUresult result = check_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    bool may = location->type != CU_MEM_LOCATION_TYPE_DEVICE || (pool->readers >> location->id & 1);
    *flags = may ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        *pool = default_pool(device);
    return result;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    default_pool(device);
    *pool = device->pool;
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        result = check_pool(pool);
    if (result == CUDA_SUCCESS && pool->device != device)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    default_pool(device);
    device->pool = pool;
    return CUDA_SUCCESS;
}

/* ---- allocations in stream order ---- */

struct memory_task {
    struct task task;
    uintptr_t address;
    uint64_t id;
    bool of_graph;                 /* which has the address as long as it lives, and the memory while it runs */
};

static CUresult run_allocation(struct task *task)
{
    struct memory_task *memory = (struct memory_task *)task;
    struct allocation found;
    if (!find_memory(memory->address, &found) || found.id != memory->id)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    memset(found.view, POISON, found.size);
    if (found.state == PENDING || memory->of_graph)
        change_memory(memory->address, LIVE);
    return CUDA_SUCCESS;
}

static CUresult run_release(struct task *task)
{
    struct memory_task *memory = (struct memory_task *)task;
    struct allocation found;
    if (!find_memory(memory->address, &found) || found.id != memory->id)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (memory->of_graph) {
        change_memory(memory->address, PENDING);
        return CUDA_SUCCESS;
    }
    if (found.pool)
        pool_gave(found.pool, found.mapped);
    return release(memory->address, found.kind);
}

static void end_of_graph(void *address)
{
    release((uintptr_t)address, DEVICE_MEMORY);
}

static struct task *memory_task(const struct allocation *allocation, bool free)
{
    struct memory_task *memory =
        make_task(sizeof *memory, free ? "cuMemFreeAsync" : "cuMemAllocAsync",
                  free ? CU_GRAPH_NODE_TYPE_MEM_FREE : CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                  free ? run_release : run_allocation, NULL);
    memory->address = allocation->address;
    memory->id = allocation->id;
    memory->of_graph = allocation->capture != 0;
    return &memory->task;
}

/* In a graph: a node that gives the memory at every launch, poisoned, until the node that frees it. */
static CUresult allocate_in_graph(uint64_t capture, CUdeviceptr *pointer, size_t size, CUstream stream,
                                  CUcontext context)
{
    struct allocation made;
    CUresult result = allocate(context, size, DEVICE_MEMORY, PENDING, NULL, 0, &made);
    if (result != CUDA_SUCCESS)
        return result;
    made.capture = capture;
    own_by_capture(made.address, capture);
    result = enqueue(stream, memory_task(&made, false), false);
    if (result == CUDA_SUCCESS)
        result = keep_with_capture(stream, end_of_graph, (void *)made.address);
    if (result != CUDA_SUCCESS) {
        release(made.address, made.kind);
        return result;
    }
    *pointer = made.address;
    return CUDA_SUCCESS;
}

static CUresult allocate_from(CUmemoryPool pool, CUdeviceptr *pointer, size_t size, CUstream handle, CUcontext context)
{
    uint64_t capture = capture_of(handle);
    if (capture)
        return allocate_in_graph(capture, pointer, size, handle, context);
    struct allocation made;
    CUresult result = allocate(context, size, pool->device ? DEVICE_MEMORY : PINNED_MEMORY, PENDING, pool, 0, &made);
    if (result != CUDA_SUCCESS)
        return result;
    pool_took(pool, made.mapped);
    result = enqueue(handle, memory_task(&made, false), false);
    if (result != CUDA_SUCCESS) {
        pool_gave(pool, made.mapped);
        release(made.address, made.kind);
        return result;
    }
    *pointer = made.address;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        result = check_pool(pool);
    if (result == CUDA_SUCCESS && (!pointer || !size))
        result = CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_SUCCESS ? allocate_from(pool, pointer, size, stream, context) : result;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS && (!pointer || !size))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    default_pool(context->device);
    return allocate_from(context->device->pool, pointer, size, stream, context);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    struct allocation found;
    CUresult result = initialised();
    if (result != CUDA_SUCCESS || !pointer)
        return result;
    if (!find_memory(pointer, &found) || found.address != pointer || found.state == LEAVING ||
        (found.kind != DEVICE_MEMORY && !found.pool))
        return CUDA_ERROR_INVALID_VALUE;
    if (found.capture != capture_of(stream))
        return unsupported("cuMemFreeAsync of memory of a graph outside it, or of other memory in a graph");
    enum memory_state before = found.state;
    change_memory(pointer, LEAVING);
    result = enqueue(stream, memory_task(&found, true), false);
    if (result != CUDA_SUCCESS)
        change_memory(pointer, before);
    return result;
}
