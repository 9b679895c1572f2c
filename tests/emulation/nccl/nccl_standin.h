/* What the files of the NCCL stand-in share.
 *
 * A call becomes a task (api.c); the tasks that one group gives a communicator become a plan (group.c), which is
 * one host function in the caller's stream (run.c).  It moves bytes through FIFOs in shared memory (channel.c) that
 * the ranks of the communicator map when it is made (segment.c, communicator.c).
 */
#ifndef NCCL_STANDIN_H
#define NCCL_STANDIN_H

#include <cuda.h>

/* nccl.h wants the CUDA runtime's headers for these two types only; their guards keep them out. */
typedef CUstream cudaStream_t;
typedef CUevent cudaEvent_t;
#define __CUDA_RUNTIME_H__
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#include <nccl.h>

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exported by the libcuda stand-in. */
void *standin_host_view(CUdeviceptr pointer, size_t bytes);
CUresult standin_break(int device, CUresult error) __attribute__((weak));

#pragma GCC visibility push(hidden)

enum { MOST_RANKS = 64, MOST_ORDERS = 12, MOST_OPERATORS = 64, ALIGNMENT = 16, POISON = 0xA5 };

/* ---- settings.c: the environment; faults on demand ---- */

enum reach { REACH_END, REACH_ERROR, REACH_NOTHING };

struct settings {
    bool eager;               /* STANDIN_MODE=eager: an operation is done before its call returns */
    bool check;               /* STANDIN_NCCL_CHECK */
    bool connect;             /* STANDIN_NCCL_CONNECT */
    bool share_devices;       /* NCCL_MULTI_RANK_GPU_ENABLE */
    const char *meeting;      /* STANDIN_MEETING */
    enum reach reach;         /* STANDIN_NCCL_ABORT_REACHES */
    double timeout_s;         /* STANDIN_NCCL_TIMEOUT_S; 0: none */
};
const struct settings *settings(void);
uint64_t host_hash(void);

struct fault {
    bool absent;              /* the operation never starts */
    ncclResult_t error;       /* asynchronous error; the operation never ends */
    int late_ms;
};
struct fault fault_of(const struct ncclComm *comm, uint64_t sequence);
bool init_fails(const struct ncclComm *comm);

/* ---- debug.c: what NCCL says ---- */

void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));     /* kept for ncclGetLastError */
void info(int device, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));   /* the stand-in itself, on stderr */
void show_version(void);
bool shows_calls(void);
double seconds(void);

/* ---- arithmetic.c ---- */

enum reduction { SUM, PROD, MAX, MIN };

struct operator {
    enum reduction reduction;
    bool scales;              /* own elements are multiplied by the scalar before they are combined */
    bool divides;             /* the integer total is divided by `divisor` */
    uint64_t scalar;
    const void *scalar_at;    /* where the scalar lies when the operation runs; NULL: in `scalar` */
    uint64_t divisor;
};

size_t size_of(ncclDataType_t type);
void combine(enum reduction, ncclDataType_t, void *out, const void *left, const void *right, size_t count);
void scale(ncclDataType_t, void *out, const void *in, uint64_t scalar, size_t count);
void divide(ncclDataType_t, void *data, uint64_t divisor, size_t count);
struct operator average(ncclDataType_t, int ranks);

/* ---- segment.c: the shared memory of a communicator ---- */

struct slot {                 /* of one rank */
    atomic_int pid;           /* 0: nobody has come */
    atomic_int ready;         /* the rest is filled in */
    int device;
    unsigned long bus_id;
    CUuuid uuid;
    uint64_t host;
    _Alignas(64) atomic_uint bell;
    atomic_uint sleepers;
    atomic_int aborted, left, finalized, connected;
    _Atomic uint64_t split_sequence;
    struct { int color, key; } split[2];
    _Atomic uint64_t window_sequence;
    size_t window_bytes[2];
};

struct header {
    atomic_uint ready;
    int size;
    int check;
    size_t bytes;
    atomic_int attached;
    atomic_int failed;        /* an ncclResult_t that all ranks get */
    struct slot slots[];
};

struct fifo_state {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t taken;
};

ncclResult_t open_segment(struct ncclComm *comm);
void close_segment(struct ncclComm *comm);
void unlink_segment(struct ncclComm *comm);
struct slot *slot_of(const struct ncclComm *comm, int rank);
atomic_uchar *connection(const struct ncclComm *comm, int from, int to, bool receiver);
char *fifos_of(const struct ncclComm *comm);

/* ---- channel.c: FIFOs, bells, waiting ---- */

struct fifo { struct fifo_state *state; char *bytes; size_t capacity; };

struct fifo ring_fifo(const struct ncclComm *comm, int from);
struct fifo message_fifo(const struct ncclComm *comm, int from, int to);
size_t ring_capacity(void);
size_t fifo_bytes(int size);
char *fifo_read_at(const struct fifo *fifo, size_t *bytes);      /* up to the end of the memory */
char *fifo_write_at(const struct fifo *fifo, size_t *bytes);
void fifo_taken(const struct fifo *fifo, size_t bytes);          /* rounded up to ALIGNMENT */
void fifo_written(const struct fifo *fifo, size_t bytes);
bool fifo_put(const struct fifo *fifo, const void *data, size_t bytes);
bool fifo_take(const struct fifo *fifo, void *data, size_t bytes);

