/* Runs the threads of a kernel (threads.h). */
#include "threads.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

extern "C" {
__thread uint3 threadIdx, blockIdx, blockDim, gridDim;
}

namespace {

constexpr int WARP = 32, MOST_THREADS = 1024, WIDEST = 16;
constexpr int LAUNCH_FAILED = 719;                   // CUDA_ERROR_LAUNCH_FAILED
constexpr size_t STACK = 128 * 1024, MARGIN = 4096;  // below each stack is a margin, into which it may run over
constexpr unsigned char POISON = 0xA5;
const char GUARD[64] = "the first bytes of the margin, which are looked at afterwards";

struct Failure {
    int error;
};

enum State { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, OVER };

struct Fiber {
    jmp_buf place;
    bool started;
    State state;
    unsigned lanes;                                  // that it waits for at a warp barrier
    uint3 index;
    unsigned char given[WIDEST];                     // to the other lanes of its warp
};

struct Block {
    Fiber *fibers;                                   // of MOST_THREADS threads, made at first use
    char *stacks;
    int size;
    int running;
    bool busy;                                       // from the start of a kernel to its regular end
    int error;
    int votes, last_votes;
    int waiting[OVER + 1];                           // threads by state
    jmp_buf scheduler;
    standin_thread thread;
    void *const *arguments;
};

__thread __attribute__((tls_model("initial-exec"))) Block *block;
thread_local void *shared_memory;
thread_local size_t shared_room;

[[noreturn]] void fail(const char *text)
{
    fprintf(stderr, "CUDA stand-in: %s\n", text);
    throw Failure{LAUNCH_FAILED};
}

/* ---- stacks ---- */

char *stack_of(int number)
{
    return block->stacks + (size_t)number * STACK + MARGIN;
}

void make_stacks()
{
    if (block->fibers)
        return;
    void *stacks = mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED)
        fail("no memory for the stacks of a kernel's threads");
    block->stacks = (char *)stacks;
    block->fibers = new Fiber[MOST_THREADS]();
}

/* ---- one thread ---- */

void set_state(Fiber &fiber, State state)
{
    block->waiting[fiber.state]--;
    block->waiting[state]++;
    fiber.state = state;
}

void wait_as(State state)
{
    Fiber &fiber = block->fibers[block->running];
    set_state(fiber, state);
    if (!_setjmp(fiber.place))
        _longjmp(block->scheduler, 1);
}

/* A thread of one block after another: to make a stack's context anew takes longer than most kernels. */
void run_fiber()
{
    for (;;) {
        try {
            block->thread(block->arguments);
        } catch (const Failure &failure) {
            block->error = failure.error;
        }
        wait_as(OVER);
    }
}

[[noreturn]] void start(int number)
{
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack_of(number);
    context.uc_stack.ss_size = STACK - MARGIN;
    context.uc_link = nullptr;
    makecontext(&context, run_fiber, 0);
    setcontext(&context);
    abort();
}

/* Runs it until it waits for others or is over. */
void resume(int number)
{
    Fiber &fiber = block->fibers[number];
    block->running = number;
    threadIdx = fiber.index;
    if (_setjmp(block->scheduler))
        return;
    if (fiber.started)
        _longjmp(fiber.place, 1);
    fiber.started = true;
    start(number);
}

/* After a failure, threads may be left in the middle of a kernel. */
void forget_fibers()
{
    for (int number = 0; block->fibers && number < MOST_THREADS; number++)
        block->fibers[number].started = false;
}

/* ---- a block ---- */

bool is_over(int number)
{
    return number >= block->size || block->fibers[number].state == OVER;
}

/* All lanes that a lane waits for wait for the same lanes, or have ended. */
bool meets(int number)
{
    const Fiber &fiber = block->fibers[number];
    int first = number / WARP * WARP;
    for (int lane = 0; lane < WARP; lane++) {
        if (!(fiber.lanes >> lane & 1) || is_over(first + lane))
            continue;
        const Fiber &other = block->fibers[first + lane];
        if (other.state != AT_WARP_BARRIER || other.lanes != fiber.lanes)
            return false;
    }
    return true;
}

bool release_warps()
{
    bool released = false;
    for (int number = 0; block->waiting[AT_WARP_BARRIER] && number < block->size; number++) {
        if (block->fibers[number].state != AT_WARP_BARRIER || !meets(number))
            continue;
        int first = number / WARP * WARP;
        unsigned lanes = block->fibers[number].lanes;
        for (int lane = 0; lane < WARP; lane++)
            if ((lanes >> lane & 1) && !is_over(first + lane))
                set_state(block->fibers[first + lane], READY);
        released = true;
    }
    return released;
}

bool release_block()
{
    if (!block->waiting[AT_BLOCK_BARRIER] || block->waiting[AT_BLOCK_BARRIER] + block->waiting[OVER] < block->size)
        return false;
    for (int number = 0; number < block->size; number++)
        if (block->fibers[number].state == AT_BLOCK_BARRIER)
            set_state(block->fibers[number], READY);
    block->last_votes = block->votes;
    block->votes = 0;
    return true;
}

