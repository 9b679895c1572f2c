/* What the engine's files call of Python when something goes wrong, or for a kernel that is a function of Python: here the
 * end of the process. */

#include <stdio.h>
#include <stdlib.h>

void *PyExc_ValueError, *_Py_NoneStruct;

_Noreturn static void
never(const char *what)
{
    fprintf(stderr, "this needs Python: %s\n", what);
    _Exit(1);
}

int refused(const char *reason);

int
refused(const char *reason)
{
    never(reason);
}

#define NEVER(name)                                                                                        \
    void name(void);                                                                                       \
    void name(void)                                                                                        \
    {                                                                                                      \
        never(#name);                                                                                      \
    }

NEVER(_Py_Dealloc)
NEVER(ring_put) /* nothing is observed */
NEVER(PyErr_Fetch)
NEVER(PyErr_GetRaisedException)
NEVER(PyErr_NoMemory)
NEVER(PyErr_NormalizeException)
NEVER(PyErr_SetString)
NEVER(PyException_SetTraceback)
NEVER(PyGILState_Ensure)
NEVER(PyGILState_Release)
NEVER(PyMemoryView_FromMemory)
NEVER(PyObject_CallFunctionObjArgs)
