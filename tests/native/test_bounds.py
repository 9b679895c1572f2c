"""What the extension must refuse so that it stays inside its memory; found by the tests beside this one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpccoll import _native
from hpccoll.plans.program import Memory, Place
from hpccoll.plans.steps import Kind
from hpccoll.runtime import engine
from hpccoll.runtime.executor import Schedule
from tests.support.staging import SUM, calls_program

if not _native.available():
    pytest.skip(_native.reason(), allow_module_level=True)

from hpccoll._native import _core

COUNTED = [Kind.REDUCE_SCATTER, Kind.ALLGATHER, Kind.GATHER, Kind.SCATTER, Kind.ALLTOALL]


def group(me: int, members: int) -> engine.NodeGroup:
    return engine.NodeGroup(
        me, members, np.zeros(320 * members, np.uint8), np.zeros((2, members, 64), np.uint8)
    )


@pytest.mark.parametrize("kind", COUNTED, ids=lambda kind: kind.value)
@pytest.mark.parametrize("counts", [(5,), (2**63 - 1,), (4, 2**63 - 1), (2**62, 2**62), (0, 5)])
def test_a_group_call_gives_what_its_counts_say(kind: Kind, counts: tuple[int, ...]) -> None:
    """Else others, or the caller itself, would read behind the end of its array; sums of counts are sizes."""
    members, me = len(counts), len(counts) - 1
    own = counts * (members if kind is Kind.ALLTOALL else 1)
    rows = [(kind, me, (Place(Memory.INPUT, 0, 4),), (Place(Memory.OUTPUT, 0, 4),), own)]
    given = np.ones(4, np.float32)
    kernel = engine.kernel(SUM.combine, SUM.working, SUM.kernel)
    with pytest.raises(ValueError, match="counts"):
        engine.NativeExecution(
            Schedule(calls_program(me, members, rows)), (given, given.copy(), given[:0]), None,
            group(me, members), kernel, 0, 1,
        )  # fmt: skip


def test_areas_that_come_while_another_is_added() -> None:
    """Taking the parts of an area may run Python, in which another thread adds one."""
    part = np.zeros(8, np.uint8)

    class Parts:
        def __init__(self, number: int) -> None:
            self.number = number

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            native.add_area(self.number, [part])
            return part

    native = _core.Group(0, 1, np.zeros(320, np.uint8), np.zeros(128, np.uint8), 64)
    native.add_area(5, Parts(4))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is taken"):
        native.add_area(7, Parts(7))  # type: ignore[arg-type]
    for number in (4, 5, 7):
        native.drop_area(number)
    with pytest.raises(ValueError, match="no area"):
        native.drop_area(7)
