"""MPI datatypes as NumPy dtypes: what a caller's datatype says about the elements in a buffer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

from hpccoll.errors import UsageTypeError

_dtype_of_handle: dict[int, np.dtype[Any]] = {}  # predefined types keep theirs as long as MPI runs


class OwnDatatype(MPI.Datatype):
    """A datatype of ours, freed with the last reference to it.

    The caller may free the type it was made of as soon as the call has begun, as in MPI.
    """

    def __del__(
        self, exiting: Callable[[], bool] = sys.is_finalizing, ended: Callable[[], bool] = MPI.Is_finalized
    ) -> None:
        if not exiting() and not ended() and self != MPI.DATATYPE_NULL:
            self.Free()


def datatype_of(kind: MPI.Datatype | str, what: str) -> MPI.Datatype:
    """The MPI datatype that a caller named, or passed.

    Raises: UsageTypeError for an unknown name and for MPI.DATATYPE_NULL.
    """
    try:
        datatype = MPI.Datatype.fromcode(kind) if isinstance(kind, str) else kind
    except (KeyError, ValueError):
        datatype = MPI.DATATYPE_NULL
    if datatype == MPI.DATATYPE_NULL:
        shown = repr(kind) if isinstance(kind, str) else "MPI.DATATYPE_NULL"
        raise UsageTypeError(f"{what} has type {shown}: must be an MPI datatype, or mpi4py's code of one")
    return datatype


def predefined_dtype(datatype: MPI.Datatype) -> np.dtype[Any] | None:
    """The dtype of a datatype that MPI has; None for one that the program made.

    Those that NumPy has nothing for become bytes without meaning, of their size: they can be moved.
    """
    handle = datatype.handle
    found = _dtype_of_handle.get(handle)
    if found is None and datatype.is_predefined:
        found = _dtype_of_handle[handle] = _dtype_of_predefined(datatype)
    return found


def _dtype_of_predefined(datatype: MPI.Datatype) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = dtlib.to_numpy_dtype(datatype)
    except (ValueError, KeyError):
        found = np.dtype(f"V{datatype.extent}")
    if found.kind == "U":  # of a wide character mpi4py knows the kind, not the size
        found = np.dtype("U1")
    return found if found.itemsize == datatype.extent else np.dtype(f"V{datatype.extent}")


def datatype_of_elements(dtype: np.dtype[Any]) -> MPI.Datatype:
    """MPI's datatype of elements that MPI has as numbers; MPI.BYTE, some of them, for all others."""
    if dtype.kind not in "biufc" or not dtype.isnative:
        return MPI.BYTE
    try:
        found = MPI.Datatype.fromcode(dtype.char)
    except (KeyError, ValueError):
        return MPI.BYTE
    return found if found != MPI.DATATYPE_NULL and found.extent == dtype.itemsize else MPI.BYTE


def element_dtype(datatype: MPI.Datatype) -> np.dtype[Any] | None:
    """The dtype that all elements of a datatype have, None when they differ."""
    found = predefined_dtype(datatype)
    if found is not None:
        return found
    *_, parts = datatype.Get_contents()
    kinds = {element_dtype(part) for part in parts}
    for part in parts:
        if not part.is_predefined:
            part.Free()
    return kinds.pop() if len(kinds) == 1 else None


def packed_dtype(element: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of an element as MPI packs it: the pairs of MINLOC and MAXLOC lose their gaps."""
    if element.names is None or element.fields is None:
        return element
    return np.dtype([(name, element.fields[name][0]) for name in element.names])
