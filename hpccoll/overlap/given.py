"""What all ranks pass: read, compared, and brought into one order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpccoll.collectives.base import Base
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.overlap.agreement import Description, Key, agree, in_order, keyed, words_for
from hpccoll.overlap.grouping import Group
from hpccoll.overlap.memory import read
from hpccoll.transports.base import Array


@dataclass(frozen=True)
class Given:
    """Arrays in their agreed order: the caller's objects, and the same memory as arrays of NumPy's kind."""

    keys: Sequence[Key]
    things: Sequence[Any]
    arrays: Sequence[Array]
    by_key: bool

    def of(self, one: Group) -> tuple[list[Any], list[str], list[Array]]:
        """Objects, names and arrays of a bucket."""
        numbers = one.members
        names = [repr(self.keys[number]) for number in numbers]
        return [self.things[number] for number in numbers], names, [self.arrays[number] for number in numbers]


def agreed(comm: Any, arrays: Any, describe: Callable[[Mapping[Key, Array]], Mapping[str, Any]]) -> Given:
    """A list or a dict of arrays, once all ranks have passed the same.  Collective.

    `describe`: by name what else is to be the same on all ranks, of this rank's arrays; it raises what is
    wrong on this rank.

    Raises: UsageTypeError for a communicator that is none of ours; on all ranks UsageError, MismatchError.
    """
    if not isinstance(comm, Base):
        raise UsageTypeError(f"comm is {comm!r}: must be an hpccoll.Communicator")
    by_key = isinstance(arrays, Mapping)
    failure: Exception | None = None
    things: dict[Key, Any] = {}
    found: dict[Key, Array] = {}
    try:
        things = keyed(arrays)
        found = {key: read(thing, f"array {key!r}") for key, thing in things.items()}
        options = {**describe(found), "kind of arrays": "dict" if by_key else "list"}
        mine = Description(options, {repr(key): words_for(array) for key, array in found.items()})
    except Exception as error:  # whatever the caller's objects do when they are read: the others are waiting
        failure = error
        mine = Description(error=str(error) or type(error).__name__)
    try:
        agree(comm, mine)
    except UsageError as error:
        raise error from failure
    keys = in_order(comm, list(found), by_key)
    return Given(keys, [things[key] for key in keys], [found[key] for key in keys], by_key)
