/* Waits for, and writes of, a number in memory, in stream order. */
#include "standin.h"

#include <unistd.h>

enum { LOOK_EVERY_US = 50 };

struct value_task {
    struct task task;
    struct place place;
    uint64_t value;
    unsigned flags;
    bool wide;
};

static uint64_t load(const struct value_task *value, const char *bytes)
{
    return value->wide ? __atomic_load_n((const uint64_t *)bytes, __ATOMIC_ACQUIRE)
                       : __atomic_load_n((const uint32_t *)bytes, __ATOMIC_ACQUIRE);
}

/* CU_STREAM_WAIT_VALUE_GEQ goes round: the difference counts as a signed number. */
static bool is_reached(const struct value_task *value, uint64_t now)
{
    switch (value->flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return value->wide ? (int64_t)(now - value->value) >= 0 : (int32_t)(uint32_t)(now - value->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == value->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return now & value->value;
    default:
        return (value->wide ? ~(now | value->value) : (uint32_t)~(now | value->value)) != 0;
    }
}

static CUresult run_wait(struct task *task)
{
    struct value_task *value = (struct value_task *)task;
    for (;;) {
        const char *bytes = bytes_of(&value->place);
        if (!bytes)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (is_reached(value, load(value, bytes)))
            return CUDA_SUCCESS;
        usleep(LOOK_EVERY_US);
    }
}

static CUresult run_write(struct task *task)
{
    struct value_task *value = (struct value_task *)task;
    char *bytes = bytes_of(&value->place);
    if (!bytes)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (value->wide)
        __atomic_store_n((uint64_t *)bytes, value->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)bytes, (uint32_t)value->value, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static CUresult add_value(CUstream stream, CUdeviceptr address, uint64_t number, unsigned flags, bool wide, bool waits)
{
    CUcontext context;
    struct place place;
    size_t size = wide ? 8 : 4;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        result = address % size ? CUDA_ERROR_INVALID_VALUE : place_of(address, size, &place);
    if (result == CUDA_SUCCESS && !place.id)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    struct value_task *task =
        make_task(sizeof *task, waits ? "a wait for a value" : "a write of a value",
                  CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, waits ? run_wait : run_write, NULL);
    task->task.endless = waits;
    task->place = place;
    task->value = number;
    task->flags = flags;
    task->wide = wide;
    return enqueue(stream, &task->task, false);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    return add_value(stream, address, value, flags, false, true);
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    return add_value(stream, address, value, flags, true, true);
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    return add_value(stream, address, value, flags, false, false);
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    return add_value(stream, address, value, flags, true, false);
}
