"""The table of element types and operators in words: `hpccoll topo --types` and docs/types.md."""

from __future__ import annotations

from itertools import groupby

from hpccoll.dtypes import ROWS, Row
from hpccoll.ops.kernels import kernel_for_row
from hpccoll.ops.on_device import over_nccl
from hpccoll.ops.table import PAIRS, TABLE, Operator, working_name

ITSELF, BY_MPI, REFUSED = "yes", "MPI", "-"
LEGEND = (
    "yes               combined and sent in the type itself",
    "float32, int64    combined and sent in that type, rounded once at the end",
    "MPI               where your MPI has a type for it",
    "-                 refused on all ranks before anything moves",
    "by NCCL           on devices, combined by NCCL",
    "by kernels        on devices, moved by NCCL and combined by kernels; all others go over the host",
)
_FIRST = ("SUM", "PROD", "scaled_sum", "AVG")
_PAIR = "value, index"


def table() -> list[list[str]]:
    """Head and rows, a row for each type.  Neighbours with the same cells share a column."""
    operators = [one for name in _FIRST for one in TABLE if one.name == name]
    operators += [one for one in TABLE if one not in operators]
    columns = [["dtype", *ROWS, _PAIR]]
    columns += [
        [" ".join(one.name for one in group), *cells] for cells, group in groupby(operators, key=_column)
    ]
    columns += [
        ["user", *(BY_MPI if row.bits is None else REFUSED for row in ROWS.values()), BY_MPI],
        ["by NCCL", *(_by_nccl(operators, row) for row in ROWS.values()), REFUSED],
        ["by kernels", *(_by_kernels(operators, row) for row in ROWS.values()), "MINLOC MAXLOC"],
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def text() -> str:
    """The table for a terminal, with its legend."""
    rows = table()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([*lines, "", *LEGEND])


def markdown() -> str:
    """The table for documents."""
    head, *rows = (f"| {' | '.join(row)} |" for row in table())
    return "\n".join([head, "|" + "---|" * len(table()[0]), *rows])


def _by_nccl(operators: list[Operator], row: Row) -> str:
    """The operators by which NCCL combines arrays on devices."""
    return " ".join(one.name for one in operators if over_nccl(one.name, row)) or REFUSED


def _by_kernels(operators: list[Operator], row: Row) -> str:
    """The others for which there are kernels."""
    names = (one.name for one in operators if row.kind in one.kinds and not over_nccl(one.name, row))
    return " ".join(name for name in names if kernel_for_row(name, row)) or REFUSED


def _column(operator: Operator) -> list[str]:
    names = [(row.name, working_name(operator, row)) for row in ROWS.values()]
    cells = [REFUSED if found is None else ITSELF if found == name else found for name, found in names]
    return [*cells, ITSELF if operator.kinds == PAIRS else REFUSED]
