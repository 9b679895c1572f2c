/* target = left (op) right, element by element, without the GIL where a loop of C does it. */

#ifndef HPCCOLL_KERNELS_H
#define HPCCOLL_KERNELS_H

#include "module.h"

#include <stdint.h>

/* NumPy's inner loop: addresses and strides in bytes of left, right and target. */
typedef void (*Loop)(char **addresses, const Py_ssize_t *count, const Py_ssize_t *strides, void *data);

typedef struct {
    PyObject_HEAD
    Py_ssize_t itemsize;
    Loop loop;
    void *data;
    PyObject *owner; /* the ufunc that the loop belongs to, or the Python function that stands for it */
} Kernel;

/* The target may be left or right.  With or without the GIL.  When a Python function raised, -1, and
 * `*error` is a reference to what it raised. */
int kernel_combine(Kernel *self, const char *left, const char *right, char *target, int64_t count,
                   PyObject **error);

/* What was raised, as a reference; nothing is raised any more. */
PyObject *taken_error(void);

#endif
