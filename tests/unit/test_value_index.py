"""MINLOC and MAXLOC on pairs of value and index."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI
from mpi4py.util import dtlib

import hpccoll
from hpccoll.ops.table import arithmetic, operator_of
from tests.support.arithmetic import collective, op_of, same

PAIRS = (MPI.SHORT_INT, MPI.INT_INT, MPI.LONG_INT, MPI.FLOAT_INT, MPI.DOUBLE_INT, MPI.LONG_DOUBLE_INT)


@pytest.mark.parametrize("op", [MPI.MINLOC, MPI.MAXLOC], ids=["MINLOC", "MAXLOC"])
@pytest.mark.parametrize("datatype", PAIRS, ids=lambda one: one.name)
def test_value_and_index_as_mpi_has_them(datatype: MPI.Datatype, op: MPI.Op) -> None:
    dtype = dtlib.to_numpy_dtype(datatype)
    rule = arithmetic(operator_of(op), dtype)
    random = np.random.default_rng(3)
    left, right = np.zeros(300, dtype), np.zeros(300, dtype)
    for part in (left, right):
        part["f0"] = random.integers(-3, 4, 300)
        part["f1"] = random.integers(-2, 3, 300)
    wanted = right.copy()
    op.Reduce_local([left, 300, datatype], [wanted, 300, datatype])
    for aliased in ("left", "right", "neither"):
        found = collective(rule, [left, right], aliased)
        assert same(found, wanted)


@pytest.mark.parametrize("largest", [False, True], ids=["MINLOC", "MAXLOC"])
@pytest.mark.parametrize("value", ["f2", ml_dtypes.bfloat16, "f4", "f8", "g"], ids=str)
def test_nan_wins_whatever_the_order_and_equal_values_have_the_lowest_index(
    value: Any, largest: bool
) -> None:
    dtype = np.dtype([("value", value), ("index", "i8")])
    rule = arithmetic(op_of("MAXLOC" if largest else "MINLOC"), dtype)
    cases = {
        ((2.0, 3), (np.nan, 9), (-5.0, 1), (np.nan, 7)): (np.nan, 7),
        ((np.inf, 0), (np.nan, 5), (-np.inf, 2), (1.0, 3)): (np.nan, 5),
        ((4.0, 8), (4.0, 2), (4.0, 6), (4.0, -1)): (4.0, -1),
        ((-1.0, 4), (1.0, 3), (-1.0, 2), (1.0, 9)): (1.0, 3) if largest else (-1.0, 2),
    }
    for pairs, wanted in cases.items():
        for order in itertools.permutations(pairs):
            found = collective(rule, [np.array([pair], dtype) for pair in order])[0]
            assert found["index"] == wanted[1], order
            assert found["value"] == wanted[0] or (np.isnan(wanted[0]) and np.isnan(found["value"])), order


def test_pairs_of_the_other_byte_order() -> None:
    dtype = np.dtype([("value", ">f8"), ("index", ">i4")])
    parts = [np.array([(2.5, 1), (7.0, 4)], dtype), np.array([(2.5, 0), (8.0, 5)], dtype)]
    found = collective(arithmetic(op_of("MINLOC"), dtype), parts)
    assert found.dtype == dtype
    assert found.tolist() == [(2.5, 0), (7.0, 4)]


def test_bytes_between_value_and_index_stay_as_they_are() -> None:
    dtype = dtlib.to_numpy_dtype(MPI.DOUBLE_INT)
    assert dtype.itemsize > 12
    rule = arithmetic(op_of("MAXLOC"), dtype)
    parts = [np.full(32, filler, np.uint8).view(dtype) for filler in (1, 2, 0xA5)]
    rule.combine(*parts)
    assert parts[2].view(np.uint8).reshape(2, 16)[:, :12].tolist() == [[2] * 12] * 2
    assert (parts[2].view(np.uint8).reshape(2, 16)[:, 12:] == 0xA5).all()


@pytest.mark.parametrize(
    "dtype",
    [
        "f8,f8",
        "?,i4",
        "c8,i4",
        "f8,i4,i4",
        [("value", "f8", (2,)), ("index", "i4")],
        [("value", "i4,i4"), ("index", "i4")],
        {"names": ["a", "b"], "formats": ["f8", "i4"], "offsets": [0, 4], "itemsize": 8},
        "f8",
    ],
    ids=str,
)
def test_what_is_no_pair_is_refused(dtype: Any) -> None:
    for name in ("MINLOC", "MAXLOC"):
        with pytest.raises(
            hpccoll.UsageTypeError, match=rf"MPI.{name} is not defined.* as those of MPI.DOUBLE_INT"
        ):
            arithmetic(op_of(name), np.dtype(dtype))
