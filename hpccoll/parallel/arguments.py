"""The arguments of a mesh: read on each rank, compared over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, NamedTuple

import numpy as np

from hpccoll.communicator import Communicator
from hpccoll.errors import MismatchError, UsageError, UsageTypeError
from hpccoll.parallel.dimensions import HEAVIEST_FIRST, complete_order
from hpccoll.parallel.traffic import Use, check_uses
from hpccoll.topology.notation import format_ranks, sides_of

MOST_AXES = 8
_UNREADABLE = -(1 << 40)


class Asked(NamedTuple):
    """The arguments that decide where ranks are, as numbers that can be compared."""

    sizes: dict[str, int]
    grid: tuple[int, ...]
    periods: tuple[bool, ...]
    order: tuple[str, ...]

    def as_numbers(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        pad = [0] * (MOST_AXES - len(self.grid))
        axes = [len(self.grid), *self.grid, *pad, *self.periods, *pad]
        order = [HEAVIEST_FIRST.index(name) for name in self.order]
        return np.array([*(self.sizes[name] for name in HEAVIEST_FIRST), *axes, *order], np.int64)

    def __str__(self) -> str:
        if self.grid:
            return f"grid {self.grid}, periods {self.periods}"
        sizes = (
            ", ".join(f"{name} {size}" for name, size in self.sizes.items() if size != 1) or "all of size 1"
        )
        return f"{sizes}, order {self.order}"


def read(
    sizes: dict[str, Any],
    grid: Sequence[int] | None,
    periods: Sequence[bool] | None,
    order: Sequence[str] | None,
    uses: Sequence[Use],
) -> Asked | UsageError:
    """The arguments, or what is wrong with them, which the others are then told."""
    try:
        check_uses(uses, () if grid is not None else HEAVIEST_FIRST)
        return _checked(sizes, grid, periods, order)
    except UsageError as error:
        return error
    except Exception as error:  # whatever the caller's objects do when they are read
        return UsageTypeError(f"an argument cannot be read: {type(error).__name__}: {error}")


def _checked(
    sizes: dict[str, Any],
    grid: Sequence[int] | None,
    periods: Sequence[bool] | None,
    order: Sequence[str] | None,
) -> Asked:
    numbers = {}
    for name, size in sizes.items():
        try:
            numbers[name] = index(size)
        except TypeError:
            raise UsageTypeError(f"{name} is {size!r}: must be a whole number") from None
        if not -(1 << 31) < numbers[name] < 1 << 31:
            raise UsageError(f"{name} is {size}: no machine has so many ranks")
    if grid is None:
        if periods is not None:
            raise UsageError("periods are those of a grid, and there is none")
        return Asked(numbers, (), (), complete_order(order or ()))
    shape = tuple(map(index, grid))
    if order is not None or any(size != 1 for size in numbers.values()):
        raise UsageError("a grid has no other dimensions, and no order")
    if not 1 <= len(shape) <= MOST_AXES:
        raise UsageError(f"grid has {len(shape)} axes: must be 1 to {MOST_AXES}")
    ends = (False,) * len(shape) if periods is None else tuple(map(bool, periods))
    if len(ends) != len(shape):
        raise UsageError(
            f"periods has {len(ends)} entries and grid {len(shape)}: both need one for each axis"
        )
    return Asked(numbers, shape, ends, HEAVIEST_FIRST)


def agreed(comm: Communicator, asked: Asked | UsageError) -> Asked:
    """What all ranks ask for.  Raises: UsageError, MismatchError on all ranks."""
    width = len(HEAVIEST_FIRST) * 2 + 1 + 2 * MOST_AXES
    mine = np.full(width, _UNREADABLE) if isinstance(asked, UsageError) else asked.as_numbers()
    every = np.empty((comm.size, width), np.int64)
    comm.Allgather(mine, every)
    if isinstance(asked, UsageError):
        raise asked
    wrong = np.flatnonzero(every[:, 0] == _UNREADABLE).tolist()
    if wrong:
        raise UsageError(f"{format_ranks(wrong)} passed wrong arguments to Mesh", rank=comm.rank)
    if (every != every[0]).any():
        raise MismatchError(
            in_sides("ranks ask for different meshes", [str(_of_numbers(one)) for one in every])
        )
    return asked


def _of_numbers(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Asked:
    values = numbers.tolist()
    count = len(HEAVIEST_FIRST)
    sizes = dict(zip(HEAVIEST_FIRST, values, strict=False))
    axes = values[count]
    grid = tuple(values[count + 1 : count + 1 + axes])
    periods = tuple(map(bool, values[count + 1 + MOST_AXES : count + 1 + MOST_AXES + axes]))
    return Asked(sizes, grid, periods, tuple(HEAVIEST_FIRST[one] for one in values[-count:]))


def in_sides(what: str, words: Sequence[str]) -> str:
    """Which ranks say the same; `words`: of every rank."""
    return f"{what}: " + "; ".join(
        f"{format_ranks(ranks)}: {text}" for text, ranks in sides_of(words).items()
    )
