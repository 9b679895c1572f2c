/* The product of matrices itself, on the bytes as the host sees them. */
#include "cublas.h"

#include "../../nccl/floats.h"

#include <stdint.h>
#include <stdlib.h>

size_t element_bytes(enum data_type type)
{
    return type == REAL_32 ? 4 : type == REAL_64 ? 8 : type == REAL_16 || type == BFLOAT_16 ? 2 : 0;
}

static double load(const void *bytes, enum data_type type, size_t place)
{
    switch (type) {
    case REAL_64:
        return ((const double *)bytes)[place];
    case REAL_32:
        return (double)((const float *)bytes)[place];
    case REAL_16:
        return (double)from_half(((const uint16_t *)bytes)[place]);
    default:
        return (double)from_bfloat(((const uint16_t *)bytes)[place]);
    }
}

static void store(void *bytes, enum data_type type, size_t place, double value)
{
    switch (type) {
    case REAL_64:
        ((double *)bytes)[place] = value;
        break;
    case REAL_32:
        ((float *)bytes)[place] = (float)value;
        break;
    case REAL_16:
        ((uint16_t *)bytes)[place] = to_half((float)value);
        break;
    default:
        ((uint16_t *)bytes)[place] = to_bfloat((float)value);
    }
}

static void *view(const struct matrix *matrix, int index)
{
    size_t bytes = element_bytes(matrix->type);
    size_t extent = (size_t)(matrix->columns - 1) * (size_t)matrix->pitch + (size_t)matrix->rows;
    CUdeviceptr address = matrix->address + (CUdeviceptr)(index * matrix->stride * (long long)bytes);
    return standin_host_view(address, extent * bytes);
}

/* A copy as it takes part: not transposed, `rows` elements from one column to the next. */
static double *take(const struct matrix *matrix, const void *bytes, int rows, int columns)
{
    double *copy = malloc((size_t)rows * (size_t)columns * sizeof *copy);
    for (size_t column = 0; copy && column < (size_t)columns; column++)
        for (size_t row = 0; row < (size_t)rows; row++) {
            size_t pitch = (size_t)matrix->pitch;
            size_t place = matrix->transposed ? row * pitch + column : column * pitch + row;
            copy[column * (size_t)rows + row] = load(bytes, matrix->type, place);
        }
    return copy;
}

/* One column of the result, summed in the precision that was asked for. */
static void sum_wide(double *sums, const double *a, const double *b, size_t m, size_t k)
{
    for (size_t i = 0; i < k; i++)
        for (size_t row = 0; row < m; row++)
            sums[row] += a[i * m + row] * b[i];
}

static void sum_narrow(float *sums, const float *a, const double *b, size_t m, size_t k)
{
    for (size_t i = 0; i < k; i++)
        for (size_t row = 0; row < m; row++)
            sums[row] += a[i * m + row] * (float)b[i];
}

static void finish(const struct product *product, void *out, size_t place, double sum)
{
    double value = product->alpha * sum;
    if (product->beta != 0)
        value += product->beta * load(out, product->out.type, place);
    store(out, product->out.type, place, value);
}

static bool multiply_wide(const struct product *product, const double *a, const double *b, void *out)
{
    size_t m = (size_t)product->m, k = (size_t)product->k, pitch = (size_t)product->out.pitch;
    double *sums = malloc(m * sizeof *sums);
    for (size_t column = 0; sums && column < (size_t)product->n; column++) {
        memset(sums, 0, m * sizeof *sums);
        sum_wide(sums, a, b + column * k, m, k);
        for (size_t row = 0; row < m; row++)
            finish(product, out, column * pitch + row, sums[row]);
    }
    free(sums);
    return sums;
}

static bool multiply_narrow(const struct product *product, const double *a, const double *b, void *out)
{
    size_t m = (size_t)product->m, k = (size_t)product->k, pitch = (size_t)product->out.pitch;
    float *sums = malloc(m * sizeof *sums), *narrow = malloc(m * k * sizeof *narrow);
    bool good = sums && narrow;
    for (size_t i = 0; good && i < m * k; i++)
        narrow[i] = (float)a[i];
    for (size_t column = 0; good && column < (size_t)product->n; column++) {
        memset(sums, 0, m * sizeof *sums);
        sum_narrow(sums, narrow, b + column * k, m, k);
        for (size_t row = 0; row < m; row++)
            finish(product, out, column * pitch + row, (double)sums[row]);
    }
    free(sums);
    free(narrow);
    return good;
}

static bool multiply_one(const struct product *product, int index)
{
    const void *a_bytes = view(&product->a, index), *b_bytes = view(&product->b, index);
    void *out = view(&product->out, index);
    if (!a_bytes || !b_bytes || !out)
        return false;
    double *a = take(&product->a, a_bytes, product->m, product->k);
    double *b = take(&product->b, b_bytes, product->k, product->n);
    bool good = a && b && (product->wide ? multiply_wide : multiply_narrow)(product, a, b, out);
    free(a);
    free(b);
    return good;
}

bool multiply(const struct product *product)
{
    for (int index = 0; index < product->batch; index++)
        if (!multiply_one(product, index))
            return false;
    return true;
}
