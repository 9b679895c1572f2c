"""Element types and operators: every pair against NumPy or refused, and the table in words."""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from functools import reduce as fold
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.cli import topo, types
from hpccoll.dtypes import ROWS, row_of, tag
from hpccoll.ops.table import accumulate, arithmetic, scaled_sum
from tests.support.arithmetic import NUMBERS, SMALL_FLOATS, TAKES, collective, data, numpys, op_of, same


def test_the_table_has_every_number_type_of_numpy() -> None:
    assert set(ROWS) == {dtype.name for dtype in NUMBERS}
    for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?":
        assert row_of(np.dtype(code)) is not None, code


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_a_pair_has_numpys_answer_or_is_refused(dtype: np.dtype[Any], name: str) -> None:
    if dtype not in TAKES[name]:
        with pytest.raises(
            hpccoll.UsageTypeError, match=rf"{name} is not defined for dtype {dtype}; it takes"
        ):
            arithmetic(op_of(name), dtype)
        return
    rule = arithmetic(op_of(name), dtype)
    for count, ranks, aliased in itertools.product((40, 1), (1, 2, 3, 5), ("left", "right", "neither")):
        parts = [data(dtype, count, rank) for rank in range(ranks)]
        given = [part.copy() for part in parts]
        found, wanted = collective(rule, parts, aliased), numpys(name, parts)
        assert same(found, wanted), f"{count} elements of {ranks} ranks: {found}, wanted {wanted}"
        assert all(one.tobytes() == other.tobytes() for one, other in zip(parts, given, strict=True))


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize("dtype", [one for one in NUMBERS if one.itemsize > 1 and one.kind != "V"], ids=str)
def test_the_other_byte_order_has_the_same_answer_in_that_order(dtype: np.dtype[Any], name: str) -> None:
    swapped = dtype.newbyteorder("S")
    if dtype not in TAKES[name]:
        with pytest.raises(hpccoll.UsageTypeError, match=f"{name} is not defined for dtype {swapped}"):
            arithmetic(op_of(name), swapped)
        return
    parts = [data(dtype, 40, rank) for rank in range(3)]
    rule = arithmetic(op_of(name), swapped)
    assert rule.working == arithmetic(op_of(name), dtype).working
    found = collective(rule, [part.astype(swapped) for part in parts])
    assert found.dtype == swapped
    assert same(found.astype(dtype), numpys(name, parts))


@pytest.mark.parametrize(
    "dtype",
    ["S5", "U3", "V24", "M8[s]", "m8[ns]", "i4,f8", "O", ml_dtypes.int4, ml_dtypes.float8_e4m3],
    ids=str,
)
def test_what_is_no_number_is_not_combined(dtype: Any) -> None:
    for name in TAKES:
        if not (name.endswith("LOC") and dtype == "i4,f8"):
            with pytest.raises(hpccoll.UsageTypeError, match=f"{name} is not defined for dtype"):
                arithmetic(op_of(name), np.dtype(dtype))


def test_integers_wrap_unless_they_are_accumulated_in_a_wider_type() -> None:
    parts = [np.array([120], np.int8), np.array([100], np.int8)]
    assert collective(arithmetic(op_of("SUM"), np.dtype(np.int8)), parts).tolist() == [-36]
    wide = accumulate(MPI.SUM, "int32")
    rule = arithmetic(wide, wide.result(np.dtype(np.int8)))
    found = collective(rule, parts)
    assert found.tolist() == [220]
    assert found.dtype == np.int32


def test_small_floats_are_rounded_once() -> None:
    # Twice the largest step of each type: added one by one the small ones would be lost.
    for dtype, large in zip(SMALL_FLOATS, (32, 16, 4096, 512), strict=True):
        parts = [np.array([value], dtype) for value in (large, 1, 1, 1, 1)]
        rule = arithmetic(op_of("SUM"), dtype)
        assert fold(np.add, parts) == large, dtype
        assert collective(rule, parts) == large + 4, dtype


