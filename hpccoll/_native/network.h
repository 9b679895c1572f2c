/* Messages between ranks through the functions of the MPI library that mpi4py has loaded. */

#ifndef HPCCOLL_NETWORK_H
#define HPCCOLL_NETWORK_H

#include "module.h"

#include <stdint.h>

/* Handles are passed as wide as a pointer: where they are ints (MPICH), the callee reads the lower half
 * of the register, on x86-64 and AArch64 alike. */
typedef intptr_t Handle;

/* Long enough for a request or a status of any MPI; what is there is MPI's. */
typedef union {
    int as_int;
    void *as_pointer;
    uint64_t word;
} Request;

typedef struct {
    PyObject_HEAD
    int (*isend)(const void *, int, Handle, int, int, Handle, Request *);
    int (*irecv)(void *, int, Handle, int, int, Handle, Request *);
    int (*test)(Request *, int *, void *);
    int (*iprobe)(int, int, Handle, int *, void *);
    int (*get_count)(const void *, Handle, int *);
    Handle comm;
    Handle byte;
    int any_source;
    int idle_channel;
} Network;

/* Each returns MPI's error code, 0 for none. */
int network_send(Network *self, int peer, const char *data, int nbytes, int channel, Request *request);
int network_receive(Network *self, int peer, char *data, int nbytes, int channel, Request *request);
int network_test(Network *self, Request *request, int *done);
/* Whether a message of a peer is there, and its bytes. */
int network_probe(Network *self, int peer, int channel, int *found, int *nbytes);
/* Lets MPI move on with other messages of this process. */
int network_progress(Network *self);
/* Raises mpi4py's exception for an error code; returns NULL. */
PyObject *network_raise(int error);

#endif
