/* libcublas.so.12, as much as the `@` of CuPy needs: the product of matrices, run by a stream's worker.
 *
 * The wheel with cuBLAS's own header weighs 500 MB, so what is needed of it is written down here.
 */
#ifndef STANDIN_CUBLAS_H
#define STANDIN_CUBLAS_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
} cublasStatus_t;

enum operation { PLAIN, TRANSPOSED, CONJUGATED };
enum data_type { REAL_32 = 0, REAL_64 = 1, REAL_16 = 2, BFLOAT_16 = 14 };
enum compute_type { COMPUTE_32 = 68, COMPUTE_32_PEDANTIC = 69, COMPUTE_64 = 70, COMPUTE_64_PEDANTIC = 71,
                    COMPUTE_32_TF32 = 77 };
enum { HOST_POINTERS, DEVICE_POINTERS };

struct cublasContext {
    CUstream stream;
    int pointer_mode, math_mode;
};
typedef struct cublasContext *cublasHandle_t;

struct matrix {
    CUdeviceptr address;
    enum data_type type;
    int rows, columns, pitch;      /* as it lies in memory: by columns, `pitch` elements from one to the next */
    bool transposed;
    long long stride;              /* elements to the next of a batch */
};

/* out = alpha * a @ b + beta * out, `batch` times. */
struct product {
    int m, n, k, batch;
    bool wide;                     /* computed in double */
    double alpha, beta;
    struct matrix a, b, out;
    CUdevice device;
};

size_t element_bytes(enum data_type type);           /* 0: not one that is known here */
bool multiply(const struct product *product);        /* false: memory that is not there any more */

void *standin_host_view(CUdeviceptr pointer, size_t bytes);
CUresult standin_break(int device, CUresult error);

#endif
