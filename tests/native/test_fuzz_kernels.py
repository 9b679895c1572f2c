"""Kernels on random lengths at random places, in place and not: the bits of the operators' table."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hpccoll import _native
from hpccoll.ops.table import Arithmetic
from hpccoll.transports.base import Array
from tests.support.fuzzing import TIMES, rounds
from tests.unit.test_kernels import COMPILED, OTHERS, bits, drawn, kernel_of, name_of

pytestmark = [
    pytest.mark.skipif(not _native.available(), reason=f"no extension: {_native.reason()}"),
    pytest.mark.timeout(60 * TIMES),
]

GUARD = 0xA5
MOST_OFFSET = 64  # bytes; a vector, a line
PLAIN = [one for one in OTHERS if one.working.fields is None and one.operator.ufunc is not None]


def placed(chance: random.Random, values: Array) -> tuple[Array, Array]:
    """A copy of the values somewhere in a line, and all the memory that it lies in."""
    step = values.dtype.alignment
    before, after = (step * chance.randrange(MOST_OFFSET // step + 1) for _ in range(2))
    memory = np.full(before + values.nbytes + after + 2 * MOST_OFFSET, GUARD, np.uint8)
    begin = before + -(memory.ctypes.data + before) % step
    inside = memory[begin : begin + values.nbytes].view(values.dtype)
    inside[:] = values
    return inside, memory


def length(chance: random.Random) -> int:
    return chance.choice((chance.randrange(1, 70), chance.randrange(70, 600), 4096 + chance.randrange(-2, 3)))


def check(one: Arithmetic, chance: random.Random) -> None:
    count, source = length(chance), np.random.default_rng(chance.getrandbits(32))
    given = [drawn(source, one.working, count) for _ in range(2)]
    wanted = np.empty_like(given[0])
    one.combine(*(values.copy() for values in given), wanted)
    (left, left_memory), (right, right_memory) = (placed(chance, values) for values in given)
    alias = chance.choice(("", "left", "right", "both"))
    if alias == "both":
        right, right_memory = left, left_memory
        one.combine(given[0].copy(), given[0].copy(), wanted)
    apart, memory = placed(chance, np.zeros_like(wanted))
    target = {"": apart, "right": right}.get(alias, left)
    memories = {id(each): each for each in (left_memory, right_memory, memory)}.values()
    kernel_of(one).combine(*(array.view(np.uint8) for array in (left, right, target)))
    text = f"{name_of(one)}, {count} elements, {alias or 'not'} in place"
    assert bits(target) == bits(wanted), text
    if target is not left:
        assert left.tobytes() == given[0].tobytes(), text
    if target is not right:
        assert right.tobytes() == (given[0] if alias == "both" else given[1]).tobytes(), text
    for array in (left, right, apart):
        array.view(np.uint8)[:] = GUARD
    assert all((each == GUARD).all() for each in memories), text


@pytest.mark.parametrize("kind", ["compiled", "by the table"])
def test_random_elements(kind: str) -> None:
    pairs = COMPILED if kind == "compiled" else PLAIN
    with np.errstate(all="ignore"):
        for number, chance in rounds(1200 if kind == "compiled" else 300, kind):
            check(pairs[number % len(pairs)], chance)


def test_lengths_that_do_not_go_together() -> None:
    kernels = [kernel_of(one) for one in COMPILED]
    for _, chance in rounds(500, "lengths"):
        kernel = chance.choice(kernels)
        sizes = [kernel.itemsize * chance.randrange(9) + chance.randrange(2) for _ in range(3)]
        left, right, target = (np.full(size, GUARD, np.uint8) for size in sizes)
        if len(set(sizes)) == 1 and sizes[0] % kernel.itemsize == 0:
            continue
        with pytest.raises(ValueError, match="equally many"):
            kernel.combine(left, right, target)
        assert (target == GUARD).all()
