/* The CUDA runtime of the stand-in (libcudart.so.12), written on the driver API: as much as CuPy's runtime.pyx asks for.
 *
 * NVIDIA's own runtime does not run on another driver than NVIDIA's, and need not: CuPy calls it through one extension,
 * which is rebuilt for this one (see ../overlay.py).
 */
#ifndef STANDIN_CUDART_H
#define STANDIN_CUDART_H

#include <cuda.h>
#include <cuda_runtime_api.h>

/* ---- errors.c: since CUDA 10.1 an error has the same number in both APIs ---- */

cudaError_t answer(CUresult result);                 /* kept for cudaGetLastError unless it is a success */

/* ---- devices.c ---- */

CUresult use_context(void);                          /* one is current: the caller's, else its device's primary one */
CUresult primary_context(int device, CUcontext *out);

static inline CUdeviceptr address(const void *pointer)
{
    return (CUdeviceptr)pointer;
}

/* For a function whose whole is one call of the driver's that needs a context. */
#define IN_CONTEXT(call)                                                                                               \
    do {                                                                                                               \
        CUresult ready = use_context();                                                                                \
        return answer(ready == CUDA_SUCCESS ? (call) : ready);                                                         \
    } while (0)

#endif
