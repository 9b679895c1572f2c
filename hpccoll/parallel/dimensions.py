"""The dimensions of a mesh: their names and sizes, and what is said of sizes that do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from hpccoll.errors import UsageError

# The usual order of their traffic, the heaviest first: what Narayanan et al. (2021) conclude for tensor,
# data and pipeline parallelism.  Context and expert groups exchange activations in every layer, as tensor
# groups do, but less.
HEAVIEST_FIRST = ("tensor", "context", "expert", "data", "pipeline")
TO_BE_FOUND = -1


def settle(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """The sizes with that of -1 filled in.

    Args:
        sizes: of each dimension, at least 1; one may be -1: what the others leave of `ranks`.
        ranks: how many there are.

    Raises:
        UsageError: a size below 1, more than one -1, or a product that is not `ranks`; it says which sizes
            fit.

    """
    for name, size in sizes.items():
        if size < 1 and size != TO_BE_FOUND:
            raise UsageError(f"{name} is {size}: must be at least 1, or -1 for what the others leave")
    open_ones = [name for name, size in sizes.items() if size == TO_BE_FOUND]
    if len(open_ones) > 1:
        raise UsageError(f"{' and '.join(open_ones)} are -1: only one dimension can be left to the others")
    known = prod(size for size in sizes.values() if size != TO_BE_FOUND)
    if open_ones and ranks % known == 0:
        return {name: ranks // known if size == TO_BE_FOUND else size for name, size in sizes.items()}
    if not open_ones and known == ranks:
        return dict(sizes)
    raise UsageError(f"{ranks} ranks are not {_product(sizes)} = {known}; {_what_fits(sizes, ranks)}")


def named(sizes: Mapping[str, int]) -> str:
    """The dimensions of more than one: "data 2 x tensor 4"."""
    return " x ".join(f"{name} {size}" for name, size in sizes.items() if size != 1) or "one rank"


def divisors(count: int) -> list[int]:
    """Ascending."""
    small = [one for one in range(1, int(count**0.5) + 1) if count % one == 0]
    return sorted({*small, *(count // one for one in small)})


def _product(sizes: Mapping[str, int]) -> str:
    given = [f"{name} {size}" for name, size in sizes.items() if size not in (1, TO_BE_FOUND)]
    return " x ".join(given) or "one rank"


def _what_fits(sizes: Mapping[str, int], ranks: int) -> str:
    """For each dimension the sizes that are right with the others as they are, where there are some."""
    open_one = TO_BE_FOUND in sizes.values()
    fits: list[str] = []
    for name, size in sizes.items():
        others = prod(other for key, other in sizes.items() if key != name and other != TO_BE_FOUND)
        if size == TO_BE_FOUND or ranks % others or (size == 1 and open_one):
            continue
        if size != 1 or not fits:  # of dimensions that are not used, one is named
            good = divisors(ranks // others) if open_one else [ranks // others]
            fits.append(f"{name} {' or '.join(map(str, good))}")
    if fits:
        return f"with the others as they are, {', or '.join(fits)} would fit"
    return f"sizes that divide {ranks} are {', '.join(map(str, divisors(ranks)))}"


def complete_order(order: Sequence[str]) -> tuple[str, ...]:
    """An order in which to lay dimensions on the machine: those not named follow in their usual order.

    Raises: UsageError for an unknown name, or one named twice.
    """
    if len(set(order)) != len(order) or not set(order) <= set(HEAVIEST_FIRST):
        raise UsageError(f"order is {tuple(order)}: must name some of {', '.join(HEAVIEST_FIRST)}, each once")
    return (*order, *(name for name in HEAVIEST_FIRST if name not in order))