@pytest.mark.parametrize(
    ("dtype", "large"), list(zip(SMALL_FLOATS, (448, 57344, 65504, 3.3895e38), strict=True)), ids=str
)
def test_sums_of_small_floats_overflow_but_averages_do_not(dtype: np.dtype[Any], large: float) -> None:
    parts = [np.array([large], dtype)] * 2
    found = collective(arithmetic(op_of("SUM"), dtype), parts)
    # float8_e4m3fn has no infinity.
    assert np.isnan(found) if dtype == ml_dtypes.float8_e4m3fn else np.isposinf(found)
    if dtype != ml_dtypes.bfloat16:
        assert collective(arithmetic(op_of("AVG"), dtype), parts) == parts[0]


def test_tags_tell_types_apart() -> None:
    swapped = [dtype.newbyteorder("S") for dtype in NUMBERS if dtype.itemsize > 1]
    others = [
        np.dtype(one)
        for one in (
            *(
                "S5",
                "S6",
                "U3",
                "V1",
                "V2",
                "V5",
                "M8[s]",
                "M8[ns]",
                "m8[ns]",
                "f8,i4",
                "f8,u4",
                "i4,f8",
                ">f8,i4",
            ),
            *(ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.int4),
            *([("a", "f4", (2,))], [("a", "f4", (3,))], [("a", "f4"), ("b", "f4")], [("a", "f8")]),
        )
    ]
    kinds = [*NUMBERS, *swapped, *others]
    tags = [tag(dtype) for dtype in kinds]
    assert len(set(tags)) == len(kinds), sorted(zip(tags, kinds, strict=True), key=str)
    assert max(map(len, tags)) <= 16
    for dtype in NUMBERS:
        assert tag(dtype) == dtype.name.encode()
    aligned = np.dtype("f8,i4", align=True)
    assert tag(aligned) != tag(np.dtype("f8,i4"))
    assert tag(np.dtype([("x", "f8"), ("n", "i4")], align=True)) == tag(aligned)


def test_sizes_are_known_without_ml_dtypes() -> None:
    assert {row.name: row.itemsize for row in ROWS.values()} == {
        dtype.name: dtype.itemsize for dtype in NUMBERS
    }
    program = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import hpccoll, hpccoll.cli.types as types\n"
        "assert 'float8_e4m3fn' in types.text()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_table_says_what_is_so() -> None:
    head, *rows = types.table()
    assert [row[0] for row in rows] == [*ROWS, "value, index"]
    known = {dtype.name: dtype for dtype in NUMBERS} | {"value, index": np.dtype("f8,i4", align=True)}
    names = [
        (name, column)
        for column, title in enumerate(head)
        for name in title.split()
        if name.isupper() or "_" in name
    ]
    assert {name for name, _ in names} == {*TAKES, "scaled_sum", "NCCL"}
    for row, (name, column) in itertools.product(rows, names):
        if name == "NCCL":
            continue
        dtype = known[row[0]]
        operator = scaled_sum(2) if name == "scaled_sum" else op_of(name)
        try:
            working = arithmetic(operator, dtype).working
            wanted = "yes" if working == dtype else working.name
        except hpccoll.UsageTypeError:
            wanted = "-"
        assert row[column] == wanted, (row[0], name)


def test_the_document_has_the_table() -> None:
    document = Path(__file__).parents[2] / "docs" / "types.md"
    assert types.markdown() in document.read_text(encoding="utf-8"), (
        f"docs/types.md must have\n{types.markdown()}"
    )


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    topo.configure(parser)
    assert topo.run(parser.parse_args(["--types"])) == 0
    printed = capsys.readouterr().out
    assert printed == types.text() + "\n"
    assert "float8_e5m2    float32" in printed
    with pytest.raises(SystemExit):
        parser.parse_args(["--types", "--json", "-"])
