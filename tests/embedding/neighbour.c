/* A library that takes communicators as others do: from C by address, from Fortran by number, and as mpi4py's
   objects (PETSc and h5py do that). */

#include <Python.h>
#include <mpi.h>
#include <mpi4py/mpi4py.h>

/* The sum of all ranks' `mine`. */
int neighbour_sum(MPI_Comm *comm, double mine, double *sum)
{
    return MPI_Allreduce(&mine, sum, 1, MPI_DOUBLE, MPI_SUM, *comm);
}

/* As Fortran calls it: everything by reference. */
void neighbour_sum_(MPI_Fint *comm, double *mine, double *sum, int *error)
{
    MPI_Comm handle = MPI_Comm_f2c(*comm);
    *error = neighbour_sum(&handle, *mine, sum);
}

/* sum(comm, mine): mpi4py says what handle is in an object, of a class derived from its own too. */
static PyObject *of_object(PyObject *module, PyObject *args)
{
    PyObject *object;
    double mine, sum;
    if (!PyArg_ParseTuple(args, "Od", &object, &mine))
        return NULL;
    MPI_Comm *comm = PyMPIComm_Get(object);
    if (comm == NULL)
        return NULL;
    if (neighbour_sum(comm, mine, &sum) != MPI_SUCCESS)
        return PyErr_Format(PyExc_RuntimeError, "MPI_Allreduce failed");
    return PyFloat_FromDouble(sum);
}

static PyMethodDef functions[] = {{"sum", of_object, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "neighbour", NULL, -1, functions, 0, 0, 0, 0};

PyMODINIT_FUNC PyInit_neighbour(void)
{
    if (import_mpi4py() < 0)
        return NULL;
    return PyModule_Create(&definition);
}
