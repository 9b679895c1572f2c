/* What the files of the CUDA driver stand-in share: the objects behind the driver's handles, and who does what.
 *
 * Locks: `big_lock` guards contexts, streams, events, captures and graphs; memory.c has its own, which is always
 * taken last.  Nothing of the caller (host functions, kernels) runs while a lock is held.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_DEVICES = 64, PAGE = 4096, POISON = 0xA5 };

/* Exported beside the driver's own functions. */
void *standin_host_view(CUdeviceptr pointer, size_t bytes);
CUresult standin_break(int device, CUresult error);

#pragma GCC visibility push(hidden)

/* ---- settings.c: the environment, and what is said to the user ---- */

enum mode { EAGER, DELAY, LAZY };

struct settings {
    int devices;
    enum mode mode;
    int64_t delay_us;
    int64_t lazy_us;
    uint64_t seed;
    size_t memory;
    bool log;
    const char *host;
};
extern struct settings settings;

void read_settings(void);
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t mix(uint64_t value);
int64_t now_ns(void);
CUresult unsupported(const char *function);

/* ---- identity.c ---- */

CUuuid uuid_of_index(int index);
void write_uuid(char text[48], CUuuid uuid);

/* ---- devices.c ---- */

struct device {
    CUdevice ordinal;     /* among the visible ones */
    int index;            /* on the machine: what CUDA_VISIBLE_DEVICES counts */
    CUuuid uuid;
    CUcontext primary;
    int primary_users;
    unsigned primary_flags;
    struct heap *heap;
    CUmemoryPool default_pool, pool;
};

CUresult initialised(void);
CUresult device_of(CUdevice ordinal, struct device **out);
int device_count(void);

/* ---- contexts.c ---- */

struct CUctx_st {
    uint32_t magic;
    bool primary;
    struct device *device;
    unsigned flags;
    uint64_t id;
    CUresult sticky;               /* an error after which nothing works in this context */
    CUstream legacy;               /* the default stream that waits for all blocking ones */
    CUstream streams;              /* all others */
    uint64_t peers;                /* bit per device whose memory kernels may touch */
    int captures;                  /* that are going on in its streams */
    size_t limits[CU_LIMIT_MAX];
};

extern pthread_mutex_t big_lock;
extern _Thread_local bool in_host_function;

CUresult current_context(CUcontext *out);            /* its sticky error, if it has one */
CUresult current_context_or_null(CUcontext *out);
CUresult check_context(CUcontext context);
void break_context(CUcontext context, CUresult error, const char *why);

/* ---- objects.c: handles that were destroyed are noticed ---- */

enum magic { CONTEXT = 0x43545831, STREAM = 0x53545231, EVENT = 0x45565431, GRAPH = 0x47525031, EXEC = 0x45584531,
             POOL = 0x504f4f31, MODULE = 0x4d4f4431, FUNCTION = 0x46554e31, OBJECT = 0x4f424a31 };

void *make_object(enum magic magic, size_t bytes);
bool is_object(const void *object, enum magic magic);
void retire_object(void *object);

/* ---- queue.c: operations, their order and the workers that run them ---- */

/* What an operation does.  A node of a graph does it at each launch, so a task is not changed by running. */
struct task {
    atomic_int references;
    const char *name;
    CUgraphNodeType type;          /* what it is in a graph */
    CUresult (*run)(struct task *task);
    void (*drop)(struct task *task);
    bool endless;                  /* may wait for the host: eager mode does not wait for it */
    bool host;                     /* calls a function of the caller */
};

struct op {
    int references;
    struct task *task;             /* NULL: only a place in the order */
    CUstream stream;
    struct op *next;
    struct op **before;            /* of other streams, to be done first */
    int before_count;
    struct op **after;             /* of other streams, that wait for this one */
    int after_count, after_room;
    int missing;                   /* how many of `before` are not done */
    bool demanded, done, endless;
    int64_t due_ns;                /* lazy mode: when it runs though nobody waits for it */
    int64_t finished_ns;
};

void *make_task(size_t bytes, const char *name, CUgraphNodeType type, CUresult (*run)(struct task *),
                void (*drop)(struct task *));
void keep_task(struct task *task);
void drop_task(struct task *task);

/* All with big_lock held. */
struct op *add_op(CUstream stream, struct task *task, struct op *const *before, int before_count);
void keep_op(struct op *op);
void drop_op(struct op *op);
void demand_op(struct op *op);
void wait_op(struct op *op);
void settle_op(struct op *op);                       /* eager mode: it is done at return */
void wake_stream(CUstream stream);

/* ---- streams.c ---- */

enum stream_kind { ORDINARY, LEGACY, PER_THREAD, LANE };

struct CUstream_st {
    uint32_t magic;
    enum stream_kind kind;
    int references;
    CUcontext context;
    unsigned flags;
    int priority;
    uint64_t id;
    uint64_t done;                 /* operations so far; the worker's */
    struct op *head, *tail;        /* operations that are not done */
    bool worker;                   /* somebody runs them */
    pthread_cond_t wake;
    CUstream next, previous;       /* in the context's list */
    struct capture *capture;
    CUgraphNode *frontier;         /* capture: what the next node comes after */
    size_t frontier_count;
};

CUresult stream_of(CUstream handle, CUstream *out);  /* with big_lock held */
CUstream make_stream(CUcontext context, enum stream_kind kind, unsigned flags, int priority);
void drop_stream(CUstream stream);
void abandon_stream(CUstream stream);
bool is_blocking(CUstream stream);
CUresult enqueue(CUstream handle, struct task *task, bool wait);    /* takes the task over */
CUresult enqueue_on(CUstream stream, struct task *task, bool wait); /* the same, with big_lock held */
CUresult wait_stream(CUstream stream);               /* with big_lock held */
CUresult wait_context(CUcontext context);            /* with big_lock held */
extern _Thread_local bool null_is_per_thread;
struct task *make_host_task(CUhostFn function, void *argument);

