/* What CuPy's extension links with and the stand-in does not have: each says so, as the driver would. */
#include <driver_types.h>

#define ABSENT(name)                                                                                                   \
    cudaError_t name(void);                                                                                            \
    cudaError_t name(void)                                                                                             \
    {                                                                                                                  \
        return cudaErrorNotSupported;                                                                                  \
    }

ABSENT(cudaIpcGetEventHandle)
ABSENT(cudaIpcOpenEventHandle)
ABSENT(cudaMemAdvise)
ABSENT(cudaMemPrefetchAsync)
ABSENT(cudaGraphDebugDotPrint)

/* CUDA arrays, textures and surfaces. */
ABSENT(cudaMalloc3DArray)
ABSENT(cudaMallocArray)
ABSENT(cudaFreeArray)
ABSENT(cudaGetChannelDesc)
ABSENT(cudaMemcpy2DFromArray)
ABSENT(cudaMemcpy2DFromArrayAsync)
ABSENT(cudaMemcpy2DToArray)
ABSENT(cudaMemcpy2DToArrayAsync)
ABSENT(cudaMemcpy3D)
ABSENT(cudaMemcpy3DAsync)
ABSENT(cudaCreateTextureObject)
ABSENT(cudaDestroyTextureObject)
ABSENT(cudaGetTextureObjectResourceDesc)
ABSENT(cudaGetTextureObjectTextureDesc)
ABSENT(cudaCreateSurfaceObject)
ABSENT(cudaDestroySurfaceObject)
