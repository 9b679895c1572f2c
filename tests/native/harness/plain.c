/* What the engine's files call of Python when all goes well: memory and buffers. */

#include "plain.h"

#include <stdlib.h>

/* Memory and buffers */

void *
PyMem_Malloc(size_t size)
{
    return malloc(size);
}

void *
PyMem_Calloc(size_t count, size_t size)
{
    return calloc(count, size);
}

int
PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags)
{
    const Plain *plain = (const Plain *)object;
    (void)flags;
    *view = (Py_buffer){.buf = plain->at, .len = plain->nbytes};
    return 0;
}

static PyObject *
allocate(PyTypeObject *type, Py_ssize_t items)
{
    (void)type, (void)items;
    return calloc(1, sizeof(Execution));
}

void
prepare_plain_type(PyTypeObject *type)
{
    type->tp_alloc = allocate;
}

void
free_plain_execution(Execution *execution)
{
    pthread_mutex_destroy(&execution->lock);
    free(execution->waits);
    free(execution->ready);
    free((void *)execution->active);
    free(execution->call_of);
    free(execution->requests);
    free(execution->calls);
    free(execution);
}
