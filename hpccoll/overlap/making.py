"""From the arrays of all ranks to buckets: read, agreed on, dealt out, given memory."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.device import DeviceArray
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.ops.gradients import check as check_kernels
from hpccoll.ops.table import AVG
from hpccoll.overlap.agreement import Key
from hpccoll.overlap.bucket import Bucket, DeviceBucket, HostBucket
from hpccoll.overlap.given import Given, agreed
from hpccoll.overlap.grouping import Group, Member, group, last_size, smallest_efficient
from hpccoll.overlap.memory import DeviceMemory, HostMemory, host_buffers, is_one_run, member_of, read
from hpccoll.overlap.short import short_dtype
from hpccoll.transports.base import Array

DEVICE_BUCKET_BYTES = 25 << 20  # where no price is known: what torch's DDP takes


@dataclass(frozen=True)
class Options:
    """As `GradientBuckets` takes them."""

    average: bool
    bucket_bytes: int | None
    check_finite: bool
    dtype_on_wire: Any
    uneven: bool
    unused: str
    views: bool

    @property
    def op(self) -> Any:
        return AVG if self.average else MPI.SUM


@dataclass(frozen=True)
class Made:
    """Buckets; the keys in their agreed order, and the arrays that results come to, as the caller passed
    them.
    """

    keys: list[Key]
    arrays: Any
    buckets: list[Bucket]
    bucket_bytes: int


def make(comm: Any, arrays: Any, options: Options) -> Made:
    """Collective.  Raises as `GradientBuckets`."""
    given = agreed(comm, arrays, lambda found: _described(found, options))
    short = None if options.dtype_on_wire is None else short_dtype(options.dtype_on_wire)
    bucket_bytes = options.bucket_bytes
    on_device = isinstance(given.arrays[0], DeviceArray)
    members = [member_of(array) for array in given.arrays]
    if bucket_bytes is None:
        bucket_bytes = DEVICE_BUCKET_BYTES if on_device else _price_size(comm, members, options.op)
    groups = group(members, bucket_bytes, last_size(bucket_bytes))
    buckets: list[Bucket] = []
    if on_device:
        for one in groups:
            buckets.append(DeviceBucket(comm, _on_device(comm, one, given, options.views), options.op, short))
    else:
        for memory in _on_host(comm, groups, given, options.views):
            buckets.append(HostBucket(comm, memory, options.op, short))
    delivered = {
        given.keys[number]: thing
        for bucket in buckets
        for number, thing in zip(bucket.memory.group.members, bucket.memory.things, strict=True)
    }
    ordered = {key: delivered[key] for key in given.keys}
    arrays = ordered if given.by_key else list(ordered.values())
    return Made(list(given.keys), arrays, buckets, int(bucket_bytes))


def _described(found: Mapping[Key, Array], options: Options) -> dict[str, Any]:
    """What all ranks must have alike of the options.  Raises what is wrong with them on this rank."""
    bytes_ = None if options.bucket_bytes is None else _at_least_one(options.bucket_bytes)
    short = None if options.dtype_on_wire is None else short_dtype(options.dtype_on_wire)
    _check(found, options)
    return {
        "average": bool(options.average),
        "bucket_bytes": bytes_,
        "check_finite": bool(options.check_finite),
        "dtype_on_wire": None if short is None else short.name,
        "uneven": bool(options.uneven),
        "unused": options.unused,
        "views": bool(options.views),
    }


def _check(found: Mapping[Key, Array], options: Options) -> None:
    if options.unused not in ("error", "zero"):
        raise UsageError(f'unused is {options.unused!r}: must be "error" or "zero"')
    places = {isinstance(array, DeviceArray) for array in found.values()}
    if len(places) > 1:
        raise UsageTypeError("arrays are on a device and on the host: must all be in one place")
    if True in places and (options.dtype_on_wire or options.check_finite or options.uneven):
        for array in found.values():
            check_kernels(array.dtype)
    if options.uneven and options.average:
        for key, array in found.items():
            if array.dtype.kind in "iub":
                raise UsageTypeError(f"uneven: array {key!r} of {array.dtype} has no exact averages")


def _at_least_one(value: Any) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        raise UsageTypeError(f"bucket_bytes is {value!r}: must be a number of bytes") from None
    if found < 1:
        raise UsageError(f"bucket_bytes is {value!r}: must be at least 1")
    return found


def _price_size(comm: Any, members: Sequence[Member], op: Any) -> int:
    """The size of a bucket by the predicted times of the dtype that most of the bytes have."""
    of_dtype: dict[np.dtype[Any], int] = {}
    for one in members:
        of_dtype[one.dtype] = of_dtype.get(one.dtype, 0) + one.nbytes
    most = max(of_dtype, key=lambda dtype: (of_dtype[dtype], dtype.name))

    def time_s(nbytes: int) -> float:
        return float(comm.explain("allreduce", nbytes, dtype=most, op=op).candidates[0].time_s)

    return smallest_efficient(time_s)


def _on_host(comm: Any, groups: Sequence[Group], given: Given, views: bool) -> list[HostMemory]:
    wanted = [views or not is_one_run(given.of(one)[2]) for one in groups]
    memories = []
    for one, buffer in zip(groups, host_buffers(comm, groups, wanted), strict=True):
        things, names, arrays = given.of(one)
        memory = HostMemory(one, things, names, arrays, buffer)
        if views:
            for place in range(len(arrays)):
                memory.put(place)
            memory = HostMemory(one, memory.views, names, memory.views, None)
        memories.append(memory)
    return memories


def _on_device(comm: Any, one: Group, given: Given, views: bool) -> DeviceMemory:
    things, names, arrays = given.of(one)
    if not views:
        return DeviceMemory(one, things, names, arrays)
    flat = comm.empty(one.count, one.dtype, device="cuda")
    memory = DeviceMemory(one, things, names, arrays, flat)
    for place in range(len(arrays)):
        memory.put(place)
    cut = [
        flat[start : start + array.size].reshape(array.shape)
        for start, array in zip(one.starts, arrays, strict=True)
    ]
    made = DeviceMemory(one, cut, names, [read(view, "a view") for view in cut])
    memory.order(made.stream)
    memory.close()
    return made
