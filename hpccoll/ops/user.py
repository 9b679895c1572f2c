"""Operators that the caller made with MPI.Op.Create, applied to elements in our memory.

They are applied by MPI_Reduce_local: the function gets both operands, as many elements as one combination of
a plan has (often a part of the buffer, as in MPI), and an MPI datatype.  As in mpi4py, an exception in
the function ends the job.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.dtypes import row_of
from hpccoll.errors import UsageTypeError
from hpccoll.ops.value_index import predefined
from hpccoll.transports.base import Array, Combine


def combiner(function: MPI.Op, dtype: np.dtype[Any], datatype: MPI.Datatype | None) -> Combine:
    """How the operator combines elements of a dtype.

    `datatype`: what the caller passed, if anything.  Elements of a derived one are as MPI packs them, one
    item for each element; the function gets the items as they lie in memory.

    Raises: UsageTypeError for a dtype that MPI has no type for, and a datatype of another size.
    """
    if datatype is None:
        datatype = _datatype_of(dtype)
    packed = not datatype.is_predefined
    size = datatype.Get_size() if packed else datatype.extent
    if size != dtype.itemsize:
        raise UsageTypeError(
            f"the operator is to combine elements of {dtype.itemsize} bytes (dtype {dtype}) "
            f"as items of {size} bytes ({datatype.Get_name() or 'a derived datatype'})"
        )
    return _of_packed(function, datatype) if packed else _in_memory(function, datatype)


def _datatype_of(dtype: np.dtype[Any]) -> MPI.Datatype:
    """MPI's type for elements of a dtype."""
    if dtype.isbuiltin == 1 and row_of(dtype) is not None:
        found = _datatype_of_code(dtype.char)
    else:
        found = predefined().get(dtype, MPI.DATATYPE_NULL)
    if found == MPI.DATATYPE_NULL:
        raise UsageTypeError(
            f"MPI has no type for dtype {dtype}, which the function of a user operator gets: "
            "pass [buffer, count, datatype]"
        )
    return found


@lru_cache(maxsize=64)
def _datatype_of_code(char: str) -> MPI.Datatype:
    # By the code, not by the dtype: long and long long are equal to NumPy, but two types to MPI.
    try:
        return MPI.Datatype.fromcode(char)
    except (KeyError, ValueError, NotImplementedError):
        return MPI.DATATYPE_NULL


def _in_memory(function: MPI.Op, datatype: MPI.Datatype) -> Combine:
    def apply(left: Array, right: Array) -> None:
        # right = left (op) right, as MPI has it.
        count = left.size
        function.Reduce_local([left.view(np.uint8), count, datatype], [right.view(np.uint8), count, datatype])

    def combine(left: Array, right: Array, target: Array) -> None:
        if left.size == 0:
            return
        if np.may_share_memory(left, target):
            result = right.copy()
            apply(left, result)
            target[...] = result
        else:
            if not np.may_share_memory(right, target):
                target[...] = right
            apply(left, target)

    return combine


def _of_packed(function: MPI.Op, datatype: MPI.Datatype) -> Combine:
    first, length = datatype.Get_true_extent()
    extent = datatype.extent

    def items(elements: Array) -> Array:
        memory = np.zeros((elements.size - 1) * extent + max(extent, first + length), np.uint8)
        datatype.Unpack(elements.view(np.uint8), 0, memory[: elements.size * extent], MPI.COMM_SELF)
        return memory

    def combine(left: Array, right: Array, target: Array) -> None:
        if left.size == 0:
            return
        one, other = items(left), items(right)
        function.Reduce_local([one, left.size, datatype], [other, left.size, datatype])
        datatype.Pack(other[: left.size * extent], target.view(np.uint8), 0, MPI.COMM_SELF)

    return combine
