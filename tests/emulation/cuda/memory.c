/* Memory: what lies at which address.
 *
 * The memory of a device is a file in memory, mapped twice: at the device's addresses, where the host may not touch
 * it, and at others ("view") where the stand-in does.  Addresses are not used again soon, so that a pointer that is
 * used after its memory was freed finds nothing there.
 */
#include "standin.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ADDRESSES_PER_BYTE = 16 };   /* how many times larger the addresses of a device are than its memory */

struct heap {
    int file;
    uintptr_t base;
    char *view;
    size_t span, used;
    size_t next;                    /* where to look for free addresses first */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation **table;   /* by address */
static size_t table_count, table_room;
static uint64_t next_id = 1;
static struct heap *heaps[MOST_DEVICES];

/* ---- the table, with the lock held ---- */

/* The index of the first allocation that begins after the address. */
static size_t index_after(uintptr_t address)
{
    size_t low = 0, high = table_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle]->address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct allocation *holder_of(uintptr_t address)
{
    size_t index = index_after(address);
    if (!index)
        return NULL;
    struct allocation *found = table[index - 1];
    return address < found->address + found->size ? found : NULL;
}

static void insert(const struct allocation *allocation)
{
    if (table_count == table_room) {
        table_room = table_room ? 2 * table_room : 64;
        table = realloc(table, sizeof *table * table_room);
    }
    size_t index = index_after(allocation->address);
    memmove(table + index + 1, table + index, sizeof *table * (table_count - index));
    table[index] = malloc(sizeof **table);
    *table[index] = *allocation;
    table_count++;
}

static void take_out(struct allocation *allocation)
{
    size_t index = index_after(allocation->address) - 1;
    memmove(table + index, table + index + 1, sizeof *table * (table_count - index - 1));
    table_count--;
    free(allocation);
}

/* ---- the table, for others ---- */

uint64_t new_memory_id(void)
{
    pthread_mutex_lock(&lock);
    uint64_t id = next_id++;
    pthread_mutex_unlock(&lock);
    return id;
}

bool find_memory(uintptr_t address, struct allocation *out)
{
    pthread_mutex_lock(&lock);
    struct allocation *found = holder_of(address);
    if (found)
        *out = *found;
    pthread_mutex_unlock(&lock);
    return found;
}

void add_memory(const struct allocation *allocation)
{
    pthread_mutex_lock(&lock);
    insert(allocation);
    pthread_mutex_unlock(&lock);
}

bool remove_memory(uintptr_t address, struct allocation *out)
{
    pthread_mutex_lock(&lock);
    struct allocation *found = holder_of(address);
    bool exact = found && found->address == address;
    if (exact) {
        *out = *found;
        take_out(found);
    }
    pthread_mutex_unlock(&lock);
    return exact;
}

bool change_memory(uintptr_t address, enum memory_state state)
{
    pthread_mutex_lock(&lock);
    struct allocation *found = holder_of(address);
    bool exact = found && found->address == address;
    if (exact)
        found->state = state;
    pthread_mutex_unlock(&lock);
    return exact;
}

bool set_sync_memops(uintptr_t address, bool on)
{
    pthread_mutex_lock(&lock);
    struct allocation *found = holder_of(address);
    if (found)
        found->sync_memops = on;
    pthread_mutex_unlock(&lock);
    return found;
}

bool own_by_capture(uintptr_t address, uint64_t capture)
{
    pthread_mutex_lock(&lock);
    struct allocation *found = holder_of(address);
    if (found)
        found->capture = capture;
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- places ---- */

bool is_on_device(const struct place *place)
{
    return place->id && place->kind != PINNED_MEMORY && place->kind != REGISTERED_MEMORY;
}

static bool in_heap(uintptr_t address)
{
    for (int i = 0; i < device_count(); i++)
        if (heaps[i] && address >= heaps[i]->base && address < heaps[i]->base + heaps[i]->span)
            return true;
    return false;
}

CUresult place_of(uintptr_t address, size_t size, struct place *out)
{
    struct allocation found;
    *out = (struct place){.address = address, .size = size, .device = -1};
    if (!find_memory(address, &found))
        return in_heap(address) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (size > found.address + found.size - address || found.state == LEAVING)
        return CUDA_ERROR_INVALID_VALUE;
    out->id = found.id;
    out->kind = found.kind;
    out->device = found.device ? found.device->ordinal : -1;
    out->sync_memops = found.sync_memops;
    return CUDA_SUCCESS;
}

char *bytes_of(const struct place *place)
{
    struct allocation found;
    if (!place->id)
        return (char *)place->address;
    if (!find_memory(place->address, &found) || found.id != place->id) {
        complain("memory at %#lx was freed before an operation on it ran", (unsigned long)place->address);
        return NULL;
    }
    if (found.state == PENDING) {
        complain("memory at %#lx is used by an operation that does not wait for its cuMemAllocAsync",
                 (unsigned long)place->address);
        return NULL;
    }
    return found.view + (place->address - found.address);
}

void *standin_host_view(CUdeviceptr pointer, size_t bytes)
{
    struct allocation found;
    if (!find_memory((uintptr_t)pointer, &found))
        return NULL;
    if (found.kind != DEVICE_MEMORY && found.kind != IMPORTED_MEMORY && found.kind != MODULE_MEMORY)
        return NULL;
    size_t offset = (uintptr_t)pointer - found.address;
    return bytes <= found.size - offset ? found.view + offset : NULL;
}

/* ---- the memory of a device ---- */

static struct heap *make_heap(void)
{
    struct heap *heap = calloc(1, sizeof *heap);
    heap->span = settings.memory * ADDRESSES_PER_BYTE;
    heap->file = memfd_create("standin-device", MFD_CLOEXEC);
    if (heap->file < 0 || ftruncate(heap->file, (off_t)heap->span)) {
        complain("no memory for a device");
        abort();
    }
    void *base = mmap(NULL, heap->span, PROT_NONE, MAP_SHARED | MAP_NORESERVE, heap->file, 0);
    void *view = mmap(NULL, heap->span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, heap->file, 0);
    if (base == MAP_FAILED || view == MAP_FAILED) {
        complain("no addresses for a device");
        abort();
    }
    madvise(view, heap->span, MADV_DONTDUMP);
    heap->base = (uintptr_t)base;
    heap->view = view;
    return heap;
}

static struct heap *heap_of(struct device *device)
{
    if (!device->heap) {
        device->heap = make_heap();
        heaps[device->ordinal] = device->heap;
    }
    return device->heap;
}

static size_t whole_pages(size_t size)
{
    return (size + PAGE - 1) / PAGE * PAGE;
}

/* Free addresses from `from` on, with a free page behind; SIZE_MAX where there are none. */
static size_t free_from(const struct heap *heap, size_t from, size_t size)
{
    size_t index = index_after(heap->base + from);
    if (index && table[index - 1]->address + table[index - 1]->mapped > heap->base + from)
        from = table[index - 1]->address + table[index - 1]->mapped + PAGE - heap->base;
    for (; from + size + PAGE <= heap->span; index++) {
        if (index == table_count || table[index]->address >= heap->base + from + size + PAGE)
            return from;
        from = table[index]->address + table[index]->mapped + PAGE - heap->base;
    }
    return SIZE_MAX;
}

static CUresult take_from_heap(struct heap *heap, struct allocation *allocation)
{
    if (allocation->mapped > settings.memory - heap->used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t offset = free_from(heap, heap->next, allocation->mapped);
    if (offset == SIZE_MAX)
        offset = free_from(heap, 0, allocation->mapped);
    if (offset == SIZE_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    heap->next = offset + allocation->mapped + PAGE;
    heap->used += allocation->mapped;
    allocation->address = heap->base + offset;
    allocation->view = heap->view + offset;
    return CUDA_SUCCESS;
}

static CUresult take_from_host(struct allocation *allocation)
{
    void *address = mmap(NULL, allocation->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation->address = (uintptr_t)address;
    allocation->view = address;
    return CUDA_SUCCESS;
}

static void open_allocation(const struct allocation *allocation, bool open);
static bool is_open_to_kernels(const struct allocation *allocation);

CUresult allocate(CUcontext context, size_t size, enum memory_kind kind, enum memory_state state, CUmemoryPool pool,
                  unsigned flags, struct allocation *out)
{
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > (size_t)1 << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (struct allocation){.kind = kind, .state = state, .size = size, .mapped = whole_pages(size),
                               .device = context ? context->device : NULL, .context = context, .pool = pool,
                               .flags = flags};
    if (pool && pool->device)
        out->device = pool->device;
    pthread_mutex_lock(&lock);
    CUresult result = kind == DEVICE_MEMORY ? take_from_heap(heap_of(out->device), out) : take_from_host(out);
    if (result == CUDA_SUCCESS) {
        out->id = next_id++;
        insert(out);
        if (is_open_to_kernels(out))
            open_allocation(out, true);
    }
    pthread_mutex_unlock(&lock);
    if (result == CUDA_SUCCESS && state == LIVE)
        memset(out->view, POISON, size);
    return result;
}

/* With the lock held.  The pages go back to the system, and read as zeros should anybody still look. */
static void give_back(struct allocation *allocation)
{
    if (allocation->kind == DEVICE_MEMORY) {
        struct heap *heap = allocation->device->heap;
        heap->used -= allocation->mapped;
        if (is_open_to_kernels(allocation))
            open_allocation(allocation, false);
        if (fallocate(heap->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      (off_t)(allocation->address - heap->base), (off_t)allocation->mapped))
            complain("the pages of freed memory stay");
    } else if (allocation->kind == PINNED_MEMORY || allocation->kind == MANAGED_MEMORY) {
        munmap((void *)allocation->address, allocation->mapped);
    } else if (allocation->kind == IMPORTED_MEMORY) {
        munmap((void *)allocation->address, allocation->mapped);
        munmap(allocation->view, allocation->mapped);
    }
    take_out(allocation);
}

CUresult release(uintptr_t address, enum memory_kind kind)
{
    pthread_mutex_lock(&lock);
    struct allocation *found = holder_of(address);
    bool right = found && found->address == address && found->kind == kind;
    if (right)
        give_back(found);
    pthread_mutex_unlock(&lock);
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void release_context_memory(CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (size_t i = table_count; i-- > 0;)
        if (table[i]->context == context)
            give_back(table[i]);
    pthread_mutex_unlock(&lock);
}

void memory_in_use(struct device *device, size_t *used, size_t *limit)
{
    pthread_mutex_lock(&lock);
    *used = device->heap ? device->heap->used : 0;
    *limit = settings.memory;
    pthread_mutex_unlock(&lock);
}

int heap_file(struct device *device)
{
    return device->heap->file;
}

uintptr_t heap_offset(struct device *device, uintptr_t address)
{
    return address - device->heap->base;
}

/* ---- kernels, which use the addresses of the device ---- */

static uint64_t open_to[MOST_DEVICES];   /* how many kernels run that may touch this device's memory */
static _Thread_local uint64_t opened;
static _Thread_local sigjmp_buf *escape;

static bool is_open_to_kernels(const struct allocation *allocation)
{
    return allocation->device && open_to[allocation->device->ordinal] > 0 &&
           (allocation->kind == DEVICE_MEMORY || allocation->kind == IMPORTED_MEMORY);
}

static void open_allocation(const struct allocation *allocation, bool open)
{
    mprotect((void *)allocation->address, allocation->mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static void open_device(int ordinal, bool open)
{
    bool edge = open ? open_to[ordinal]++ == 0 : --open_to[ordinal] == 0;
    for (size_t i = 0; edge && i < table_count; i++) {
        struct allocation *allocation = table[i];
        if (allocation->device && allocation->device->ordinal == ordinal &&
            (allocation->kind == DEVICE_MEMORY || allocation->kind == IMPORTED_MEMORY))
            open_allocation(allocation, open);
    }
}

void open_memory(CUcontext context)
{
    opened = context->peers | (uint64_t)1 << context->device->ordinal;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_DEVICES; i++)
        if (opened >> i & 1)
            open_device(i, true);
    pthread_mutex_unlock(&lock);
}

void close_memory(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_DEVICES; i++)
        if (opened >> i & 1)
            open_device(i, false);
    pthread_mutex_unlock(&lock);
    opened = 0;
}

CUresult run_guarded(CUresult (*function)(void *), void *argument)
{
    sigjmp_buf here;
    CUresult result = CUDA_ERROR_ILLEGAL_ADDRESS;
    if (!sigsetjmp(here, 1)) {
        escape = &here;
        result = function(argument);
    }
    escape = NULL;
    return result;
}

/* ---- faults ---- */

static struct sigaction previous_segv, previous_bus;

/* A fault on device memory: in a kernel it is CUDA's error; elsewhere it is said why the process will end, and the
 * fault happens again under the former handler. */
static void on_fault(int signal, siginfo_t *info, void *machine)
{
    (void)machine;
    uintptr_t address = (uintptr_t)info->si_addr;
    if (in_heap(address)) {
        if (escape)
            siglongjmp(*escape, 1);
        char text[128];
        int length = snprintf(text, sizeof text, "CUDA stand-in: host code touched device memory at %#lx\n",
                              (unsigned long)address);
        if (write(STDERR_FILENO, text, (size_t)length) < 0)
            length = 0;
    }
    sigaction(signal, signal == SIGSEGV ? &previous_segv : &previous_bus, NULL);
}

void watch_faults(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigaction(SIGSEGV, &action, &previous_segv);
    sigaction(SIGBUS, &action, &previous_bus);
}
