/* Device memory of other processes of this host, by the handles of cuIpcGetMemHandle. */
#include "standin.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct ticket {
    uint32_t mark;
    pid_t process;
    int file;
    int index;                     /* of the device on the machine */
    uint64_t id, offset, size, mapped;
};

enum { MARK = 0x49504331 };

_Static_assert(sizeof(struct ticket) <= sizeof(CUipcMemHandle), "it has to fit");

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    CUcontext context;
    struct allocation found;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!handle || !find_memory(address, &found) || found.kind != DEVICE_MEMORY || found.pool)
        return CUDA_ERROR_INVALID_VALUE;
    struct ticket ticket = {.mark = MARK, .process = getpid(), .file = heap_file(found.device),
                            .index = found.device->index, .id = found.id,
                            .offset = heap_offset(found.device, found.address), .size = found.size,
                            .mapped = found.mapped};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

static CUresult map_ticket(const struct ticket *ticket, CUcontext context, CUdeviceptr *address)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)ticket->process, ticket->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    void *base = mmap(NULL, ticket->mapped, PROT_NONE, MAP_SHARED, file, (off_t)ticket->offset);
    void *view = mmap(NULL, ticket->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)ticket->offset);
    close(file);
    if (base == MAP_FAILED || view == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation made = {.id = new_memory_id(), .kind = IMPORTED_MEMORY, .state = LIVE, .address = (uintptr_t)base,
                              .size = ticket->size, .mapped = ticket->mapped, .view = view, .device = context->device,
                              .context = context};
    add_memory(&made);
    *address = made.address;
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    CUcontext context;
    struct ticket ticket;
    memcpy(&ticket, &handle, sizeof ticket);
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (ticket.mark != MARK)
        return CUDA_ERROR_INVALID_HANDLE;
    if (ticket.process == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    return map_ticket(&ticket, context, address);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    return cuIpcOpenMemHandle_v2(address, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    CUcontext context;
    pthread_mutex_lock(&big_lock);
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS)
        result = wait_context(context);
    pthread_mutex_unlock(&big_lock);
    return result == CUDA_SUCCESS ? release(address, IMPORTED_MEMORY) : result;
}