/* ---- events.c ---- */

struct CUevent_st {
    uint32_t magic;
    CUcontext context;
    unsigned flags;
    struct op *record;
    struct capture *capture;       /* it was last recorded in */
    uint64_t capture_id;
    CUgraphNode *nodes;
    size_t node_count;
};

/* ---- capture.c ---- */

struct capture {
    uint64_t id;
    CUstreamCaptureMode mode;
    pthread_t thread;
    CUstream origin;
    CUgraph graph;
    CUresult broken;               /* why it is of no use any more */
    int streams;                   /* that take part */
};

CUresult capture_task(CUstream stream, struct task *task);
bool is_capturing(CUstream handle);                                   /* takes big_lock */
uint64_t capture_of(CUstream handle);                                 /* 0: it is not captured; takes big_lock */
CUresult keep_with_capture(CUstream handle, CUhostFn destroy, void *argument);   /* until its graphs are gone; takes it */
CUresult capture_record(CUstream stream, CUevent event);
CUresult capture_wait(CUstream stream, CUevent event, bool *taken);
CUresult refuse_while_capturing(CUcontext context);                   /* for calls that a capture forbids */
CUresult break_capture(CUstream stream, CUresult error);
CUresult refuse_unsafe(void);                                         /* cuMemAlloc and the like, by capture mode */
CUresult refuse_unsafe_held(void);                                    /* the same, with big_lock held */
bool event_is_captured(CUevent event);
void leave_capture(CUstream stream);                                  /* that is about to go */
void set_frontier(CUstream stream, const CUgraphNode *nodes, size_t count);
void add_frontier(CUstream stream, const CUgraphNode *nodes, size_t count);

/* ---- graphs.c ---- */

struct CUgraphNode_st {
    CUgraph graph;
    CUgraphNodeType type;
    struct task *task;
    CUgraphNode *before;
    size_t before_count;
    size_t index;
};

struct CUgraph_st {
    uint32_t magic;
    CUgraphNode *nodes;            /* each after those that it depends on */
    size_t count, room;
    struct kept *kept;             /* user objects */
};

CUgraph make_graph(void);
void drop_graph(CUgraph graph);
CUgraphNode add_node(CUgraph graph, CUgraphNodeType type, struct task *task, const CUgraphNode *before, size_t count);
bool add_dependency(CUgraphNode node, CUgraphNode before);

/* ---- memory.c ---- */

enum memory_kind { DEVICE_MEMORY, PINNED_MEMORY, REGISTERED_MEMORY, IMPORTED_MEMORY, MODULE_MEMORY, MANAGED_MEMORY };
enum memory_state { PENDING, LIVE, LEAVING };

struct allocation {
    uint64_t id;
    enum memory_kind kind;
    enum memory_state state;
    uintptr_t address;
    size_t size, mapped;
    char *view;                    /* where the host may touch the bytes */
    struct device *device;
    CUcontext context;
    CUmemoryPool pool;
    unsigned flags;
    bool sync_memops;
    uint64_t capture;              /* memory of a graph: in which capture it was made */
};

/* A range that a task will touch: looked up when it is enqueued, and again when it runs. */
struct place {
    uintptr_t address;
    size_t size;
    uint64_t id;                   /* 0: pageable memory of the host */
    enum memory_kind kind;
    int device;
    bool sync_memops;
};

CUresult allocate(CUcontext context, size_t size, enum memory_kind kind, enum memory_state state, CUmemoryPool pool,
                  unsigned flags, struct allocation *out);
CUresult release(uintptr_t address, enum memory_kind kind);
bool find_memory(uintptr_t address, struct allocation *out);          /* a copy of what holds this address */
bool change_memory(uintptr_t address, enum memory_state state);
void add_memory(const struct allocation *allocation);
bool remove_memory(uintptr_t address, struct allocation *out);
bool set_sync_memops(uintptr_t address, bool on);
bool own_by_capture(uintptr_t address, uint64_t capture);
uint64_t new_memory_id(void);
CUresult place_of(uintptr_t address, size_t size, struct place *out); /* INVALID_VALUE: runs over the end, or freed */
char *bytes_of(const struct place *place);                            /* NULL: it is gone */
bool is_on_device(const struct place *place);
void memory_in_use(struct device *device, size_t *used, size_t *limit);
void release_context_memory(CUcontext context);
int heap_file(struct device *device);
uintptr_t heap_offset(struct device *device, uintptr_t address);

/* Kernels: device memory is open to this process as long as one runs. */
void open_memory(CUcontext context);
void close_memory(void);
CUresult run_guarded(CUresult (*function)(void *), void *argument);   /* ILLEGAL_ADDRESS where it faults on device memory */
void watch_faults(void);

/* ---- pools.c ---- */

struct CUmemPoolHandle_st {
    uint32_t magic;
    struct device *device;         /* NULL: pinned memory of the host */
    CUmemPoolProps properties;
    uint64_t threshold;
    int reuse[3];
    atomic_size_t used, most_used;
    uint64_t readers;              /* bit per device that may touch it */
    bool implicit;
};

CUmemoryPool default_pool(struct device *device);
void pool_took(CUmemoryPool pool, size_t size);
void pool_gave(CUmemoryPool pool, size_t size);

#pragma GCC visibility pop

#endif
