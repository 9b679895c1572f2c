/* Entry points that allocate and free: device memory, pinned memory, memory of the host that is registered. */
#include "standin.h"

/* ---- device memory ---- */

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    CUcontext context;
    struct allocation made;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        result = refuse_unsafe();
    if (result == CUDA_SUCCESS)
        result = pointer ? allocate(context, size, DEVICE_MEMORY, LIVE, NULL, 0, &made) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *pointer = made.address;
    return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    (void)element;
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc_v2(pointer, *pitch * height);
}

/* At one address for the host and all devices. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags)
{
    CUcontext context;
    struct allocation made;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        result = refuse_unsafe();
    if (result == CUDA_SUCCESS && (!pointer || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = allocate(context, size, MANAGED_MEMORY, LIVE, NULL, flags, &made);
    if (result == CUDA_SUCCESS)
        *pointer = made.address;
    return result;
}

/* Waits for the device, as the driver does. */
static CUresult wait_and_free(uintptr_t address, enum memory_kind kind)
{
    CUcontext context;
    struct allocation found;
    pthread_mutex_lock(&big_lock);
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        result = refuse_unsafe_held();
    if (result == CUDA_SUCCESS && (!find_memory(address, &found) || found.address != address || found.kind != kind ||
                                   found.state == LEAVING))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = wait_context(context);
    if (result == CUDA_SUCCESS && found.context != context && is_object(found.context, CONTEXT))
        result = wait_context(found.context);
    pthread_mutex_unlock(&big_lock);
    if (result == CUDA_SUCCESS)
        result = release(address, kind);
    if (result == CUDA_SUCCESS && found.pool)
        pool_gave(found.pool, found.mapped);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    struct allocation found;
    bool managed = pointer && find_memory(pointer, &found) && found.kind == MANAGED_MEMORY;
    return pointer ? wait_and_free(pointer, managed ? MANAGED_MEMORY : DEVICE_MEMORY) : CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *left, size_t *total)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    size_t used, limit;
    memory_in_use(context->device, &used, &limit);
    if (left)
        *left = limit - used;
    if (total)
        *total = limit;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    CUcontext context;
    struct allocation found;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!find_memory(pointer, &found))
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = found.address;
    if (size)
        *size = found.size;
    return CUDA_SUCCESS;
}

/* ---- pinned memory ---- */

CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags)
{
    CUcontext context;
    struct allocation made;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        result = refuse_unsafe();
    if (result == CUDA_SUCCESS)
        result = pointer ? allocate(context, size, PINNED_MEMORY, LIVE, NULL, flags, &made) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *pointer = (void *)made.address;
    return result;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t size)
{
    return cuMemHostAlloc(pointer, size, 0);
}

CUresult cuMemFreeHost(void *pointer)
{
    return wait_and_free((uintptr_t)pointer, PINNED_MEMORY);
}

CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags)
{
    CUcontext context;
    struct allocation found;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!pointer || !size)
        return CUDA_ERROR_INVALID_VALUE;
    uintptr_t address = (uintptr_t)pointer;
    if (find_memory(address, &found) || find_memory(address + size - 1, &found))
        return found.kind == REGISTERED_MEMORY ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_ERROR_INVALID_VALUE;
    struct allocation made = {.id = new_memory_id(), .kind = REGISTERED_MEMORY, .state = LIVE, .address = address,
                              .size = size, .mapped = size, .view = pointer, .device = context->device,
                              .context = context, .flags = flags};
    add_memory(&made);
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *pointer)
{
    CUresult result = wait_and_free((uintptr_t)pointer, REGISTERED_MEMORY);
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : result;
}

static CUresult find_pinned(void *pointer, struct allocation *found)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    bool pinned = find_memory((uintptr_t)pointer, found) &&
                  (found->kind == PINNED_MEMORY || found->kind == REGISTERED_MEMORY);
    return pinned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device_pointer, void *pointer, unsigned flags)
{
    struct allocation found;
    CUresult result = flags ? CUDA_ERROR_INVALID_VALUE : find_pinned(pointer, &found);
    if (result == CUDA_SUCCESS)
        *device_pointer = (CUdeviceptr)(uintptr_t)pointer;
    return result;
}

CUresult cuMemHostGetFlags(unsigned *flags, void *pointer)
{
    struct allocation found;
    CUresult result = find_pinned(pointer, &found);
    if (result == CUDA_SUCCESS)
        *flags = found.flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return result;
}