void prepare_fibers()
{
    memset(block->waiting, 0, sizeof block->waiting);
    block->waiting[READY] = block->size;
    for (int number = 0; number < block->size; number++) {
        Fiber &fiber = block->fibers[number];
        unsigned rest = (unsigned)number;
        fiber.state = READY;
        fiber.index = {rest % blockDim.x, rest / blockDim.x % blockDim.y, rest / blockDim.x / blockDim.y};
        memcpy(stack_of(number) - sizeof GUARD, GUARD, sizeof GUARD);
    }
}

void check_stacks()
{
    for (int number = 0; number < block->size; number++)
        if (memcmp(stack_of(number) - sizeof GUARD, GUARD, sizeof GUARD))
            fail("the stack of a kernel's thread has overflowed");
}

bool run_ready()
{
    if (!block->waiting[READY])
        return false;
    for (int number = 0; number < block->size && !block->error; number++)
        if (block->fibers[number].state == READY)
            resume(number);
    return true;
}

void run_meeting_block()
{
    prepare_fibers();
    while (run_ready() && !block->error)
        if (!release_warps())
            release_block();
    check_stacks();
    if (block->error)
        throw Failure{block->error};
    if (block->waiting[OVER] < block->size)
        fail("the threads of a block wait for one another at different barriers");
}

void run_plain_block(standin_thread thread, void *const *arguments)
{
    uint3 &index = threadIdx;
    for (index.z = 0; index.z < blockDim.z; index.z++)
        for (index.y = 0; index.y < blockDim.y; index.y++)
            for (index.x = 0; index.x < blockDim.x; index.x++)
                thread(arguments);
}

void make_shared_memory(size_t size)
{
    if (size <= shared_room)
        return;
    free(shared_memory);
    shared_room = (size + 255) / 256 * 256;
    shared_memory = aligned_alloc(256, shared_room);
}

void run_grid(standin_thread thread, void *const *arguments, size_t shared_bytes, bool meeting)
{
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
                if (shared_bytes)
                    memset(shared_memory, POISON, shared_bytes);
                if (meeting)
                    run_meeting_block();
                else
                    run_plain_block(thread, arguments);
            }
}

Fiber &running()
{
    return block->fibers[block->running];
}

void check_lanes(unsigned lanes)
{
    if (!(lanes >> standin_lane() & 1))
        fail("a lane waits for others but not for itself");
}

}  // namespace

/* ---- what kernels call ---- */

int standin_run(standin_thread thread, void *const *arguments, const standin_launch *launch, bool meeting)
{
    if (!block)
        block = new Block();
    gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    blockDim = {launch->block[0], launch->block[1], launch->block[2]};
    block->size = (int)(blockDim.x * blockDim.y * blockDim.z);
    block->error = block->votes = 0;
    if (block->busy)                                  // the last kernel was left by a fault
        forget_fibers();
    block->busy = true;
    block->thread = thread;
    block->arguments = arguments;
    try {
        make_shared_memory(launch->shared_bytes);
        if (meeting)
            make_stacks();
        run_grid(thread, arguments, launch->shared_bytes, meeting);
    } catch (const Failure &failure) {
        return failure.error;
    }
    block->busy = false;
    return 0;
}

void standin_block_barrier(void)
{
    wait_as(AT_BLOCK_BARRIER);
}

void standin_warp_barrier(unsigned lanes)
{
    check_lanes(lanes);
    running().lanes = lanes;
    wait_as(AT_WARP_BARRIER);
}

int standin_lane(void)
{
    return block->running % WARP;
}

/* A lane that takes no part gives no value: on a GPU what comes then is undefined. */
void standin_shuffle(unsigned lanes, void *value, size_t size, int from)
{
    memcpy(running().given, value, size);
    standin_warp_barrier(lanes);
    int giver = block->running / WARP * WARP + from;
    if (from >= 0 && (!(lanes >> from & 1) || is_over(giver)))
        memset(value, POISON, size);
    else if (from >= 0)
        memcpy(value, block->fibers[giver].given, size);
    standin_warp_barrier(lanes);
}

unsigned standin_ballot(unsigned lanes, bool vote)
{
    unsigned result = 0;
    running().given[0] = vote;
    standin_warp_barrier(lanes);
    int first = block->running / WARP * WARP;
    for (int lane = 0; lane < WARP; lane++)
        if ((lanes >> lane & 1) && !is_over(first + lane) && block->fibers[first + lane].given[0])
            result |= 1u << lane;
    standin_warp_barrier(lanes);
    return result;
}

int standin_count(bool vote)
{
    block->votes += vote;
    wait_as(AT_BLOCK_BARRIER);
    return block->last_votes;
}

void *standin_dynamic_shared(void)
{
    return shared_memory;
}

void standin_fail(int error, const char *text, const char *file, int line)
{
    fprintf(stderr, "CUDA stand-in: %s:%d: block (%u,%u,%u), thread (%u,%u,%u): %s\n", file, line, blockIdx.x, blockIdx.y,
            blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, text);
    throw Failure{error};
}
