/* The marks of NVIDIA's headers (the wheel has this file not), as the host compiler shall take them: as nothing. */
#ifndef STANDIN_HOST_DEFINES_H
#define STANDIN_HOST_DEFINES_H

#define CUDARTAPI
#define CUDART_CB
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __specialization_static

#endif
