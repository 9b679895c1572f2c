"""Arguments of messages and neighbour calls on device arrays: elements in a row, and what MPI gets.

As with arrays on the host in mpi4py, what is contiguous travels as it lies in memory; beyond mpi4py, strided
arrays travel in C order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from mpi4py import MPI

from hpccoll.arrays.buffer import Buffer
from hpccoll.arrays.datatypes import datatype_of_elements
from hpccoll.arrays.device import DeviceArray, placed
from hpccoll.arrays.messages import array_of
from hpccoll.arrays.ragged import (
    Ragged,
    ragged_source,
    ragged_target,
    typed_source,
    typed_target,
)
from hpccoll.arrays.reading import memory_order, source, target
from hpccoll.errors import UsageError
from hpccoll.transports.base import Array


class Message(NamedTuple):
    """`buffer`: the elements; `spec`: mpi4py's list for memory that holds them; `arrived`: how many bytes of
    that memory a message has filled.
    """

    buffer: Buffer
    spec: Callable[[Array], list[Any]]
    arrived: Callable[[MPI.Status], int] | None = None


Read = Callable[[Any, str], Message]


@dataclass(frozen=True)
class Argument:
    """A buffer of a call, on a device or the host; `read` reads one on a device.

    `sends`: its elements are wanted before the call; `receives`: the call writes them.  `copied`: they must
    be elsewhere during the call.
    """

    spec: Any
    what: str
    read: Read
    sends: bool = False
    receives: bool = False
    copied: bool = False


def message_to_send(spec: Any, what: str) -> Message:
    """An argument that is sent as a whole.  Raises: as `arrays.reading.source`."""
    return _whole(source(spec, what, order=memory_order(spec)))


def message_to_receive(spec: Any, what: str) -> Message:
    """An argument that one message is received in.  Raises: as `arrays.reading.target`."""
    return _whole(target(spec, what, order=memory_order(spec)))


def message_to_replace(spec: Any, what: str) -> Message:
    """An argument that is sent, and that a message is received in."""
    return _whole(target(spec, what, order=memory_order(spec), fill=True))


def blocks_to_send(spec: Any, what: str, blocks: int) -> Message:
    """Equal blocks, one for each neighbour."""
    if not blocks:
        return _nothing(spec, what)
    return _blocks(source(spec, what, order=memory_order(spec), blocks=blocks), what, blocks)


def blocks_to_receive(spec: Any, what: str, blocks: int) -> Message:
    """Equal blocks, one of each neighbour; the present elements are in the buffer too."""
    if not blocks:
        return _nothing(spec, what)
    return _blocks(target(spec, what, order=memory_order(spec), blocks=blocks, fill=True), what, blocks)


def ragged_to_send(spec: Any, what: str, blocks: int) -> Message:
    """A block for each neighbour, with counts of their own."""
    if not blocks:
        return _nothing(spec, what, [])
    return _ragged(ragged_source(spec, what, blocks))


def ragged_to_receive(spec: Any, what: str, blocks: int) -> Message:
    """A block of each neighbour, with counts of their own."""
    if not blocks:
        return _nothing(spec, what, [])
    return _ragged(ragged_target(spec, what, blocks, fill=True))


def typed_to_send(spec: Any, what: str, blocks: int) -> Message:
    """A block for each neighbour, with datatypes of their own."""
    if not blocks:
        return _nothing(spec, what, ([], []), [])
    return _typed(typed_source(spec, what, blocks))


def typed_to_receive(spec: Any, what: str, blocks: int) -> Message:
    """A block of each neighbour, with datatypes of their own."""
    if not blocks:
        return _nothing(spec, what, ([], []), [])
    return _typed(typed_target(spec, what, blocks, fill=True))


def _whole(buffer: Buffer) -> Message:
    kind = _kind_of(buffer)
    extent = kind.extent

    def arrived(status: MPI.Status) -> int:
        # Pairs have gaps, which MPI does not count as bytes.
        if kind.size == extent:
            return status.Get_elements(MPI.BYTE)
        return max(0, status.Get_count(kind)) * extent

    return Message(buffer, lambda memory: [memory, kind], arrived)


def _blocks(buffer: Buffer, what: str, blocks: int) -> Message:
    kind = _kind_of(buffer)
    each, over = divmod(buffer.flat.size, blocks)
    if over:
        raise UsageError(
            f"{what} holds {buffer.flat.size} elements: must be a multiple of the {blocks} neighbours"
        )
    count = each * buffer.dtype.itemsize // kind.extent
    return Message(buffer, lambda memory: [memory, count, kind])


def _ragged(ragged: Ragged) -> Message:
    kind = _kind_of(ragged.buffer)
    of_element = ragged.buffer.dtype.itemsize // kind.extent
    counts = [count * of_element for count in ragged.counts]
    return Message(ragged.buffer, lambda memory: [memory, counts, kind])


def _typed(ragged: Ragged) -> Message:
    counts = list(ragged.counts)
    displs = [0, *accumulate(counts)][: len(counts)]
    kinds = [MPI.BYTE] * len(counts)
    return Message(ragged.buffer, lambda memory: [memory, (counts, displs), kinds])


def _nothing(spec: Any, what: str, counts: Any = 0, kind: Any = MPI.BYTE) -> Message:
    """For a rank without neighbours."""
    array = array_of(spec[0] if isinstance(spec, (list, tuple)) else spec, what)
    assert isinstance(array, DeviceArray)
    empty = placed(array.ctypes.data, 0, array.dtype, home=array.home)
    return Message(Buffer(empty, None), lambda memory: [memory, counts, kind])


def _kind_of(buffer: Buffer) -> MPI.Datatype:
    return datatype_of_elements(buffer.dtype) if buffer.datatype is None else buffer.datatype
