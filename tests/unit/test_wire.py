"""How float32 travels between nodes: the rounding of NumPy's code, of C's, and of the types themselves."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from hpccoll import _native
from hpccoll.ops.wire import CARRIED, ON_WIRE, WIRES
from hpccoll.plans.program import Copy, Memory, Place, Program
from hpccoll.runtime import engine
from hpccoll.runtime.executor import Schedule
from hpccoll.transports.base import Array

TYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def samples(name: str) -> Array:
    """Every number of the type, what lies around it and in the middle between two; all kinds of others."""
    every = np.arange(1 << 16, dtype=np.uint16).view(TYPES[name]).astype(CARRIED)
    bits = every.view(np.uint32)
    near = [(bits + np.uint32(step & 0xFFFFFFFF)).view(CARRIED) for step in (0, 1, -1)]
    half = np.uint32(1 << (15 if name == "bfloat16" else 12))
    middle = [(bits + half + np.uint32(step & 0xFFFFFFFF)).view(CARRIED) for step in (0, 1, -1)]
    chance = np.random.default_rng(5).integers(0, 1 << 32, 100_003, np.uint32).view(CARRIED)
    edges = np.array([65504, 65519.996, 65520, 65536, 1e30, 2**-24, 2**-25, 2**-26, 0, -0.0], CARRIED)
    return np.concatenate([*near, *middle, chance, edges, -edges])


def by_numpy(name: str, values: Array) -> tuple[Array, Array]:
    """What travels, and what arrives."""
    wire = WIRES[name]
    travels = np.empty(values.size, ON_WIRE)
    wire.round(values, travels)
    return travels, wire.widen(travels)


def by_engine(name: str, values: Array) -> tuple[Array, Array]:
    count = values.size
    inside, outside = Place(Memory.INPUT, 0, count), Place(Memory.OUTPUT, 0, count)
    between = Place(Memory.WIRE, 0, count)
    program = Program(0, (Copy(0, (), inside, between), Copy(0, (0,), between, outside)), 0, count)
    travels, arrives = np.empty(count, ON_WIRE), np.empty(count, CARRIED)
    memory = (values, arrives, values[:0], travels)
    execution = engine.NativeExecution(Schedule(program), memory, None, None, None, 0, 1, name)
    assert execution.run(10)
    return travels, arrives


WAYS = [
    by_numpy,
    pytest.param(by_engine, marks=pytest.mark.skipif(not _native.available(), reason=_native.reason())),
]
Way = Callable[[str, Array], tuple[Array, Array]]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_type_of_that_name(name: str, way: Way) -> None:
    values = samples(name)
    travels, arrives = way(name, values)
    with np.errstate(all="ignore"):
        wanted = values.astype(TYPES[name])
    numbers = ~np.isnan(values)
    assert np.array_equal(travels[numbers], wanted[numbers].view(np.uint16))
    assert np.array_equal(arrives[numbers], wanted[numbers].astype(CARRIED))
    assert np.isnan(arrives[~numbers]).all()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("way", WAYS)
def test_what_was_rounded_stays(name: str, way: Way) -> None:
    _, once = way(name, samples(name))
    _, twice = way(name, once)
    assert once.tobytes() == twice.tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_the_roundoff_is_what_the_documentation_says(name: str) -> None:
    values = np.random.default_rng(3).uniform(2**-14, 60000, 100_000).astype(CARRIED)
    _, arrives = by_numpy(name, values)
    worst = np.max(np.abs(arrives.astype(float) - values) / values)
    assert ROUNDOFF[name] * 0.99 < worst <= ROUNDOFF[name]


@pytest.mark.skipif(not _native.available(), reason=_native.reason())
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1023, 1025])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_any_length_and_place(name: str, count: int, start: int) -> None:
    values = samples(name)[start : start + count]
    travels, arrives = by_engine(name, values)
    assert np.array_equal(travels, by_numpy(name, values)[0])
    assert arrives.tobytes() == by_numpy(name, values)[1].tobytes()


@pytest.mark.skipif(not _native.available(), reason=_native.reason())
def test_what_the_engine_refuses() -> None:
    values, short = np.zeros(4, CARRIED), np.zeros(4, ON_WIRE)
    inside, between = Place(Memory.INPUT, 0, 4), Place(Memory.WIRE, 0, 4)
    program = Schedule(Program(0, (Copy(0, (), inside, between),), 0, 4))

    def execution(schedule: Schedule, *memory: Array, wire: str) -> engine.NativeExecution:
        return engine.NativeExecution(schedule, memory, None, None, None, 0, 1, wire)

    with pytest.raises(ValueError, match="wire must be bfloat16"):
        execution(program, values, values, values, short, wire="float8")
    with pytest.raises(ValueError, match="needs a wire"):
        execution(program, values, values, values, short, wire="")
    with pytest.raises(ValueError, match="elements of 4 bytes"):
        execution(program, values.astype(float), values, values, short, wire="float16")
    with pytest.raises(ValueError, match="shorter than the program"):
        execution(program, values, values, values, short[:3], wire="float16")
    onto_itself = Schedule(Program(0, (Copy(0, (), between, between),), 0, 4))
    with pytest.raises(ValueError, match="not the places that its code asks for"):
        execution(onto_itself, values, values, values, short, wire="float16")
