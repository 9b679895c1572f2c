/* Devices: which one a thread uses, what it is like, its peers. */
#include "cudart.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

enum { MOST_DEVICES = 64 };

static _Thread_local int device_of_thread;

static CUresult initialise(void)
{
    return cuInit(0);
}

/* The runtime retains a primary context once, and until the process ends. */
CUresult primary_context(int device, CUcontext *out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static CUcontext retained[MOST_DEVICES];
    CUdevice handle;
    CUresult result = initialise();
    if (result == CUDA_SUCCESS)
        result = cuDeviceGet(&handle, device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    if (!retained[device])
        result = cuDevicePrimaryCtxRetain(&retained[device], handle);
    *out = retained[device];
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult enter(int device)
{
    CUcontext context;
    CUresult result = primary_context(device, &context);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

CUresult use_context(void)
{
    CUcontext context = NULL;
    CUresult result = initialise();
    if (result == CUDA_SUCCESS)
        result = cuCtxGetCurrent(&context);
    return result == CUDA_SUCCESS && !context ? enter(device_of_thread) : result;
}

cudaError_t cudaSetDevice(int device)
{
    CUresult result = enter(device);
    if (result == CUDA_SUCCESS)
        device_of_thread = device;
    return answer(result);
}

/* The device of the current context, whoever made it so. */
cudaError_t cudaGetDevice(int *device)
{
    CUcontext context = NULL;
    CUresult result = initialise();
    if (result == CUDA_SUCCESS)
        result = cuCtxGetCurrent(&context);
    *device = device_of_thread;
    if (result == CUDA_SUCCESS && context)
        result = cuCtxGetDevice(device);
    return answer(result);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    CUresult result = initialise();
    return answer(result == CUDA_SUCCESS ? cuDeviceGetCount(count) : result);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    return answer(cuDriverGetVersion(version));
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    IN_CONTEXT(cuCtxSynchronize());
}

cudaError_t cudaProfilerStart(void)
{
    return answer(use_context());
}

cudaError_t cudaProfilerStop(void)
{
    return answer(use_context());
}

/* ---- what a device is like ---- */

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    CUresult result = initialise();
    return answer(result == CUDA_SUCCESS ? cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device) : result);
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id)
{
    CUresult result = initialise();
    return answer(result == CUDA_SUCCESS ? cuDeviceGetByPCIBusId(device, id) : result);
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device)
{
    CUresult result = initialise();
    return answer(result == CUDA_SUCCESS ? cuDeviceGetPCIBusId(id, size, device) : result);
}

#define FIELD(name, attribute)                                                                                         \
    {                                                                                                                  \
        offsetof(struct cudaDeviceProp, name), sizeof(((struct cudaDeviceProp *)0)->name), CU_DEVICE_ATTRIBUTE_##attribute \
    }

/* Fields that are an attribute of the device; those of textures and surfaces, which are not there, stay 0. */
static const struct {
    size_t offset, size;
    CUdevice_attribute attribute;
} fields[] = {
    FIELD(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK),
    FIELD(regsPerBlock, MAX_REGISTERS_PER_BLOCK),
    FIELD(warpSize, WARP_SIZE),
    FIELD(memPitch, MAX_PITCH),
    FIELD(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK),
    FIELD(maxThreadsDim[0], MAX_BLOCK_DIM_X),
    FIELD(maxThreadsDim[1], MAX_BLOCK_DIM_Y),
    FIELD(maxThreadsDim[2], MAX_BLOCK_DIM_Z),
    FIELD(maxGridSize[0], MAX_GRID_DIM_X),
    FIELD(maxGridSize[1], MAX_GRID_DIM_Y),
    FIELD(maxGridSize[2], MAX_GRID_DIM_Z),
    FIELD(clockRate, CLOCK_RATE),
    FIELD(totalConstMem, TOTAL_CONSTANT_MEMORY),
    FIELD(major, COMPUTE_CAPABILITY_MAJOR),
    FIELD(minor, COMPUTE_CAPABILITY_MINOR),
    FIELD(textureAlignment, TEXTURE_ALIGNMENT),
    FIELD(texturePitchAlignment, TEXTURE_PITCH_ALIGNMENT),
    FIELD(multiProcessorCount, MULTIPROCESSOR_COUNT),
    FIELD(integrated, INTEGRATED),
    FIELD(canMapHostMemory, CAN_MAP_HOST_MEMORY),
    FIELD(computeMode, COMPUTE_MODE),
    FIELD(concurrentKernels, CONCURRENT_KERNELS),
    FIELD(ECCEnabled, ECC_ENABLED),
    FIELD(pciBusID, PCI_BUS_ID),
    FIELD(pciDeviceID, PCI_DEVICE_ID),
    FIELD(pciDomainID, PCI_DOMAIN_ID),
    FIELD(asyncEngineCount, ASYNC_ENGINE_COUNT),
    FIELD(unifiedAddressing, UNIFIED_ADDRESSING),
    FIELD(memoryClockRate, MEMORY_CLOCK_RATE),
    FIELD(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH),
    FIELD(l2CacheSize, L2_CACHE_SIZE),
    FIELD(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR),
    FIELD(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED),
    FIELD(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    FIELD(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR),
    FIELD(managedMemory, MANAGED_MEMORY),
    FIELD(isMultiGpuBoard, MULTI_GPU_BOARD),
    FIELD(multiGpuBoardGroupID, MULTI_GPU_BOARD_GROUP_ID),
    FIELD(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS),
    FIELD(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS),
    FIELD(computePreemptionSupported, COMPUTE_PREEMPTION_SUPPORTED),
    FIELD(canUseHostPointerForRegisteredMem, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
    FIELD(cooperativeLaunch, COOPERATIVE_LAUNCH),
    FIELD(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    FIELD(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR),
    FIELD(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK),
    FIELD(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED),
};

static CUresult read_fields(struct cudaDeviceProp *properties, CUdevice device)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        int value;
        CUresult result = cuDeviceGetAttribute(&value, fields[i].attribute, device);
        if (result != CUDA_SUCCESS)
            return result;
        size_t wide = (size_t)value;                 /* the machine is little-endian: as well for an int */
        memcpy((char *)properties + fields[i].offset, &wide, fields[i].size);
    }
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal)
{
    CUdevice device;
    memset(properties, 0, sizeof *properties);
    CUresult result = initialise();
    if (result == CUDA_SUCCESS)
        result = cuDeviceGet(&device, ordinal);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetName(properties->name, sizeof properties->name, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetUuid((CUuuid *)&properties->uuid, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceTotalMem(&properties->totalGlobalMem, device);
    return answer(result == CUDA_SUCCESS ? read_fields(properties, device) : result);
}

/* ---- peers and limits ---- */

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    CUresult result = initialise();
    return answer(result == CUDA_SUCCESS ? cuDeviceCanAccessPeer(can, device, peer) : result);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    CUcontext context;
    CUresult result = primary_context(peer, &context);
    if (result != CUDA_SUCCESS)
        return answer(result);
    IN_CONTEXT(cuCtxEnablePeerAccess(context, flags));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    CUcontext context;
    CUresult result = primary_context(peer, &context);
    if (result != CUDA_SUCCESS)
        return answer(result);
    IN_CONTEXT(cuCtxDisablePeerAccess(context));
}

cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit)
{
    IN_CONTEXT(cuCtxGetLimit(value, (CUlimit)limit));
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value)
{
    IN_CONTEXT(cuCtxSetLimit((CUlimit)limit, value));
}
