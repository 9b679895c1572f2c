/* Memory: allocation, pools, copies and fills, what a pointer is. */
#include "cudart.h"

#include <stdbool.h>
#include <string.h>

/* ---- allocation ---- */

cudaError_t cudaMalloc(void **pointer, size_t size)
{
    *pointer = NULL;
    if (!size)
        return answer(use_context());
    IN_CONTEXT(cuMemAlloc((CUdeviceptr *)pointer, size));
}

cudaError_t cudaMallocManaged(void **pointer, size_t size, unsigned flags)
{
    IN_CONTEXT(cuMemAllocManaged((CUdeviceptr *)pointer, size, flags));
}

cudaError_t cudaFree(void *pointer)
{
    if (!pointer)
        return answer(use_context());
    IN_CONTEXT(cuMemFree(address(pointer)));
}

cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream)
{
    IN_CONTEXT(cuMemAllocAsync((CUdeviceptr *)pointer, size, stream));
}

cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t size, cudaMemPool_t pool, cudaStream_t stream)
{
    IN_CONTEXT(cuMemAllocFromPoolAsync((CUdeviceptr *)pointer, size, pool, stream));
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    IN_CONTEXT(cuMemFreeAsync(address(pointer), stream));
}

cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags)
{
    *pointer = NULL;
    if (!size)
        return answer(use_context());
    IN_CONTEXT(cuMemHostAlloc(pointer, size, flags));
}

cudaError_t cudaFreeHost(void *pointer)
{
    if (!pointer)
        return answer(use_context());
    IN_CONTEXT(cuMemFreeHost(pointer));
}

cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags)
{
    IN_CONTEXT(cuMemHostRegister(pointer, size, flags));
}

cudaError_t cudaHostUnregister(void *pointer)
{
    IN_CONTEXT(cuMemHostUnregister(pointer));
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    IN_CONTEXT(cuMemGetInfo(available, total));
}

/* ---- pools ---- */

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    IN_CONTEXT(cuDeviceGetDefaultMemPool(pool, device));
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    IN_CONTEXT(cuDeviceGetMemPool(pool, device));
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool)
{
    IN_CONTEXT(cuDeviceSetMemPool(device, pool));
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties)
{
    IN_CONTEXT(cuMemPoolCreate(pool, (const CUmemPoolProps *)properties));
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    IN_CONTEXT(cuMemPoolDestroy(pool));
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep)
{
    IN_CONTEXT(cuMemPoolTrimTo(pool, keep));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    IN_CONTEXT(cuMemPoolGetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    IN_CONTEXT(cuMemPoolSetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

/* ---- copies ---- */

/* The driver's call for this direction, so that a pointer of the wrong kind is refused. */
static CUresult copy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return cuMemcpyHtoD(address(to), from, size);
    case cudaMemcpyDeviceToHost:
        return cuMemcpyDtoH(to, address(from), size);
    case cudaMemcpyDeviceToDevice:
        return cuMemcpyDtoD(address(to), address(from), size);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
        return cuMemcpy(address(to), address(from), size);
    default:
        return (CUresult)cudaErrorInvalidMemcpyDirection;
    }
}

static CUresult copy_async(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return cuMemcpyHtoDAsync(address(to), from, size, stream);
    case cudaMemcpyDeviceToHost:
        return cuMemcpyDtoHAsync(to, address(from), size, stream);
    case cudaMemcpyDeviceToDevice:
        return cuMemcpyDtoDAsync(address(to), address(from), size, stream);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
        return cuMemcpyAsync(address(to), address(from), size, stream);
    default:
        return (CUresult)cudaErrorInvalidMemcpyDirection;
    }
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
    IN_CONTEXT(copy(to, from, size, kind));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    IN_CONTEXT(copy_async(to, from, size, kind, stream));
}

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t size)
{
    CUcontext target, source;
    CUresult result = primary_context(to_device, &target);
    if (result == CUDA_SUCCESS)
        result = primary_context(from_device, &source);
    if (result != CUDA_SUCCESS)
        return answer(result);
    IN_CONTEXT(cuMemcpyPeer(address(to), target, address(from), source, size));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                                cudaStream_t stream)
{
    CUcontext target, source;
    CUresult result = primary_context(to_device, &target);
    if (result == CUDA_SUCCESS)
        result = primary_context(from_device, &source);
    if (result != CUDA_SUCCESS)
        return answer(result);
    IN_CONTEXT(cuMemcpyPeerAsync(address(to), target, address(from), source, size, stream));
}

static CUDA_MEMCPY2D rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                          enum cudaMemcpyKind kind)
{
    bool from_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost;
    bool to_host = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost;
    CUmemorytype device = kind == cudaMemcpyDefault ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_DEVICE;
    return (CUDA_MEMCPY2D){
        .srcMemoryType = from_host ? CU_MEMORYTYPE_HOST : device,
        .srcHost = from,
        .srcDevice = address(from),
        .srcPitch = from_pitch,
        .dstMemoryType = to_host ? CU_MEMORYTYPE_HOST : device,
        .dstHost = to,
        .dstDevice = address(to),
        .dstPitch = to_pitch,
        .WidthInBytes = width,
        .Height = height,
    };
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind)
{
    CUDA_MEMCPY2D request = rows(to, to_pitch, from, from_pitch, width, height, kind);
    if (kind > cudaMemcpyDefault)
        return answer((CUresult)cudaErrorInvalidMemcpyDirection);
    IN_CONTEXT(cuMemcpy2D(&request));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUDA_MEMCPY2D request = rows(to, to_pitch, from, from_pitch, width, height, kind);
    if (kind > cudaMemcpyDefault)
        return answer((CUresult)cudaErrorInvalidMemcpyDirection);
    IN_CONTEXT(cuMemcpy2DAsync(&request, stream));
}

cudaError_t cudaMemset(void *pointer, int value, size_t size)
{
    IN_CONTEXT(cuMemsetD8(address(pointer), (unsigned char)value, size));
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t size, cudaStream_t stream)
{
    IN_CONTEXT(cuMemsetD8Async(address(pointer), (unsigned char)value, size, stream));
}

/* ---- pointers ---- */

/* Memory of the host that CUDA does not know is no error: it is "unregistered". */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer)
{
    unsigned type = 0;
    CUdeviceptr on_device = 0;
    int device = 0;
    *out = (struct cudaPointerAttributes){cudaMemoryTypeUnregistered, cudaInvalidDeviceId, NULL, (void *)pointer};
    CUresult result = use_context();
    if (result != CUDA_SUCCESS)
        return answer(result);
    if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(pointer)) != CUDA_SUCCESS)
        return cudaSuccess;
    result = cuPointerGetAttribute(&on_device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address(pointer));
    if (result == CUDA_SUCCESS)
        result = cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address(pointer));
    out->type = type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    out->device = device;
    out->devicePointer = (void *)on_device;
    out->hostPointer = type == CU_MEMORYTYPE_HOST ? (void *)pointer : NULL;
    return answer(result);
}

/* ---- memory of other processes ---- */

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer)
{
    IN_CONTEXT(cuIpcGetMemHandle((CUipcMemHandle *)handle, address(pointer)));
}

cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags)
{
    CUipcMemHandle same;
    memcpy(&same, &handle, sizeof same);
    IN_CONTEXT(cuIpcOpenMemHandle((CUdeviceptr *)pointer, same, flags));
}

cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    IN_CONTEXT(cuIpcCloseMemHandle(address(pointer)));
}
