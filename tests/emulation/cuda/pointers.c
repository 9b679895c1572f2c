/* What an address is.  Memory of the host that CUDA does not know gives an error when one attribute is asked for,
 * and zeros when several are. */
#include "standin.h"

#include <string.h>

static bool is_host_memory(const struct allocation *found)
{
    return found->kind == PINNED_MEMORY || found->kind == REGISTERED_MEMORY;
}

static CUresult pointer_of_host(void *out, const struct allocation *found, uintptr_t address)
{
    if (!is_host_memory(found) && found->kind != MANAGED_MEMORY) {
        *(void **)out = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
    *(void **)out = (void *)address;
    return CUDA_SUCCESS;
}

/* Truth values are one byte here, others have the size that the driver's manual gives. */
static CUresult read_attribute(void *out, CUpointer_attribute attribute, const struct allocation *found,
                               uintptr_t address)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)out = found->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = is_host_memory(found) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)out = address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return pointer_of_host(out, found, address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(char *)out = found->sync_memops;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)out = found->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(char *)out = found->kind == MANAGED_MEMORY;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = found->device ? found->device->ordinal : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(char *)out = found->kind == DEVICE_MEMORY && !found->pool;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)out = found->address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)out = found->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(char *)out = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)out = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(char *)out = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(int *)out = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)out = found->pool;
        return CUDA_SUCCESS;
    default:
        return unsupported("this attribute of a pointer");
    }
}

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct allocation found;
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    if (!out || !find_memory(address, &found))
        return CUDA_ERROR_INVALID_VALUE;
    return read_attribute(out, attribute, &found, address);
}

static size_t size_of(CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        return 1;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return 4;
    default:
        return 8;
    }
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **out, CUdeviceptr address)
{
    struct allocation found;
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    bool known = find_memory(address, &found);
    for (unsigned i = 0; i < count; i++) {
        memset(out[i], 0, size_of(attributes[i]));
        if (known)
            read_attribute(out[i], attributes[i], &found, address);
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)out[i] = CU_DEVICE_INVALID;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !value)
        return CUDA_ERROR_INVALID_VALUE;
    return set_sync_memops(address, *(const unsigned *)value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
