"""Collectives for Python on clusters: your MPI communicator, with collectives that know the machine."""

from hpccoll._version import __version__ as __version__
from hpccoll.communicator import (
    CartCommunicator,
    Communicator,
    DistgraphCommunicator,
    GraphCommunicator,
)
from hpccoll.embedding import install
from hpccoll.errors import (
    AbortedError,
    CollectiveTimeoutError,
    HpccollError,
    IntegrityError,
    MismatchError,
    NotFiniteError,
    PeerLostError,
    ResourceError,
    TopologyError,
    UsageError,
    UsageTypeError,
)
from hpccoll.ops.table import AVG, accumulate, on_wire, scaled_sum
from hpccoll.overlap.buckets import GradientBuckets
from hpccoll.runtime.request import PersistentRequest, Request

__all__ = [
    "AVG",
    "AbortedError",
    "CartCommunicator",
    "CollectiveTimeoutError",
    "Communicator",
    "DistgraphCommunicator",
    "GradientBuckets",
    "GraphCommunicator",
    "HpccollError",
    "IntegrityError",
    "MismatchError",
    "NotFiniteError",
    "PeerLostError",
    "PersistentRequest",
    "Request",
    "ResourceError",
    "TopologyError",
    "UsageError",
    "UsageTypeError",
    "accumulate",
    "install",
    "on_wire",
    "scaled_sum",
]
