/* What a compiled kernel finds in libnvrtc.so.12: who the running thread is, and how it meets the others of its block.
 *
 * The threads of a block run one after the other on the worker of a stream.  Those of a kernel that has barriers or
 * exchanges values between lanes each have a stack, and run from one barrier to the next.
 */
#ifndef STANDIN_THREADS_H
#define STANDIN_THREADS_H

#include "../../cuda/kernel.h"

#include <vector_types.h>

#define STANDIN_TLS extern __thread __attribute__((tls_model("initial-exec")))

extern "C" {
STANDIN_TLS uint3 threadIdx, blockIdx, blockDim, gridDim;

typedef void (*standin_thread)(void *const *arguments);
int standin_run(standin_thread thread, void *const *arguments, const standin_launch *launch, bool meets);

void standin_block_barrier(void);
void standin_warp_barrier(unsigned lanes);
void standin_shuffle(unsigned lanes, void *value, size_t size, int from);   /* `from` < 0: no lane, nothing changes */
unsigned standin_ballot(unsigned lanes, bool vote);
int standin_count(bool vote);                        /* of the block; a block barrier too */
int standin_lane(void);
void *standin_dynamic_shared(void);
[[noreturn]] void standin_fail(int error, const char *text, const char *file, int line);
}

#endif
