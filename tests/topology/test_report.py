"""The machine as text and as a dictionary."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from hpccoll.topology.hosts import HostFacts
from hpccoll.topology.layout import FAMILIES, Layout
from hpccoll.topology.machine import Level, Machine, Source
from hpccoll.topology.report import format_tree, machine_as_dict


def machine(
    text: str, *, names: Sequence[str] = (), world_ranks: Sequence[int] | None = None, native: bool = True
) -> Machine:
    """A machine with one host a node, of the given names or node0, node1, ..."""
    layout = Layout.parse(text)
    names = names or [f"node{node}" for node in range(layout.node_count)]
    return Machine(
        rank=0,
        layout=layout,
        hosts=tuple(HostFacts(name, f"{node:08d}-boot") for node, name in enumerate(names)),
        levels=(
            Level("node", "NODE", "shared memory in /dev/shm"),
            Level("network", "RAIL", "messages of MPICH"),
        ),
        sources=(
            Source("layout text", None, False, "not given"),
            Source("identity and probe", layout, True, "all see it"),
            Source("MPI_Comm_split_type", Layout.parse("1"), False, "differs, and is not used"),
        ),
        shares_memory=True,
        world_ranks=tuple(range(layout.size) if world_ranks is None else world_ranks),
        thread_level="MULTIPLE",
        mpi_library="MPICH 5.0.2",
        native=native,
        cores=(layout.size,) * layout.size,
    )


def test_the_whole_report() -> None:
    assert format_tree(machine("3+1")) == (
        "4 ranks: 2 nodes (3+1)\n"
        "├── node 0  node0  ranks 0-2\n"
        "└── node 1  node1  rank 3\n"
        "\n"
        "groups\n"
        "  WORLD    (0 1 2 3)\n"
        "  NODE     (0 1 2) (3)\n"
        "  NVLINK   (0 1 2) (3)\n"
        "  LEADERS  (0 3)\n"
        "  RAIL     does not exist: the nodes are not equally large\n"
        "\n"
        "levels, innermost first\n"
        "  node     NODE     shared memory in /dev/shm\n"
        "  network  RAIL     messages of MPICH\n"
        "\n"
        "who shares a node, by (* decides)\n"
        "   layout text          not given\n"
        " * identity and probe   2 nodes (3+1): all see it\n"
        "   MPI_Comm_split_type  1 node of 1 rank: differs, and is not used\n"
        "\n"
        "MPI        MPICH 5.0.2\n"
        "threads    thread level MULTIPLE: "
        "started calls are moved on by a worker while their callers compute\n"
        "extension  used by every rank"
    )


def test_a_line_for_every_rank() -> None:
    lines = format_tree(machine("cyclic:2+2"), ranks=True).splitlines()
    assert lines[:7] == [
        "4 ranks: 2 nodes (cyclic:2+2)",
        "├── node 0  node0  ranks 0, 2",
        "│   ├── rank 0  local rank 0, leader, rail 0",
        "│   └── rank 2  local rank 1, rail 1",
        "└── node 1  node1  ranks 1, 3",
        "    ├── rank 1  local rank 0, leader, rail 0",
        "    └── rank 3  local rank 1, rail 1",
    ]


def test_world_ranks_where_they_are_other_numbers() -> None:
    report = format_tree(machine("2", world_ranks=(3, -1)), ranks=True)
    assert "rank 0  local rank 0, world rank 3, leader" in report
    assert "rank 1  local rank 1, not in MPI.COMM_WORLD" in report


def test_hosts_of_one_name_are_told_apart_by_their_boot_id() -> None:
    report = format_tree(machine("1+1+1", names=("app", "app", "db")))
    assert "node 0  app (boot 00000000)  rank 0" in report
    assert "node 1  app (boot 00000001)  rank 1" in report
    assert "node 2  db  rank 2" in report


def test_a_large_machine_is_summed_up() -> None:
    report = format_tree(machine("2048x8"))
    assert "16384 ranks: 2048 nodes (2048x8)" in report
    assert "└── ... 1984 more nodes" in report
    assert "NODE     (0 1 2 3 4 5 6 7) (8 9" in report
    assert "... 2040 more groups" in report
    assert len(report) < 10_000
    assert "rank 16383  local rank 7, rail 7" in format_tree(machine("2048x8"), ranks=True)


def test_a_missing_extension_is_said() -> None:
    assert "extension  not used by every rank" in format_tree(machine("2", native=False))


@pytest.mark.parametrize("text", ["1", "3+1", "cyclic:2+2", "4x8"])
def test_the_dictionary_is_json_and_tells_all(text: str) -> None:
    original = machine(text)
    found = json.loads(json.dumps(machine_as_dict(original)))
    layout = original.layout
    assert Layout.parse(found["layout"]) == layout
    assert [node["ranks"] for node in found["nodes"]] == [list(node) for node in layout.nodes]
    assert [node["host"]["host_name"] for node in found["nodes"]] == [
        facts.host_name for facts in original.hosts
    ]
    for rank, entry in enumerate(found["ranks"]):
        assert (entry["rank"], entry["node"], entry["local_rank"]) == (
            rank,
            layout.node(rank),
            layout.local_rank(rank),
        )
        assert entry["groups"] == {name: layout.group_index(name, rank) for name in FAMILIES}
    assert found["groups"]["RAIL"] == [list(rail) for rail in layout.groups("RAIL")]
    assert [source["decides"] for source in found["sources"]] == [False, True, False]
    assert found["mpi"] == {"library": "MPICH 5.0.2", "thread_level": "MULTIPLE"}


def test_a_rank_outside_of_the_world_has_no_world_rank() -> None:
    found = machine_as_dict(machine("2", world_ranks=(3, -1)))
    assert [rank["world_rank"] for rank in found["ranks"]] == [3, None]
