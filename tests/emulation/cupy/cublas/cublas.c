/* cuBLAS's functions; those that are not here answer NOT_SUPPORTED (../generate.py). */
#include "cublas.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- handles ---- */

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    CUcontext context = NULL;
    if (!handle)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = calloc(1, sizeof **handle);
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version)
{
    (void)handle;
    *version = 120900;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, CUstream stream)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, CUstream *stream)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *stream = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, int mode)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, int *mode)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *mode = handle->pointer_mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, int mode)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->math_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, int *mode)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *mode = handle->math_mode;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- running a product on the handle's stream ---- */

static void run(void *argument)
{
    struct product *product = argument;
    if (!multiply(product)) {
        fprintf(stderr, "CUDA stand-in: a matrix is not in memory of this device\n");
        standin_break(product->device, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    free(product);
}

static bool is_right(const struct matrix *matrix)
{
    return matrix->pitch >= (matrix->rows > 1 ? matrix->rows : 1) && matrix->address;
}

static cublasStatus_t enqueue(cublasHandle_t handle, const struct product *product)
{
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    if (cuStreamIsCapturing(handle->stream, &capturing) != CUDA_SUCCESS)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (capturing != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct product *kept = malloc(sizeof *kept);
    if (!kept)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *kept = *product;
    if (cuCtxGetDevice(&kept->device) == CUDA_SUCCESS && cuLaunchHostFunc(handle->stream, run, kept) == CUDA_SUCCESS)
        return CUBLAS_STATUS_SUCCESS;
    free(kept);
    return CUBLAS_STATUS_EXECUTION_FAILED;
}

static cublasStatus_t launch(cublasHandle_t handle, const struct product *product)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (product->m < 0 || product->n < 0 || product->k < 0 || product->batch < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!product->m || !product->n || !product->batch)
        return CUBLAS_STATUS_SUCCESS;
    if (!is_right(&product->a) || !is_right(&product->b) || !is_right(&product->out))
        return CUBLAS_STATUS_INVALID_VALUE;
    return enqueue(handle, product);
}

/* ---- the functions by which products are asked for ---- */

static struct matrix operand(const void *address, int type, int pitch, int operation, int rows, int columns)
{
    bool transposed = operation != PLAIN;
    return (struct matrix){
        .address = (CUdeviceptr)address,
        .type = (enum data_type)type,
        .rows = transposed ? columns : rows,
        .columns = transposed ? rows : columns,
        .pitch = pitch,
        .transposed = transposed,
    };
}

static bool is_wide(int compute)
{
    return compute == COMPUTE_64 || compute == COMPUTE_64_PEDANTIC;
}

static double factor(const void *value, bool wide)
{
    return wide ? *(const double *)value : (double)*(const float *)value;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, int a_operation, int b_operation, int m, int n, int k,
                                          const void *alpha, const void *a, int a_type, int a_pitch, long long a_stride,
                                          const void *b, int b_type, int b_pitch, long long b_stride, const void *beta,
                                          void *out, int out_type, int out_pitch, long long out_stride, int batch,
                                          int compute, int algorithm)
{
    (void)algorithm;
    bool wide = is_wide(compute);
    bool narrow = compute == COMPUTE_32 || compute == COMPUTE_32_PEDANTIC || compute == COMPUTE_32_TF32;
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if ((!wide && !narrow) || handle->pointer_mode != HOST_POINTERS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!element_bytes(a_type) || !element_bytes(b_type) || !element_bytes(out_type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (wide != (a_type == REAL_64) || wide != (b_type == REAL_64) || wide != (out_type == REAL_64))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct product product = {.m = m, .n = n, .k = k, .batch = batch, .wide = wide};
    product.alpha = factor(alpha, wide);
    product.beta = factor(beta, wide);
    product.a = operand(a, a_type, a_pitch, a_operation, m, k);
    product.b = operand(b, b_type, b_pitch, b_operation, k, n);
    product.out = operand(out, out_type, out_pitch, PLAIN, m, n);
    product.a.stride = a_stride;
    product.b.stride = b_stride;
    product.out.stride = out_stride;
    return launch(handle, &product);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, int a_operation, int b_operation, int m, int n, int k,
                            const void *alpha, const void *a, int a_type, int a_pitch, const void *b, int b_type,
                            int b_pitch, const void *beta, void *out, int out_type, int out_pitch, int compute,
                            int algorithm)
{
    return cublasGemmStridedBatchedEx(handle, a_operation, b_operation, m, n, k, alpha, a, a_type, a_pitch, 0, b, b_type,
                                      b_pitch, 0, beta, out, out_type, out_pitch, 0, 1, compute, algorithm);
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, int a_operation, int b_operation, int m, int n, int k,
                              const float *alpha, const float *a, int a_pitch, const float *b, int b_pitch,
                              const float *beta, float *out, int out_pitch)
{
    return cublasGemmEx(handle, a_operation, b_operation, m, n, k, alpha, a, REAL_32, a_pitch, b, REAL_32, b_pitch, beta,
                        out, REAL_32, out_pitch, COMPUTE_32, 0);
}

cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, int a_operation, int b_operation, int m, int n, int k,
                              const double *alpha, const double *a, int a_pitch, const double *b, int b_pitch,
                              const double *beta, double *out, int out_pitch)
{
    return cublasGemmEx(handle, a_operation, b_operation, m, n, k, alpha, a, REAL_64, a_pitch, b, REAL_64, b_pitch, beta,
                        out, REAL_64, out_pitch, COMPUTE_64, 0);
}
