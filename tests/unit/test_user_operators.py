"""Operators of the caller on elements in memory: order of operands, datatypes, what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI
from mpi4py.util import dtlib

import hpccoll
from hpccoll.ops.table import accumulate, arithmetic, operator_of
from tests.support.arithmetic import BOOL, NUMBERS, TAKES, Array, collective, op_of


@pytest.fixture
def made() -> Any:
    """`made(function, commute)`: an operator that is freed after the test."""
    operators: list[MPI.Op] = []

    def create(function: Any, commute: bool = False) -> MPI.Op:
        operators.append(MPI.Op.Create(function, commute))
        return operators[-1]

    yield create
    for op in operators:
        op.Free()


def typed(memory: Any, dtype: Any) -> Array:
    return np.frombuffer(memory, dtype)


def left_twice(one: Any, other: Any, datatype: MPI.Datatype) -> None:
    """2 left + right: tells the operands apart."""
    dtype = dtlib.to_numpy_dtype(datatype)
    typed(other, dtype)[...] += 2 * typed(one, dtype)


@pytest.mark.parametrize("dtype", [one for one in NUMBERS if one not in BOOL and one.isbuiltin == 1], ids=str)
def test_a_user_operator_gets_the_left_operand_first(made: Any, dtype: np.dtype[Any]) -> None:
    rule = arithmetic(operator_of(made(left_twice)), dtype)
    assert rule.working == rule.dtype == dtype
    for aliased in ("left", "right", "neither"):
        left, right = np.arange(5).astype(dtype), np.full(5, 3, dtype)
        assert collective(rule, [left, right], aliased).tolist() == [3, 5, 7, 9, 11], aliased
        assert left.tolist() == [0, 1, 2, 3, 4]
        assert right.tolist() == [3] * 5


def test_whether_a_user_operator_commutes(made: Any) -> None:
    in_order, any_order = operator_of(made(left_twice, False)), operator_of(made(left_twice, True))
    assert not in_order.commutes
    assert any_order.commutes
    assert {in_order.code, any_order.code} == {15, 16}
    assert all(op_of(name).commutes for name in TAKES)


def test_two_user_operators_are_not_mixed_up(made: Any) -> None:
    def right(one: Any, other: Any, datatype: MPI.Datatype) -> None:
        pass

    dtype = np.dtype("i4")
    first, second = operator_of(made(left_twice)), operator_of(made(right))
    assert first != second
    parts = [np.array([4], dtype), np.array([1], dtype)]
    assert collective(arithmetic(first, dtype), parts).tolist() == [9]
    assert collective(arithmetic(second, dtype), parts).tolist() == [1]


def test_the_datatype_that_the_function_gets(made: Any) -> None:
    seen: list[tuple[MPI.Datatype, int, int]] = []

    def note(one: Any, other: Any, datatype: MPI.Datatype) -> None:
        seen.append((MPI.Datatype(datatype), len(one), len(other)))

    operator = operator_of(made(note))
    pair = dtlib.to_numpy_dtype(MPI.DOUBLE_INT)
    cases = [
        (np.dtype("i4"), None, MPI.INT),
        (np.dtype("f8"), None, MPI.DOUBLE),
        (np.dtype("?"), None, MPI.C_BOOL),
        (np.dtype("q"), None, MPI.LONG_LONG),
        (np.dtype("u1"), MPI.BYTE, MPI.BYTE),
        (np.dtype("i4"), MPI.INT32_T, MPI.INT32_T),
        (pair, None, MPI.DOUBLE_INT),
        (pair, MPI.DOUBLE_INT, MPI.DOUBLE_INT),
    ]
    for dtype, datatype, wanted in cases:
        parts = [np.zeros(6, dtype)] * 2
        collective(arithmetic(operator, dtype, datatype), parts)
        assert seen.pop() == (wanted, 6 * dtype.itemsize, 6 * dtype.itemsize), dtype
    assert not seen


def test_items_of_a_derived_datatype_lie_as_the_function_knows_them(made: Any) -> None:
    # Two numbers with a gap between them and one behind, in the reverse order: 8 packed bytes, 24 in memory.
    scattered = MPI.INT32_T.Create_hindexed([1, 1], [12, 4]).Create_resized(0, 24).Commit()

    def subtract(one: Any, other: Any, datatype: MPI.Datatype) -> None:
        lengths.append(len(one))
        ours, theirs = typed(one, "i4").reshape(-1, 6), typed(other, "i4").reshape(-1, 6)
        theirs[:, 3] = ours[:, 3] - theirs[:, 3]
        theirs[:, 1] = ours[:, 1] + theirs[:, 1]

    lengths: list[int] = []
    opaque = np.dtype((np.void, scattered.size))
    rule = arithmetic(operator_of(made(subtract)), opaque, scattered)
    for aliased in ("left", "right", "neither"):
        left = np.array([[10, 20], [30, 40], [50, 60]], "i4").view(opaque).reshape(-1)
        right = np.array([[1, 2], [3, 4], [5, 6]], "i4").view(opaque).reshape(-1)
        found = collective(rule, [left, right], aliased)
        assert found.view("i4").reshape(-1, 2).tolist() == [[9, 22], [27, 44], [45, 66]]
    assert set(lengths) == {3 * 24}
    scattered.Free()


def test_the_product_of_matrices(made: Any) -> None:
    matrix = MPI.DOUBLE.Create_contiguous(9).Commit()

    def multiply(one: Any, other: Any, datatype: MPI.Datatype) -> None:
        ours, theirs = typed(one, "f8").reshape(-1, 3, 3), typed(other, "f8").reshape(-1, 3, 3)
        theirs[...] = ours @ theirs

    random = np.random.default_rng(5)
    factors = [random.integers(-3, 4, (4, 3, 3)).astype(float) for _ in range(3)]
    opaque = np.dtype((np.void, 72))
    rule = arithmetic(operator_of(made(multiply)), opaque, matrix)
    found = collective(rule, [one.reshape(-1).view(opaque) for one in factors])
    assert np.array_equal(found.view(float).reshape(4, 3, 3), factors[0] @ factors[1] @ factors[2])
    matrix.Free()


def test_a_function_is_not_called_for_no_elements(made: Any) -> None:
    called = []
    operator = operator_of(made(lambda one, other, datatype: called.append(len(one))))
    nothing = np.empty(0, "i4")
    matrix = MPI.DOUBLE.Create_contiguous(9).Commit()
    collective(arithmetic(operator, nothing.dtype), [nothing, nothing])
    opaque = np.empty(0, (np.void, 72))
    collective(arithmetic(operator, opaque.dtype, matrix), [opaque, opaque])
    assert called == []
    matrix.Free()


@pytest.mark.parametrize(
    "dtype",
    [">f8", "S5", "U3", "M8[s]", "m8[s]", "f8,f8", "V8", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2],
    ids=str,
)
def test_a_user_operator_on_what_mpi_has_no_type_for(made: Any, dtype: Any) -> None:
    with pytest.raises(
        hpccoll.UsageTypeError, match=r"MPI has no type for dtype .*\[buffer, count, datatype\]"
    ):
        arithmetic(operator_of(made(left_twice)), np.dtype(dtype))


def test_a_datatype_of_another_size_than_the_elements(made: Any) -> None:
    with pytest.raises(hpccoll.UsageTypeError, match=r"elements of 4 bytes .* as items of 8 bytes"):
        arithmetic(operator_of(made(left_twice)), np.dtype("f4"), MPI.DOUBLE)


def test_a_user_operator_does_not_accumulate(made: Any) -> None:
    with pytest.raises(hpccoll.UsageTypeError, match=r"the user operator .*as they are"):
        accumulate(made(left_twice), "f8")
