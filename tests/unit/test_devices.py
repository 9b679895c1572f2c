"""Which GPU each rank takes: unequal nodes, ranks dealt in turn, parts of the world, hidden devices.

As reported in CFD-GO/TCLB PR#242, glotzerlab/hoomd-blue#351 and horovod/horovod#3949.
"""

from __future__ import annotations

import itertools

import pytest

from hpccoll.errors import UsageError
from hpccoll.topology.devices import choose_devices, choose_visible_devices, shared_devices
from hpccoll.topology.layout import Layout

ONE_NODE = Layout.parse("4")


@pytest.mark.parametrize(
    ("layout", "devices", "wanted"),
    [
        ("4", 4, (0, 1, 2, 3)),
        ("3+1", 4, (0, 1, 2, 0)),
        ("1+3", 4, (0, 0, 1, 2)),
        ("cyclic:2+2", 4, (0, 0, 1, 1)),
        ("cyclic:3+2", 8, (0, 0, 1, 1, 2)),
        ("4+2", 2, (0, 1, 0, 1, 0, 1)),
        ("2+2", 1, (0, 0, 0, 0)),
        ("2+2", 0, (None,) * 4),
        ("2+3", (1, 2), (0, 0, 0, 1, 0)),
        ("2+2", (2, 0), (0, 1, None, None)),
        ("4x8", 8, tuple(range(8)) * 4),
    ],
)
def test_by_the_place_on_the_node(
    layout: str, devices: int | tuple[int, ...], wanted: tuple[int | None, ...]
) -> None:
    assert choose_devices(Layout.parse(layout), devices) == wanted


def test_a_part_of_the_world_keeps_the_devices_of_the_world() -> None:
    assert [choose_devices(ONE_NODE, 4, [rank]) for rank in range(4)] == [(0,), (1,), (2,), (3,)]
    assert choose_devices(Layout.parse("3+1"), 4, (3, 2, 0)) == (0, 2, 0)
    for members in itertools.permutations(range(4), 2):
        assert choose_devices(ONE_NODE, 4, members) == members


def test_of_a_part_no_rank_is_outside_of_the_world() -> None:
    for rank in (-1, 4):
        with pytest.raises(UsageError, match=f"rank {rank} is not in the world of 4 ranks"):
            choose_devices(ONE_NODE, 4, [rank])


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        (-1, "devices_per_node is -1"),
        ((4, -2), "must not be negative"),
        ((4,), "1 numbers: must be .* 2 nodes"),
    ],
)
def test_numbers_of_devices_that_cannot_be(devices: int | tuple[int, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        choose_devices(Layout.parse("2+2"), devices)


@pytest.mark.parametrize(
    ("layout", "visible", "wanted"),
    [
        # Every task sees its own card, which it knows as number 0 (NVIDIA/nccl#1066).
        ("4", ["a", "b", "c", "d"], (0, 0, 0, 0)),
        # All see all.
        ("4", ["abcd"] * 4, (0, 1, 2, 3)),
        ("3+1", ["abcd"] * 4, (0, 1, 2, 0)),
        ("cyclic:2+2", ["abcd"] * 4, (0, 0, 1, 1)),
        ("4", ["ab"] * 4, (0, 1, 0, 1)),
        # Two tasks to a pair of cards.
        ("4", ["ab", "ab", "cd", "cd"], (0, 1, 0, 1)),
        # Each names first the card that is nearest.
        ("2", ["ab", "ba"], (0, 0)),
        ("4", ["abcd", "bcda", "cdab", "dabc"], (0, 0, 0, 0)),
        ("2", ["ba", "ba"], (0, 1)),
        # Who can choose leaves the only card of another to that one.
        ("2", ["ab", "a"], (1, 0)),
        ("2", ["ab", "b"], (0, 0)),
        # One without a card.
        ("2", ["a", ""], (0, None)),
        ("2+2", ["", "", "ab", "ab"], (None, None, 0, 1)),
    ],
)
def test_by_what_each_rank_sees(layout: str, visible: list[str], wanted: tuple[int | None, ...]) -> None:
    assert choose_visible_devices(Layout.parse(layout), visible) == wanted


def test_where_all_see_all_both_choices_agree() -> None:
    for text, devices in itertools.product(("4", "3+1", "cyclic:3+2", "5+1", "1+1+1+1"), (1, 2, 3, 8)):
        layout = Layout.parse(text)
        seen = [[f"GPU-{layout.node(rank)}-{k}" for k in range(devices)] for rank in range(layout.size)]
        assert choose_visible_devices(layout, seen) == choose_devices(layout, devices), (
            f"{text}, {devices} devices"
        )


def test_what_ranks_see_must_make_sense() -> None:
    with pytest.raises(UsageError, match="3 lists of devices: must be one for each of 4 ranks"):
        choose_visible_devices(ONE_NODE, ["a", "b", "c"])
    with pytest.raises(UsageError, match="rank 2 sees a device twice: a, b, a"):
        choose_visible_devices(ONE_NODE, ["a", "b", "aba", "c"])


def test_ranks_on_one_device_are_found() -> None:
    assert shared_devices(ONE_NODE, ["a", "b", "a", "b"]) == (("a", (0, 2)), ("b", (1, 3)))
    assert shared_devices(ONE_NODE, ["a", "b", "c", "d"]) == ()
    assert shared_devices(ONE_NODE, [None, None, "c", "d"]) == ()
    # One PCI address on two nodes is two devices.
    assert shared_devices(Layout.parse("2+2"), ["0000:07", "0000:0a"] * 2) == ()
    assert shared_devices(Layout.parse("cyclic:2+2"), ["07", "07", "0a", "07"]) == (("07", (1, 3)),)
    with pytest.raises(UsageError, match="2 entries: must be one for each of 4 ranks"):
        shared_devices(ONE_NODE, ["a", "b"])
