/* How a program finds the entry points, and what errors are called. */
#include "standin.h"
#include "tables.h"

#include <string.h>

/* The latest version of a name that is not later than the one asked for. */
static const struct version *find_version(const char *name, int version, int per_thread, bool *known)
{
    const struct version *best = NULL;
    for (const struct version *row = versions; row->name; row++) {
        if (row->per_thread != per_thread || strcmp(row->name, name))
            continue;
        *known = true;
        if (row->from <= version && (!best || row->from > best->from))
            best = row;
    }
    return best;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    if (!name || !function)
        return CUDA_ERROR_INVALID_VALUE;
    bool known = false;
    const struct version *found = NULL;
    if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        found = find_version(name, version, 1, &known);
    if (!found)
        found = find_version(name, version, 0, &known);
    *function = found ? found->function : NULL;
    if (status)
        *status = found   ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* NVIDIA's own libraries ask for tables by this; none is offered. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)id;
    if (table)
        *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

static const struct error *find_error(CUresult code)
{
    for (const struct error *error = errors; error->name; error++)
        if (error->code == code)
            return error;
    return NULL;
}

CUresult cuGetErrorName(CUresult code, const char **name)
{
    const struct error *error = find_error(code);
    *name = error ? error->name : NULL;
    return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, const char **text)
{
    const struct error *error = find_error(code);
    *text = error ? error->text : NULL;
    return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuProfilerStart(void)
{
    return CUDA_SUCCESS;
}

CUresult cuProfilerStop(void)
{
    return CUDA_SUCCESS;
}
