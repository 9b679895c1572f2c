"""The same arrays on all ranks: what data-parallel programs begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpccoll.arrays.device import DeviceArray
from hpccoll.collectives.base import Base
from hpccoll.errors import UsageError
from hpccoll.overlap.given import agreed
from hpccoll.overlap.grouping import group
from hpccoll.overlap.memory import DeviceMemory, HostMemory, is_one_run, member_of

BUCKET_BYTES = 4 << 20  # of arrays that are copied together; longer ones travel as they are


def broadcast(comm: Base, arrays: Sequence[Any] | Mapping[Any, Any], root: int = 0) -> None:
    """Copy `root`'s arrays to all ranks, in place: weights and state before the first step.

    Collective.  All ranks pass as many arrays, or the same keys, of the same shapes and dtypes, as for
    `GradientBuckets`; arrays of the host and on a device may be mixed.  Small arrays travel together.

    Raises: UsageError, MismatchError on all ranks, naming what is wrong or differs.
    """

    def described(found: Mapping[Any, Any]) -> dict[str, Any]:
        if not isinstance(root, (int, np.integer)) or not 0 <= root < comm.size:
            raise UsageError(f"root is {root!r}: must be a rank, 0 to {comm.size - 1}")
        return {"root": int(root)}

    given = agreed(comm, arrays, described)
    for on_device in (False, True):
        chosen = [
            number for number, array in enumerate(given.arrays) if isinstance(array, DeviceArray) is on_device
        ]
        for part in group([member_of(given.arrays[number]) for number in chosen], BUCKET_BYTES):
            one = replace(part, members=tuple(chosen[number] for number in part.members))
            things, names, of_bucket = given.of(one)
            if on_device:
                memory: DeviceMemory | HostMemory = DeviceMemory(one, things, names, of_bucket)
            else:
                flat = None if is_one_run(of_bucket) else np.empty(one.count, one.dtype)
                memory = HostMemory(one, things, names, of_bucket, flat)
            for place in range(len(things)):
                memory.put(place)
            memory.gather()
            comm.Bcast(memory.buffer, root=root)
            memory.deliver()
            memory.close()
