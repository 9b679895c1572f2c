/* Copies and fills, with the driver's rules about who waits for whom (CUDA driver API, "API synchronization
 * behavior"):
 *
 *     from        to          Async                                   without Async
 *     pageable    device      staged at the call, then asynchronous   the stream is waited for first, then the same
 *     device      pageable    returns when done                       returns when done
 *     pinned      device      asynchronous                            returns when done
 *     device      pinned      asynchronous                            returns when done
 *     device      device      asynchronous                            asynchronous
 *     host        host        returns when done                       returns when done
 *
 * A fill is asynchronous unless it is one without Async of pinned memory.
 */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

struct shape {
    size_t width, height;          /* bytes, rows */
    size_t from_pitch, to_pitch;
};

struct copy_task {
    struct task task;
    struct place from, to;
    struct shape shape;
    char *staged;
};

static size_t extent(size_t width, size_t height, size_t pitch)
{
    return height ? (height - 1) * pitch + width : 0;
}

static void copy_rows(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height)
{
    if (height == 1 || (to_pitch == width && from_pitch == width)) {
        memmove(to, from, width * height);
        return;
    }
    for (size_t row = 0; row < height; row++)
        memmove(to + row * to_pitch, from + row * from_pitch, width);
}

static CUresult run_copy(struct task *task)
{
    struct copy_task *copy = (struct copy_task *)task;
    const char *from = copy->staged ? copy->staged : bytes_of(&copy->from);
    char *to = bytes_of(&copy->to);
    if (!from || !to)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    copy_rows(to, copy->shape.to_pitch, from, copy->shape.from_pitch, copy->shape.width, copy->shape.height);
    return CUDA_SUCCESS;
}

static void drop_copy(struct task *task)
{
    free(((struct copy_task *)task)->staged);
}

static void stage(struct copy_task *copy)
{
    struct shape *shape = &copy->shape;
    copy->staged = malloc(shape->width * shape->height);
    copy_rows(copy->staged, shape->width, (const char *)copy->from.address, shape->from_pitch, shape->width,
              shape->height);
    shape->from_pitch = shape->width;
}

static bool is_pageable(const struct place *place)
{
    return place->id == 0;
}

/* Whether the call returns only when the bytes are there. */
static bool host_waits(const struct place *from, const struct place *to, bool async)
{
    if (!is_on_device(from) && !is_on_device(to))
        return true;
    if (is_on_device(from) && is_pageable(to))
        return true;
    if (from->sync_memops || to->sync_memops)
        return true;
    if (is_on_device(from) && is_on_device(to))
        return false;
    return !async && !is_pageable(from);
}

