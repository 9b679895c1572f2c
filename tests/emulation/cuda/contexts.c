/* Contexts: the primary one of each device and others, the stack of each thread, and errors that stay. */
#include "standin.h"

#include <string.h>

enum { DEEPEST = 64 };

static _Thread_local CUcontext stack[DEEPEST];
static _Thread_local int depth;

static uint64_t next_id = 1;

/* ---- the current context ---- */

CUresult check_context(CUcontext context)
{
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return is_object(context, CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult current_context_or_null(CUcontext *out)
{
    *out = NULL;
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    if (in_host_function)
        return CUDA_ERROR_NOT_PERMITTED;
    if (depth)
        *out = stack[depth - 1];
    return CUDA_SUCCESS;
}

CUresult current_context(CUcontext *out)
{
    CUresult result = current_context_or_null(out);
    if (result == CUDA_SUCCESS)
        result = check_context(*out);
    return result == CUDA_SUCCESS ? (*out)->sticky : result;
}

/* As on a device: all that follows in this context fails alike, and what is queued is not run. */
void break_context(CUcontext context, CUresult error, const char *why)
{
    const char *name = "?";
    cuGetErrorName(error, &name);
    complain("device %d: %s (%s); nothing works in this context from now on", context->device->ordinal, name, why);
    if (context->sticky == CUDA_SUCCESS)
        context->sticky = error;
}

CUresult standin_break(int ordinal, CUresult error)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&big_lock);
    if (device->primary_users)
        break_context(device->primary, error, "as asked for");
    else
        result = CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_unlock(&big_lock);
    return result;
}

/* ---- life, with big_lock held ---- */

static void open_context(CUcontext context, struct device *device, unsigned flags)
{
    context->magic = CONTEXT;
    context->device = device;
    context->flags = flags;
    context->id = next_id++;
    context->sticky = CUDA_SUCCESS;
    context->peers = 0;
    context->captures = 0;
    context->streams = NULL;
    context->legacy = make_stream(context, LEGACY, 0, 0);
    memset(context->limits, 0, sizeof context->limits);
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
}

static void close_context(CUcontext context)
{
    wait_context(context);
    context->magic = 0;
    while (context->streams)
        abandon_stream(context->streams);
    abandon_stream(context->legacy);
    release_context_memory(context);
}

static CUresult new_context(CUcontext *out, unsigned flags, CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (depth == DEEPEST)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&big_lock);
    *out = make_object(CONTEXT, sizeof **out);
    open_context(*out, device, flags);
    stack[depth++] = *out;
    pthread_mutex_unlock(&big_lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    return new_context(context, flags, device);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    return new_context(context, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned flags, CUdevice device)
{
    return affinity && count ? unsupported("cuCtxCreate_v3 with affinity") : new_context(context, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice device)
{
    return parameters ? unsupported("cuCtxCreate_v4 with parameters") : new_context(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&big_lock);
    result = check_context(context);
    if (result == CUDA_SUCCESS && context->primary)
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS) {
        close_context(context);
        if (depth && stack[depth - 1] == context)
            depth--;
        retire_object(context);
    }
    pthread_mutex_unlock(&big_lock);
    return result;
}

/* ---- primary contexts ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS || !context)
        return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
    pthread_mutex_lock(&big_lock);
    if (!device->primary) {
        device->primary = make_object(CONTEXT, sizeof **context);
        device->primary->primary = true;
    }
    if (!device->primary_users++)
        open_context(device->primary, device, device->primary_flags);
    *context = device->primary;
    pthread_mutex_unlock(&big_lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&big_lock);
    if (!device->primary_users)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (!--device->primary_users)
        close_context(device->primary);
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&big_lock);
    if (device->primary_users) {
        close_context(device->primary);
        open_context(device->primary, device, device->primary_flags);
    }
    pthread_mutex_unlock(&big_lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    device->primary_flags = flags;
    if (device->primary_users)
        device->primary->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active)
{
    struct device *device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (flags)
        *flags = device->primary_flags;
    if (active)
        *active = device->primary_users > 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return cuDevicePrimaryCtxReset_v2(device);
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

/* ---- the thread's stack ---- */

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult result = initialised();
    if (result == CUDA_SUCCESS)
        result = check_context(context);
    if (result != CUDA_SUCCESS)
        return result;
    if (depth == DEEPEST)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = initialised();
    if (result != CUDA_SUCCESS)
        return result;
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

/* Replaces the top of the stack; NULL takes it away. */
CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult result = initialised();
    if (result == CUDA_SUCCESS && context)
        result = check_context(context);
    if (result != CUDA_SUCCESS)
        return result;
    if (depth)
        depth--;
    if (context)
        stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = initialised();
    if (result == CUDA_SUCCESS && context)
        *context = depth ? stack[depth - 1] : NULL;
    return result;
}

/* ---- questions, limits ---- */

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        *device = context->device->ordinal;
    return result;
}

CUresult cuCtxGetFlags(unsigned *flags)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        *flags = context->flags;
    return result;
}

CUresult cuCtxSetFlags(unsigned flags)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        context->flags = flags;
    return result;
}

static CUresult this_or_current(CUcontext context, CUcontext *out)
{
    if (!context)
        return current_context(out);
    *out = context;
    CUresult result = initialised();
    return result == CUDA_SUCCESS ? check_context(context) : result;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    CUresult result = this_or_current(context, &context);
    if (result == CUDA_SUCCESS)
        *id = context->id;
    return result;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    CUresult result = this_or_current(context, &context);
    if (result == CUDA_SUCCESS)
        *version = CUDA_VERSION;
    return result;
}

CUresult cuCtxSynchronize(void)
{
    CUcontext context;
    pthread_mutex_lock(&big_lock);
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        result = refuse_while_capturing(context);
    if (result == CUDA_SUCCESS)
        result = wait_context(context);
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if ((unsigned)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if ((unsigned)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        *config = CU_FUNC_CACHE_PREFER_NONE;
    return result;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    (void)config;
    CUcontext context;
    return current_context(&context);
}

/* ---- peers ---- */

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    struct device *one, *other;
    CUresult result = device_of(device, &one);
    if (result == CUDA_SUCCESS)
        result = device_of(peer, &other);
    if (result == CUDA_SUCCESS)
        *can = one != other;
    return result;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer)
{
    int can = 0;
    CUresult result = cuDeviceCanAccessPeer(&can, device, peer);
    if (result != CUDA_SUCCESS)
        return result;
    if (!can)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : 1;
    return CUDA_SUCCESS;
}

static CUresult peer_bit(CUcontext peer, CUcontext *context, uint64_t *bit)
{
    CUresult result = current_context(context);
    if (result == CUDA_SUCCESS)
        result = check_context(peer);
    if (result != CUDA_SUCCESS)
        return result;
    if (peer->device == (*context)->device)
        return CUDA_ERROR_INVALID_DEVICE;
    *bit = (uint64_t)1 << peer->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CUcontext context;
    uint64_t bit;
    CUresult result = peer_bit(peer, &context, &bit);
    if (result != CUDA_SUCCESS || flags)
        return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
    if (context->peers & bit)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= bit;
    return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    CUcontext context;
    uint64_t bit;
    CUresult result = peer_bit(peer, &context, &bit);
    if (result != CUDA_SUCCESS)
        return result;
    if (!(context->peers & bit))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~bit;
    return CUDA_SUCCESS;
}
