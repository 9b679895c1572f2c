"""What all ranks pass is compared once: what differs is an error on all of them, which names it."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccoll.arrays.device import DeviceArray
from hpccoll.errors import MismatchError, UsageError, UsageTypeError
from hpccoll.topology.notation import format_ranks

if TYPE_CHECKING:
    from hpccoll.transports.base import Array

Key = int | str
_MOST_NAMED = 5


@dataclass(frozen=True)
class Description:
    """What one rank passes, in plain words and numbers.

    `options`: by name; `arrays`: by the text of the key a few words each (shape, dtype, where it lies).
    `error`: in place of both, what is wrong on this rank alone.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    error: str = ""

    def packed(self) -> bytes:
        """The same bytes for the same things, whatever the order of the keys."""
        parts = {"options": self.options, "arrays": self.arrays, "error": self.error}
        return json.dumps(parts, sort_keys=True).encode()


def agree(comm: Any, mine: Description) -> None:
    """Return when all ranks have passed the same.  Collective.

    Raises: UsageError where `error` is set on a rank, MismatchError where something differs; on all ranks.
    """
    packed = mine.packed()
    digest = np.frombuffer(hashlib.sha256(packed).digest() + len(packed).to_bytes(8, "little"), np.uint8)
    digests = np.empty((comm.size, digest.size), np.uint8)
    comm.Allgather(digest, digests)
    if (digests == digests[0]).all() and not mine.error:
        return
    lengths = [int.from_bytes(one[32:].tobytes(), "little") for one in digests]
    everything = np.empty(sum(lengths), np.uint8)
    comm.Allgatherv(np.frombuffer(packed, np.uint8), [everything, lengths])
    ends = np.cumsum(lengths)
    all_ = [
        Description(**json.loads(everything[end - length : end].tobytes()))
        for end, length in zip(ends, lengths, strict=True)
    ]
    for rank, one in enumerate(all_):
        if one.error:
            raise UsageError(f"on rank {rank}: {one.error}", rank=rank)
    raise MismatchError(difference(all_))


def difference(all_: Sequence[Description]) -> str:
    """In words, what differs between ranks: options, then keys, then what the arrays are."""
    names = sorted({name for one in all_ for name in one.options})
    for name in names:
        if said := _said([one.options.get(name) for one in all_]):
            return f"{name} differs between ranks: {said}"
    keys = sorted({key for one in all_ for key in one.arrays})
    having = {key: [rank for rank, one in enumerate(all_) if key in one.arrays] for key in keys}
    partial = [key for key in keys if len(having[key]) < len(all_)]
    if partial:
        named = "; ".join(f"array {key} only on {format_ranks(having[key])}" for key in partial[:_MOST_NAMED])
        return f"the arrays differ between ranks: {named}{_more(partial)}"
    differing = []
    for key in keys:
        for what in ("shape", "dtype", "place"):
            if said := _said([one.arrays[key].get(what) for one in all_]):
                differing.append(f"array {key} differs in {what}: {said}")
    return "; ".join(differing[:_MOST_NAMED]) + _more(differing)


def _more(found: Sequence[str]) -> str:
    rest = len(found) - _MOST_NAMED
    return f"; and {rest} more" if rest > 0 else ""


def _said(values: Sequence[Any]) -> str:
    """`(2, 3) on ranks 0, 2; (3, 2) on rank 1`, empty where all say the same."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, value in enumerate(values):
        ranks[str(tuple(value) if isinstance(value, list) else value)].append(rank)
    return (
        "" if len(ranks) < 2 else "; ".join(f"{text} on {format_ranks(who)}" for text, who in ranks.items())
    )


def in_order(comm: Any, keys: list[Key], by_key: bool) -> list[Key]:
    """Keys that all ranks have, in rank 0's order.  Collective."""
    if not by_key:
        return keys
    ordered = sorted(keys, key=repr)
    place = {key: number for number, key in enumerate(ordered)}
    order = np.array([place[key] for key in keys], np.int64)
    comm.Bcast(order, root=0)
    return [ordered[number] for number in order]


def words_for(array: Array) -> dict[str, Any]:
    """What all ranks must have alike of an array."""
    place = "a device" if isinstance(array, DeviceArray) else "the host"
    return {"shape": list(array.shape), "dtype": array.dtype.name, "place": place}


def keyed(arrays: Any) -> dict[Key, Any]:
    """The arrays by key: a mapping's own, or the place in a sequence.

    Raises: UsageTypeError for what is neither, and for keys that are no texts or integers.
    """
    if isinstance(arrays, Mapping):
        found = dict(arrays)
    elif isinstance(arrays, Sequence) and not isinstance(arrays, (str, bytes)):
        found = dict(enumerate(arrays))
    else:
        raise UsageTypeError(f"arrays is a {type(arrays).__name__}: must be a list or a dict of arrays")
    for key in found:
        if isinstance(key, bool) or not isinstance(key, (int, str)):
            raise UsageTypeError(f"arrays has the key {key!r}: keys must be texts or integers")
    if not found:
        raise UsageError("arrays is empty: there is nothing to reduce")
    return found
