"""A method for every collective: blocking, non-blocking, persistent; and the state they stand on."""

from hpccoll.collectives.blocking import Blocking
from hpccoll.collectives.neighbours import Neighbours
from hpccoll.collectives.nonblocking import NonBlocking
from hpccoll.collectives.persistent import Persistent
from hpccoll.collectives.point_to_point import PointToPoint

__all__ = ["Collectives", "Neighbours"]


class Collectives(Blocking, NonBlocking, Persistent, PointToPoint):
    """Collectives in levels, for a subclass of an MPI intracommunicator.

    The first use of a collective (or of `machine` and what is read from it) sets up the communicator and is
    itself collective.  Instances that MPI made without `__init__` (Dup, unpickling) work alike.  Messages and
    calls between neighbours are MPI's own, and also take arrays on devices.  The lower-case methods, which
    pickle, are MPI's own, inherited.
    """
