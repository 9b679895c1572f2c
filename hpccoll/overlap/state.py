"""The same arrays on all ranks: what data-parallel programs begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpccoll.arrays.device import DeviceArray
from hpccoll.collectives.base import Base
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.overlap.agreement import Description, agree, in_order, keyed, words_for
from hpccoll.overlap.grouping import group
from hpccoll.overlap.memory import DeviceMemory, HostMemory, is_one_run, member_of, read

BUCKET_BYTES = 4 << 20  # of arrays that are copied together; longer ones travel as they are


def broadcast(comm: Base, arrays: Sequence[Any] | Mapping[Any, Any], root: int = 0) -> None:
    """Copy `root`'s arrays to all ranks, in place: weights and state before the first step.

    Collective.  All ranks pass as many arrays, or the same keys, of the same shapes and dtypes, as for
    `GradientBuckets`; arrays of the host and on a device may be mixed.  Small arrays travel together.

    Raises: UsageError, MismatchError on all ranks, naming what is wrong or differs.
    """
    if not isinstance(comm, Base):
        raise UsageTypeError(f"comm is {comm!r}: must be an hpccoll.Communicator")
    failure: Exception | None = None
    try:
        things = keyed(arrays)
        found = {key: read(thing, f"array {key!r}") for key, thing in things.items()}
        if not isinstance(root, (int, np.integer)) or not 0 <= root < comm.size:
            raise UsageError(f"root is {root!r}: must be a rank, 0 to {comm.size - 1}")
        kind = "dict" if isinstance(arrays, Mapping) else "list"
        mine = Description(
            {"root": int(root), "kind of arrays": kind},
            {repr(key): words_for(array) for key, array in found.items()},
        )
    except Exception as error:
        failure = error
        mine = Description(error=str(error) or type(error).__name__)
    try:
        agree(comm, mine)
    except UsageError as error:
        raise error from failure
    keys = in_order(comm, list(found), isinstance(arrays, Mapping))
    for on_device in (False, True):
        chosen = [key for key in keys if isinstance(found[key], DeviceArray) is on_device]
        for one in group([member_of(found[key]) for key in chosen], BUCKET_BYTES):
            members = [chosen[number] for number in one.members]
            names = [repr(key) for key in members]
            mine_ = [things[key] for key in members]
            read_ = [found[key] for key in members]
            if on_device:
                memory: DeviceMemory | HostMemory = DeviceMemory(one, mine_, names, read_)
            else:
                direct = is_one_run(read_)
                memory = HostMemory(
                    one, mine_, names, read_, None if direct else np.empty(one.count, one.dtype)
                )
            for place in range(len(members)):
                memory.put(place)
            if isinstance(memory, DeviceMemory):
                memory.gather()
            comm.Bcast(memory.buffer, root=root)
            memory.deliver()
            if isinstance(memory, DeviceMemory):
                memory.close()