void ring_bell(const struct ncclComm *comm, int rank);
void ring_all_bells(const struct ncclComm *comm);
unsigned bell_of(const struct ncclComm *comm);
void wait_bell(const struct ncclComm *comm, unsigned seen);

typedef bool condition(struct ncclComm *comm, const void *what);
ncclResult_t wait_until(struct ncclComm *comm, condition *reached, const void *what, const char *doing);
bool peer_aborted(const struct ncclComm *comm);

/* ---- tasks and plans ---- */

enum function { BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, SEND, RECEIVE };

struct task {
    struct task *next;
    enum function function;
    const char *name;
    const void *send;
    void *recv;
    bool send_pinned, recv_pinned;   /* memory of the host, at its own address */
    size_t count, send_bytes, recv_bytes;
    ncclDataType_t type;
    struct operator operator;
    int op;                   /* as the caller gave it, to compare among ranks */
    int root;                 /* or the peer of a message */
    bool poison;              /* the buffers overlap where they must not */
    CUstream stream;
    CUevent completion;
};

struct order { uint64_t communicator, count; };

struct frame {                /* goes before every collective and message; the same size always */
    uint32_t magic, function;
    uint32_t type;
    int32_t op, root;
    uint32_t orders;
    uint64_t count, sequence, unused[2];
    struct order order[MOST_ORDERS];
};

struct plan {
    struct plan *next;        /* of the same group */
    struct ncclComm *comm;
    struct task *tasks, **end;
    bool captured;
    bool first_use;           /* connections are to be made */
    uint32_t orders;
    struct order order[MOST_ORDERS];
};

void run_plan(void *plan);    /* the host function */
void drop_plan(struct plan *plan);

/* A task while it runs. */
struct progress {
    const struct task *task;
    const char *send;
    char *recv;
    uint64_t scalar;
    bool announced, met, done;
    size_t loop, moved;
    int step;
};

enum advance { BLOCKED, MOVED, MISMATCH };
enum advance advance_ring(struct ncclComm *, const struct plan *, struct progress *, uint64_t sequence);
enum advance advance_message(struct ncclComm *, struct progress *, uint64_t sequence);
bool frame_fits(struct ncclComm *, const struct frame *theirs, const struct frame *mine, int peer);
struct frame frame_of(const struct task *task, uint64_t sequence);

/* ---- communicator.c ---- */

enum { COMM_MAGIC = 0x4e43434c };

struct user_operator { bool used; int handle; ncclDataType_t type; struct operator operator; };

struct ncclComm {
    uint32_t magic;
    int rank, size, device, capability;
    CUcontext context;
    char name[64], segment_path[PATH_MAX];
    uint64_t hash;
    bool blocking, linked;    /* linked: the segment still has its name */
    struct header *segment;
    atomic_int state;         /* what ncclCommGetAsyncError says */
    atomic_int aborted, finalize_called, destroyed;
    atomic_int jobs;          /* threads at work for it */
    atomic_int running;       /* plans that are in a stream */
    pthread_mutex_t turn;     /* of its plans */
    uint64_t executed, launched, splits, windows;
    CUevent last, captured_last;
    CUstream last_stream, captured_stream;
    bool has_last;
    unsigned long long capture;
    bool ring_connected, *sends, *receives;
    struct user_operator operators[MOST_OPERATORS];
    struct ncclComm *next;    /* all that this process made */
};

ncclResult_t check_comm(const struct ncclComm *comm, const char *where);
ncclResult_t check_ready(struct ncclComm *comm);
ncclResult_t check_pointer(const void *pointer, const char *where, const char *name);
const struct ncclComm *all_communicators(void);
ncclResult_t make_comm(struct ncclComm **out, int size, int rank, int device, bool blocking,
                       const ncclConfig_t *config);
void name_comm(struct ncclComm *comm, const char *name);
ncclResult_t start_comm(struct ncclComm *comm, const char *function);

/* ---- lifecycle.c ---- */

void bury_comm(struct ncclComm *comm);

/* ---- memory.c ---- */

ncclResult_t user_operator(struct ncclComm *comm, int handle, ncclDataType_t type, const char *where,
                           struct operator *operator);

/* ---- group.c ---- */

struct job {
    struct job *next;
    ncclResult_t (*run)(struct job *job);
    struct ncclComm *comm;
    ncclComm_t *newcomm;
    struct ncclComm *child;
    int color, key;
    ncclWindow_t *window;
    void *buffer;
    size_t bytes;
    ncclResult_t result;
};

void enter_group(void);
ncclResult_t leave_group(void);
ncclResult_t fail_group(ncclResult_t result);
ncclResult_t add_job(struct job *job, bool always_blocking);
ncclResult_t add_task(struct ncclComm *comm, struct task *task);

/* ---- launch.c ---- */

ncclResult_t close_plan(struct plan *plan);      /* checks that need all tasks of a group */
void announce_plan(struct plan *plan);
ncclResult_t connect_plan(struct plan *plan);
ncclResult_t launch_plan(struct plan *plan);

#pragma GCC visibility pop

#endif
