/* What one leader of a node says reaches all of them, in ceil(log2 N) rounds: runtime/agreement.py in C.
 *
 * In round k each leader sends all it has to the one 2^k nodes after it, and takes what the one 2^k before it has.
 * What is said is bytes; how many come, the sender decides. */

#ifndef HPCCOLL_SPREAD_H
#define HPCCOLL_SPREAD_H

#include "network.h"
#include "wait.h"

typedef struct {
    char *data;
    int64_t length, room;
} Bytes;

/* Room for `nbytes` more: where they go, or NULL (of memory there is not enough; nothing is raised). */
char *bytes_more(Bytes *bytes, int64_t nbytes);

typedef struct {
    PyObject_HEAD
    Network *network;
    int *leaders; /* rank of each node's */
    int64_t node, nodes, distance;
    int channel;
    Bytes said, coming; /* what this leader has; the message that is received */
    Request sending, receiving;
    int under_way;      /* how many of the two MPI has */
    enum { SEND_NEXT, PROBING, RECEIVING, SENDING } stage;
    atomic_flag busy;
    _Atomic int over;   /* all is said, or MPI has failed */
    int error;          /* MPI's code */
} Spread;

/* The spreading of `self->said`, which has been filled with what this leader says, begins. */
void spread_begin(Spread *self);
/* Moves on as far as it goes without waiting; whether it is over.  Without the GIL.  At the same time in another
 * thread it does nothing. */
int spread_pass(Spread *self);
/* The same again and again, at most so long; for `spin_s` it keeps the core. */
int spread_run(Spread *self, double seconds, double spin_s);
/* NULL with an error where the arguments are wrong. */
Spread *new_spread(PyTypeObject *type, Network *network, PyObject *leaders, int64_t node, int channel);

#endif
