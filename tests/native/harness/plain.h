/* The objects of Python that the engine takes, without an interpreter. */

#ifndef PLAIN_H
#define PLAIN_H

#include "execution.h"

/* Memory that gives itself away as a buffer. */
typedef struct {
    PyObject_HEAD
    void *at;
    Py_ssize_t nbytes;
} Plain;

#define PLAIN(memory, length) {.at = (memory), .nbytes = (length)}

/* Makes new_execution able to allocate one. */
void prepare_plain_type(PyTypeObject *type);
void free_plain_execution(Execution *execution);

#endif
