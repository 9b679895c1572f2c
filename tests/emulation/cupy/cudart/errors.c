/* Errors: their names, and the last one of each thread. */
#include "cudart.h"

struct error_name {
    cudaError_t code;
    const char *name;
};
extern const struct error_name error_names[];        /* made from driver_types.h by ../generate.py */

static _Thread_local cudaError_t last;

cudaError_t answer(CUresult result)
{
    if (result != CUDA_SUCCESS)
        last = (cudaError_t)result;
    return (cudaError_t)result;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last;
}

const char *cudaGetErrorName(cudaError_t code)
{
    for (const struct error_name *error = error_names; error->name; error++)
        if (error->code == code)
            return error->name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t code)
{
    const char *text;
    return cuGetErrorString((CUresult)code, &text) == CUDA_SUCCESS ? text : "unrecognized error code";
}
