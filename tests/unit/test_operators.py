"""What an operator tells the rest of the house: code, MPI's own operator, compiled loop, copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from mpi4py.util import dtlib

import hpccoll
from hpccoll.ops.table import NAMES, arithmetic, operator_of, scaled_sum
from tests.support.arithmetic import BOOL, COMPLEX, FLOATS, INTEGERS, TAKES, op_of


def test_codes_are_those_that_ranks_compare() -> None:
    names = (
        "SUM",
        "PROD",
        "MAX",
        "MIN",
        "LAND",
        "LOR",
        "LXOR",
        "BAND",
        "BOR",
        "BXOR",
        "AVG",
        "MINLOC",
        "MAXLOC",
    )
    assert [op_of(name).code for name in names] == list(range(1, 14))
    assert [NAMES[code] for code in range(1, 14)] == list(names)
    assert scaled_sum(3).code == 14
    assert sorted(NAMES) == list(range(17))
    assert len(set(NAMES.values())) == 17


@pytest.mark.parametrize("op", [MPI.OP_NULL, MPI.REPLACE, MPI.NO_OP, None, "SUM", np.add, sum, 1], ids=repr)
def test_what_is_no_operator_is_refused(op: Any) -> None:
    with pytest.raises(hpccoll.UsageTypeError, match=r"op is .*must be an MPI operator"):
        operator_of(op)


def test_an_operator_that_was_freed_is_refused() -> None:
    op = MPI.Op.Create(lambda one, other, datatype: None)
    op.Free()
    with pytest.raises(hpccoll.UsageTypeError, match="OP_NULL"):
        operator_of(op)


def test_what_compiled_loops_can_combine() -> None:
    plain = {*BOOL, *INTEGERS, *(np.dtype(code) for code in "fdFD")}
    for name, dtypes in TAKES.items():
        for dtype in dtypes:
            rule = arithmetic(op_of(name), dtype)
            kernel = (
                None
                if rule.working not in plain
                else ("sum" if name == "AVG" else name.lower(), rule.working.name)
            )
            assert rule.kernel == kernel, f"{name} {dtype}"
    assert arithmetic(scaled_sum(2), np.dtype("f2")).kernel == ("sum", "float32")
    assert arithmetic(op_of("MINLOC"), np.dtype("f8,i4")).kernel is None
    assert arithmetic(op_of("SUM"), np.dtype(">f4")).kernel == ("sum", "float32")


def test_mpis_own_operators_are_taken_only_where_they_agree() -> None:
    for name, dtypes in TAKES.items():
        for dtype in dtypes:
            wanted = getattr(MPI, name) if name != "AVG" else MPI.SUM
            nan_or_bits = dtype in BOOL or (name in ("MAX", "MIN") and dtype in FLOATS)
            if nan_or_bits or (name == "PROD" and dtype in COMPLEX):
                wanted = None
            assert arithmetic(op_of(name), dtype).mpi == wanted, f"{name} {dtype}"
    assert arithmetic(scaled_sum(2), np.dtype("f4")).mpi == MPI.SUM
    assert arithmetic(op_of("MINLOC"), dtlib.to_numpy_dtype(MPI.INT_INT)).mpi is None


def test_nothing_is_copied_when_there_is_nothing_to_convert() -> None:
    for name, dtype in (("SUM", "f8"), ("MAX", "i2"), ("AVG", "f4"), ("MINLOC", "f8,i4"), ("LAND", "?")):
        give = np.zeros(3, dtype)
        assert arithmetic(op_of(name), give.dtype).start(give) is give
    for name, dtype in (("SUM", "f2"), ("SUM", ">f8"), ("AVG", "i4")):
        give = np.ones(3, dtype)
        started = arithmetic(op_of(name), give.dtype).start(give)
        assert not np.may_share_memory(started, give)
