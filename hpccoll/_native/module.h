/* What the source files of hpccoll._native._core share: the module's state and what each file adds. */

#ifndef HPCCOLL_MODULE_H
#define HPCCOLL_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Types that other types take as arguments, so that these can be told from anything else. */
typedef struct {
    PyTypeObject *program;
    PyTypeObject *network;
    PyTypeObject *group;
    PyTypeObject *kernel;
    PyTypeObject *execution;
    PyTypeObject *bell;
    PyTypeObject *spread;
    PyTypeObject *ring;
    PyTypeObject *started;
    PyTypeObject *meter;
} State;

int add_program(PyObject *module);
int add_network(PyObject *module);
int add_group(PyObject *module);
int add_kernel(PyObject *module);
int add_execution(PyObject *module);
int add_engine(PyObject *module);
int add_spread(PyObject *module);
int add_recorder(PyObject *module);
int add_meter(PyObject *module);
int add_repeats(PyObject *module);
int add_started(PyObject *module);
int add_tape(PyObject *module);
int add_checksum(PyObject *module);

/* Makes a type and puts it into the module; the reference in `kept` is the module's. */
int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept);

/* Whether an argument is of a type of the module, or None where that is allowed; else TypeError. */
int is_of_type(PyObject *object, PyTypeObject *type, int none_too, const char *argument);

/* Raises ValueError; returns -1. */
int refused(const char *reason);

#endif
