/* cudaProfilerStart and cudaProfilerStop, which the wheel with CUDA's headers lacks. */
#ifndef STANDIN_CUDA_PROFILER_API_H
#define STANDIN_CUDA_PROFILER_API_H

#include <driver_types.h>

#ifdef __cplusplus
extern "C" {
#endif
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);
#ifdef __cplusplus
}
#endif

#endif