static CUresult copy_places(const struct place *from, const struct place *to, struct shape shape, CUstream stream,
                            bool async)
{
    bool stages = is_pageable(from) && is_on_device(to) && !is_capturing(stream);
    if (stages && !async) {
        CUresult result = cuStreamSynchronize(stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    struct copy_task *copy = make_task(sizeof *copy, "a copy", CU_GRAPH_NODE_TYPE_MEMCPY, run_copy, drop_copy);
    copy->from = *from;
    copy->to = *to;
    copy->shape = shape;
    if (stages)
        stage(copy);
    return enqueue(stream, &copy->task, host_waits(from, to, async));
}

/* What the name of the call says about an end of the copy. */
enum side { HOST, DEVICE, ANY };

static CUresult find_end(uintptr_t address, size_t size, enum side side, struct place *out)
{
    CUresult result = place_of(address, size, out);
    if (result != CUDA_SUCCESS)
        return result;
    if ((side == DEVICE && is_pageable(out)) || (side == HOST && is_on_device(out)))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult copy(uintptr_t to, enum side to_side, uintptr_t from, enum side from_side, struct shape shape,
                     CUstream stream, bool async)
{
    CUcontext context;
    struct place source, target;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS || !shape.width || !shape.height)
        return result;
    if (!to || !from)
        return CUDA_ERROR_INVALID_VALUE;
    result = find_end(from, extent(shape.width, shape.height, shape.from_pitch), from_side, &source);
    if (result == CUDA_SUCCESS)
        result = find_end(to, extent(shape.width, shape.height, shape.to_pitch), to_side, &target);
    return result == CUDA_SUCCESS ? copy_places(&source, &target, shape, stream, async) : result;
}

static struct shape flat(size_t size)
{
    return (struct shape){.width = size, .height = 1, .from_pitch = size, .to_pitch = size};
}

/* ---- one dimension ---- */

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy(to, ANY, from, ANY, flat(size), NULL, false);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy(to, ANY, from, ANY, flat(size), stream, true);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    return copy(to, DEVICE, (uintptr_t)from, HOST, flat(size), NULL, false);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    return copy(to, DEVICE, (uintptr_t)from, HOST, flat(size), stream, true);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    return copy((uintptr_t)to, HOST, from, DEVICE, flat(size), NULL, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy((uintptr_t)to, HOST, from, DEVICE, flat(size), stream, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy(to, DEVICE, from, DEVICE, flat(size), NULL, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy(to, DEVICE, from, DEVICE, flat(size), stream, true);
}

static CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size,
                          CUstream stream, bool async)
{
    CUresult result = check_context(to_context);
    if (result == CUDA_SUCCESS)
        result = check_context(from_context);
    return result == CUDA_SUCCESS ? copy(to, DEVICE, from, DEVICE, flat(size), stream, async) : result;
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size)
{
    return copy_peer(to, to_context, from, from_context, size, NULL, false);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size,
                           CUstream stream)
{
    return copy_peer(to, to_context, from, from_context, size, stream, true);
}

/* ---- two dimensions ---- */

static CUresult end_2d(CUmemorytype type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t pitch,
                       uintptr_t *address, enum side *side)
{
    switch (type) {
    case CU_MEMORYTYPE_HOST:
        *address = (uintptr_t)host;
        *side = HOST;
        break;
    case CU_MEMORYTYPE_DEVICE:
        *address = device;
        *side = DEVICE;
        break;
    case CU_MEMORYTYPE_UNIFIED:
        *address = device;
        *side = ANY;
        break;
    default:
        return unsupported("a copy from or to a CUarray");
    }
    *address += y * pitch + x;
    return CUDA_SUCCESS;
}

static CUresult copy_2d(const CUDA_MEMCPY2D *request, CUstream stream, bool async)
{
    if (!request)
        return CUDA_ERROR_INVALID_VALUE;
    uintptr_t from = 0, to = 0;
    enum side from_side = ANY, to_side = ANY;
    size_t from_pitch = request->srcPitch ? request->srcPitch : request->WidthInBytes + request->srcXInBytes;
    size_t to_pitch = request->dstPitch ? request->dstPitch : request->WidthInBytes + request->dstXInBytes;
    if (request->Height > 1 && (from_pitch < request->WidthInBytes || to_pitch < request->WidthInBytes))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = end_2d(request->srcMemoryType, request->srcHost, request->srcDevice, request->srcXInBytes,
                             request->srcY, from_pitch, &from, &from_side);
    if (result == CUDA_SUCCESS)
        result = end_2d(request->dstMemoryType, request->dstHost, request->dstDevice, request->dstXInBytes,
                        request->dstY, to_pitch, &to, &to_side);
    if (result != CUDA_SUCCESS)
        return result;
    struct shape shape = {request->WidthInBytes, request->Height, from_pitch, to_pitch};
    return copy(to, to_side, from, from_side, shape, stream, async);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *request)
{
    return copy_2d(request, NULL, false);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *request)
{
    return copy_2d(request, NULL, false);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *request, CUstream stream)
{
    return copy_2d(request, stream, true);
}

/* ---- fills ---- */

struct fill_task {
    struct task task;
    struct place to;
    size_t pitch, width, height;   /* bytes, elements, rows */
    unsigned value, element;
};

static CUresult run_fill(struct task *task)
{
    struct fill_task *fill = (struct fill_task *)task;
    char *to = bytes_of(&fill->to);
    if (!to)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (size_t row = 0; row < fill->height; row++) {
        char *start = to + row * fill->pitch;
        if (fill->element == 1)
            memset(start, (int)fill->value, fill->width);
        else
            for (size_t i = 0; i < fill->width; i++)
                memcpy(start + i * fill->element, &fill->value, fill->element);
    }
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width, size_t height,
                     CUstream stream, bool async)
{
    CUcontext context;
    struct place target;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS || !width || !height)
        return result;
    if (to % element || (height > 1 && (pitch % element || pitch < width * element)))
        return CUDA_ERROR_INVALID_VALUE;
    result = find_end(to, extent(width * element, height, pitch), DEVICE, &target);
    if (result != CUDA_SUCCESS)
        return result;
    struct fill_task *task = make_task(sizeof *task, "a fill", CU_GRAPH_NODE_TYPE_MEMSET, run_fill, NULL);
    task->to = target;
    task->pitch = pitch;
    task->width = width;
    task->height = height;
    task->value = value;
    task->element = element;
    return enqueue(stream, &task->task, !async && !is_on_device(&target));
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
    return fill(to, count, value, 1, count, 1, NULL, false);
}

CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count)
{
    return fill(to, 2 * count, value, 2, count, 1, NULL, false);
}

CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count)
{
    return fill(to, 4 * count, value, 4, count, 1, NULL, false);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    return fill(to, count, value, 1, count, 1, stream, true);
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream)
{
    return fill(to, 2 * count, value, 2, count, 1, stream, true);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
    return fill(to, 4 * count, value, 4, count, 1, stream, true);
}

CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height)
{
    return fill(to, pitch, value, 1, width, height, NULL, false);
}

CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height)
{
    return fill(to, pitch, value, 2, width, height, NULL, false);
}

CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height)
{
    return fill(to, pitch, value, 4, width, height, NULL, false);
}

CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                           CUstream stream)
{
    return fill(to, pitch, value, 1, width, height, stream, true);
}

CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                            CUstream stream)
{
    return fill(to, pitch, value, 2, width, height, stream, true);
}

CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream)
{
    return fill(to, pitch, value, 4, width, height, stream, true);
}
