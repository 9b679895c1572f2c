"""MINLOC and MAXLOC: pairs of a value and an index, as structured dtypes of two fields.

mpi4py gives the pairs of MPI such a dtype (MPI.DOUBLE_INT is "f8,i4" with gaps as in C); here the value may
be any real number of the table and the index any integer.  Of equal values the lowest index wins.  NaN
wins over every number, of several NaN the one of the lowest index: so the answer does not depend on the order
in which elements are combined, as it does in MPI.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

from hpccoll.dtypes import row_of
from hpccoll.transports.base import Array, Combine

TAKES = "pairs of a real number and an integer index, such as those of MPI.DOUBLE_INT"
_REALS = ("int", "uint", "float")
_INTEGERS = ("int", "uint")


def is_pair(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is a value and an index, in this order, each in its own bytes."""
    if dtype.fields is None or dtype.names is None or len(dtype.names) != 2:
        return False
    (value, first, *_), (index, second, *_) = map(dtype.fields.__getitem__, dtype.names)
    kinds = [row.kind if (row := row_of(field)) is not None else "" for field in (value, index)]
    apart = first + value.itemsize <= second or second + index.itemsize <= first
    return kinds[0] in _REALS and kinds[1] in _INTEGERS and apart


@lru_cache(maxsize=1)
def predefined() -> dict[np.dtype[Any], MPI.Datatype]:
    """MPI's own pairs by the dtype that mpi4py gives them."""
    kinds = (MPI.SHORT_INT, MPI.INT_INT, MPI.LONG_INT, MPI.FLOAT_INT, MPI.DOUBLE_INT, MPI.LONG_DOUBLE_INT)
    return {dtlib.to_numpy_dtype(kind): kind for kind in kinds if kind != MPI.DATATYPE_NULL}


def combiner(dtype: np.dtype[Any], *, largest: bool) -> Combine:
    """Element by element the pair that wins; bytes between the fields stay as they are."""
    value, index = dtype.names or ("", "")
    row = row_of(dtype[value])
    may_be_nan = row is not None and row.kind == "float"

    def combine(left: Array, right: Array, target: Array) -> None:
        ours, theirs = left[value], right[value]
        with np.errstate(invalid="ignore"):
            beats = theirs > ours if largest else theirs < ours
            equal = theirs == ours
        if may_be_nan:
            ours_nan, theirs_nan = np.isnan(ours), np.isnan(theirs)
            beats |= theirs_nan & ~ours_nan
            equal |= theirs_nan & ours_nan
        beats |= equal & (right[index] < left[index])
        for name in (value, index):
            target[name] = np.where(beats, right[name], left[name])

    return combine
