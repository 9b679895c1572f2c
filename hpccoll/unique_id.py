"""The unique id of a NCCL communicator: 128 bytes that the first rank of its group makes and all others get.

An id serves one communicator: each has a fresh one.  Bindings show it as bytes or as a tuple of C chars,
which are signed on some processors and unsigned on others; here it is always bytes.

The ranks of a group exchange messages that cannot fail halfway::

    every rank    message = offer(rank, make)          an id, nothing, or what went wrong here
                  messages = ... gathered from all, in rank order of the group ...
                  unique_id = accept(messages)         the same on every rank, or the same error on every rank
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpccoll.errors import ResourceError, UsageError, UsageTypeError

__all__ = ["ID_BYTES", "accept", "offer", "pack", "signed"]

ID_BYTES = 128

_ID, _NOTHING, _FAILURE = b"i", b"n", b"f"

UniqueId = bytes | bytearray | memoryview | Sequence[int]


def pack(unique_id: UniqueId) -> bytes:
    """An id as bytes, whatever a binding gave: bytes, or numbers from -128 to 255.

    Raises:
        UsageTypeError: it is neither.
        UsageError: it is not `ID_BYTES` long, or a number is no char.

    """
    if isinstance(unique_id, (bytes, bytearray, memoryview)):
        packed = bytes(unique_id)
    else:
        try:
            numbers = [int(number) for number in unique_id]
        except (TypeError, ValueError):
            raise UsageTypeError(f"a unique id is bytes or numbers, not {type(unique_id).__name__}") from None
        if wrong := [number for number in numbers if not -128 <= number <= 255]:
            raise UsageError(f"a unique id holds {wrong[0]}: must be a char, -128 to 255")
        packed = bytes(number % 256 for number in numbers)
    if len(packed) != ID_BYTES:
        raise UsageError(f"a unique id has {len(packed)} bytes: must be {ID_BYTES}")
    return packed


def signed(packed: bytes) -> tuple[int, ...]:
    """The bytes of an id as numbers from -128 to 127, as bindings with signed chars take it."""
    return tuple(byte - 256 if byte > 127 else byte for byte in pack(packed))


def offer(rank: int, make: Callable[[], UniqueId], check: Callable[[], object] | None = None) -> bytes:
    """What a rank puts into the exchange for one communicator.  Never raises: a failure is its message.

    Args:
        rank: in the group that the communicator is for.
        make: asks NCCL for a fresh id; called on rank 0 only, once.
        check: called on every rank: what would hinder this one from joining raises.

    """
    try:
        if check is not None:
            check()
        return _ID + pack(make()) if rank == 0 else _NOTHING
    except Exception as error:
        # Whatever NCCL's bindings raise: the other ranks are waiting for this message.
        return _FAILURE + f"{type(error).__name__}: {error}".encode()


def accept(messages: Sequence[bytes]) -> bytes:
    """The id that all ranks of the group use, from the messages of all in rank order.

    Raises: ResourceError, the same on every rank, that names each rank whose offer was a failure.
    """
    failures = [(rank, message[1:]) for rank, message in enumerate(messages) if message[:1] == _FAILURE]
    if failures:
        raise ResourceError(
            "no NCCL communicator: "
            + "; ".join(f"rank {rank}: {text.decode(errors='replace')}" for rank, text in failures),
            suspects=[rank for rank, _ in failures],
        )
    if not messages or messages[0][:1] != _ID:
        raise ResourceError("no NCCL communicator: rank 0 of the group offered no unique id", suspects=[0])
    return pack(messages[0][1:])
