/* Devices: which there are, which of them CUDA_VISIBLE_DEVICES shows, and what they say about themselves. */
#include "standin.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct device devices[MOST_DEVICES];
static int visible;
static bool ready, forked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- CUDA_VISIBLE_DEVICES ---- */

static int index_by_uuid(const char *text)
{
    int found = -1;
    size_t length = strlen(text);
    for (int index = 0; index < settings.devices; index++) {
        char uuid[48];
        write_uuid(uuid, uuid_of_index(index));
        if (strncasecmp(uuid, text, length))
            continue;
        if (found >= 0)
            return -1;
        found = index;
    }
    return found;
}

/* A number, or the beginning of a UUID that fits one device; -1 for anything else. */
static int index_of(const char *text)
{
    if (!strncmp(text, "GPU-", 4))
        return index_by_uuid(text);
    char *end;
    long index = strtol(text, &end, 10);
    return end == text || *end || index < 0 || index >= settings.devices ? -1 : (int)index;
}

static char *trimmed(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    for (char *end = text + strlen(text); end > text && isspace((unsigned char)end[-1]);)
        *--end = 0;
    return text;
}

static void show(int index)
{
    devices[visible] = (struct device){.ordinal = visible, .index = index, .uuid = uuid_of_index(index)};
    visible++;
}

/* The list ends at its first wrong entry; an index named twice hides all devices. */
static void read_visible(const char *list)
{
    char *copy = strdup(list), *rest = copy;
    for (char *item = strsep(&rest, ","); item && visible < MOST_DEVICES; item = strsep(&rest, ",")) {
        int index = index_of(trimmed(item));
        if (index < 0)
            break;
        for (int i = 0; i < visible; i++)
            if (devices[i].index == index) {
                visible = 0;
                free(copy);
                return;
            }
        show(index);
    }
    free(copy);
}

static void find_devices(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    visible = 0;
    if (list)
        read_visible(list);
    else
        for (int index = 0; index < settings.devices; index++)
            show(index);
}

/* ---- beginning ---- */

/* In a forked child there are no workers, and nobody to give up a lock. */
static void lose_workers(void)
{
    forked = true;
    pthread_mutex_init(&big_lock, NULL);
}

CUresult cuInit(unsigned flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (!ready) {
        read_settings();
        find_devices();
        if (visible) {
            pthread_atfork(NULL, NULL, lose_workers);
            watch_faults();
        }
        ready = visible > 0;
    }
    pthread_mutex_unlock(&lock);
    if (forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    return ready ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* As with the driver, a process forked after cuInit has no use of it. */
CUresult initialised(void)
{
    return ready && !forked ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult device_of(CUdevice ordinal, struct device **out)
{
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    if (ordinal < 0 || ordinal >= visible)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = &devices[ordinal];
    return CUDA_SUCCESS;
}

int device_count(void)
{
    return visible;
}

CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = initialised();
    if (result == CUDA_SUCCESS)
        *count = visible;
    return result;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        *out = ordinal;
    return result;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        snprintf(name, (size_t)length, "NVIDIA CPU stand-in");
    return result;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        *uuid = device->uuid;
    return result;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
    return cuDeviceGetUuid(uuid, ordinal);
}

/* Bus 1, 2, ... of domain 0, device 0: as nvml/nvml.c says. */
static int bus_of(const struct device *device)
{
    return device->index + 1;
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        snprintf(text, (size_t)length, "%04X:%02X:00.0", 0, bus_of(device));
    return result;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *text)
{
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    unsigned domain = 0, bus, slot;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < visible; i++)
        if (domain == 0 && slot == 0 && bus_of(&devices[i]) == (int)bus) {
            *out = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        *bytes = settings.memory;
    return result;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS) {
        *major = 9;
        *minor = 0;
    }
    return result;
}

/* ---- attributes: those of a Hopper GPU where they do not promise what is not there ---- */

static const struct {
    CUdevice_attribute attribute;
    int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 64},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 1 << 20},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
};

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!value || attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? bus_of(device) : 0;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == attribute)
            *value = attributes[i].value;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    *properties = (CUdevprop){.maxThreadsPerBlock = 1024, .maxThreadsDim = {1024, 1024, 64},
                              .maxGridSize = {2147483647, 65535, 65535}, .sharedMemPerBlock = 49152,
                              .totalConstantMemory = 65536, .SIMDWidth = 32, .memPitch = 2147483647,
                              .regsPerBlock = 65536, .clockRate = 1000000, .textureAlign = 512};
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice ordinal)
{
    (void)type;
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        *supported = 0;
    return result;
}
