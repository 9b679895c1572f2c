"""Discovery under MPI: every rank gets the same machine, or the same error."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpccoll.errors import CollectiveTimeoutError, HpccollError, TopologyError, UsageError
from hpccoll.topology.layout import Layout

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.topology.machine import Machine


def discover(
    comm: MPI.Intracomm, layout: str | None = None, directory: str = "/dev/shm", **options: Any
) -> Machine:
    """A machine, which must be the same on all ranks; `comm` is duplicated."""
    from hpccoll.topology.machine import discover as discover_

    private = comm.Dup()
    try:
        deadline = time.monotonic() + options.get("timeout_s", 20.0)
        machine = discover_(private, layout=layout, shm_directory=directory, deadline=deadline)
    finally:
        private.Free()
    assert machine.rank == comm.rank
    same = comm.allgather(dataclasses.replace(machine, rank=0))
    assert all(other == same[0] for other in same)
    assert sum(source.decides for source in machine.sources) == 1
    assert not list(Path(directory).glob(f"hpccoll-*-{os.getpid()}-*"))
    return machine


def refused(
    comm: MPI.Intracomm, kind: type[HpccollError], layout: str | None, directory: str = "/dev/shm"
) -> HpccollError:
    """The error that discovery ends with: one message on all ranks, and the communicator stays usable."""
    from hpccoll.topology.machine import discover as discover_

    private = comm.Dup()
    with pytest.raises(kind) as caught:
        discover_(private, layout=layout, shm_directory=directory, deadline=time.monotonic() + 20)
    messages = comm.allgather(str(caught.value))
    assert set(messages) == {messages[0]}
    assert (
        discover_(private, layout=None, shm_directory="/dev/shm", deadline=time.monotonic() + 20).node_count
        == 1
    )
    private.Free()
    return caught.value


@pytest.fixture
def folders(world: MPI.Intracomm) -> Iterator[list[str]]:
    """Three directories that all ranks see, each good for another "host"."""
    with tempfile.TemporaryDirectory() as own:
        parent = Path(world.bcast(own))
        names = [str(parent / f"shm{host}") for host in range(3)]
        if world.rank == 0:
            for name in names:
                os.mkdir(name)
        world.Barrier()
        yield names
        world.Barrier()


@pytest.mark.ranks(1, 2, 4)
def test_this_machine_is_one_node(world: MPI.Intracomm) -> None:
    machine = discover(world)
    assert machine.layout == Layout((0,) * world.size)
    assert (machine.node, machine.node_count, machine.is_uniform) == (0, 1, True)
    assert (machine.local_rank, machine.local_size) == (world.rank, world.size)
    assert machine.shares_memory
    assert machine.world_ranks == tuple(range(world.size))
    assert [level.family for level in machine.levels] == ["NODE"]
    assert [(source.name, source.decides) for source in machine.sources] == [
        ("layout text", False),
        ("identity and probe", True),
        ("MPI_Comm_split_type", False),
    ]
    assert machine.sources[2].text == "agrees"
    assert machine.hosts[0].host_name == os.uname().nodename
    assert machine.thread_level in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    assert any(name in machine.mpi_library for name in ("MPICH", "Open MPI", "Intel"))


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("layout", "nodes", "families"),
    [
        ("2+2", ((0, 1), (2, 3)), ["NODE", "RAIL"]),
        ("3+1", ((0, 1, 2), (3,)), ["NODE", "LEADERS"]),
        ("cyclic:2+2", ((0, 2), (1, 3)), ["NODE", "RAIL"]),
        ("4x1", ((0,), (1,), (2,), (3,)), ["NODE", "RAIL"]),
        ("4", ((0, 1, 2, 3),), ["NODE"]),
        ("nodes:0,1,1,0", ((0, 3), (1, 2)), ["NODE", "RAIL"]),
    ],
)
def test_virtual_nodes(
    world: MPI.Intracomm, layout: str, nodes: tuple[tuple[int, ...], ...], families: list[str]
) -> None:
    machine = discover(world, layout)
    assert machine.layout.nodes == nodes
    assert machine.local_rank == nodes[machine.node].index(world.rank)
    assert machine.local_size == len(nodes[machine.node])
    assert len(machine.hosts) == machine.node_count == len(nodes)
    assert [level.family for level in machine.levels] == families
    assert machine.sources[0].decides
    assert machine.sources[1].layout == Layout((0, 0, 0, 0))
    assert machine.sources[2].layout is None


@pytest.mark.ranks(2, 3)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process may use one core only")
def test_cores_of_bound_ranks(world: MPI.Intracomm) -> None:
    """Ranks that are bound have the cores of all together, not one for all."""
    before = os.sched_getaffinity(0)
    two = sorted(before)[:2]
    try:
        assert discover(world).cores == (len(before),) * world.size
        os.sched_setaffinity(0, {two[world.rank % 2]})
        assert discover(world).cores == (2,) * world.size
        os.sched_setaffinity(0, {two[0]})
        assert discover(world).cores == (1,) * world.size
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.ranks(2)
def test_an_empty_text_means_the_real_nodes(world: MPI.Intracomm) -> None:
    assert discover(world, "").node_count == 1


@pytest.mark.ranks(4)
def test_a_part_of_the_world_keeps_the_nodes_of_the_world(world: MPI.Intracomm) -> None:
    odd_and_even = world.Split(world.rank % 2, key=0)
    assert discover(odd_and_even, "2+2").layout == Layout.parse("1+1")
    assert discover(odd_and_even, "cyclic:2+2").layout == Layout.parse("2")
    machine = discover(odd_and_even)
    assert machine.world_ranks == ((0, 2) if world.rank % 2 == 0 else (1, 3))
    assert machine.sources[2].text == "not asked: not all of MPI.COMM_WORLD"
    odd_and_even.Free()


@pytest.mark.ranks(4)
def test_ranks_are_those_of_the_communicator(world: MPI.Intracomm) -> None:
    backwards = world.Split(0, key=-world.rank)
    machine = discover(backwards, "3+1")
    assert machine.world_ranks == (3, 2, 1, 0)
    assert machine.layout == Layout.parse("1+3")
    assert machine.node == (0 if world.rank == 3 else 1)
    backwards.Free()


@pytest.mark.ranks(1, 2, 4)
def test_a_layout_of_another_size_is_refused_with_both_sizes(world: MPI.Intracomm) -> None:
    error = refused(world, UsageError, "3+2")
    assert str(error) == f'layout "3+2" has 5 ranks, but MPI.COMM_WORLD has {world.size}'
    alone = world.Split(world.rank)
    assert "has 5 ranks" in str(refused(alone, UsageError, "5"))
    if world.size > 1:  # the size of the communicator does not count, that of the world does
        assert f'layout "1" has 1 ranks, but MPI.COMM_WORLD has {world.size}' in str(
            refused(alone, UsageError, "1")
        )
    alone.Free()


@pytest.mark.ranks(2, 4)
def test_a_wrong_layout_on_one_rank_is_an_error_on_all(world: MPI.Intracomm) -> None:
    last = world.size - 1
    good = f"{world.size}x1"
    error = refused(world, UsageError, "two nodes" if world.rank == last else good)
    assert str(error).startswith(
        f'rank {last} of {world.size}: layout "two nodes": "two nodes" is not a number'
    )
    assert error.suspects == (last,)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("other", "said"),
    [(None, "none on rank 2"), ("3+1", '"3+1" on rank 2'), ("cyclic:2+2", '"cyclic:2+2" on rank 2')],
)
def test_different_layouts_are_an_error_on_all(world: MPI.Intracomm, other: str | None, said: str) -> None:
    error = refused(world, UsageError, other if world.rank == 2 else "2+2")
    assert f'the layout differs between ranks: "2+2" on ranks 0, 1, 3, {said}' in str(error)
    assert error.suspects == (2,)


@pytest.mark.ranks(4)
def test_the_same_layout_written_in_two_ways_is_no_difference(world: MPI.Intracomm) -> None:
    assert discover(world, "2+2" if world.rank else " nodes: 5,5,1,1").layout == Layout.parse("2+2")


@pytest.mark.ranks(4)
def test_split_into_singletons_is_repaired_with_one_warning(world: MPI.Intracomm) -> None:
    """Case T06: MPI_Comm_split_type gives one group per process although all share a host."""
    from mpi4py import MPI

    class Singletons(MPI.Intracomm):
        def Split_type(self, *_: Any, **__: Any) -> MPI.Intracomm:  # noqa: N802  (the name is MPI's)
            return MPI.COMM_SELF.Dup()

        def Dup(self, *_: Any) -> MPI.Intracomm:  # noqa: N802
            return Singletons(super().Dup())

    machine, caught = with_warnings(Singletons(world))
    assert machine.layout == Layout((0, 0, 0, 0))
    assert len(caught) == (1 if world.rank == 0 else 0)
    for message in caught:
        assert "find 1 node of 4 ranks" in message
        assert "finds 4 nodes (4x1)" in message
        assert "the former is used" in message
    assert machine.sources[1].decides
    assert machine.sources[2].layout == Layout.parse("4x1")
    assert machine.sources[2].text == "differs, and is not used"


@pytest.mark.ranks(2, 4)
def test_a_split_that_joins_what_shares_no_memory_is_not_believed(
    world: MPI.Intracomm, folders: list[str]
) -> None:
    host = world.rank % 2
    machine, caught = with_warnings(world, folders[host])
    assert machine.layout == Layout.from_keys([rank % 2 for rank in range(world.size)])
    assert machine.node == host
    assert machine.hosts[host].shm_directory == folders[host]
    assert len(caught) == (1 if world.rank == 0 else 0)
    assert machine.sources[2].layout == Layout((0,) * world.size)


@pytest.mark.ranks(2, 4, 5)
@pytest.mark.parametrize("hosts", [2, 3])
def test_equal_identities_without_common_memory_are_different_nodes(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, hosts: int
) -> None:
    """Virtual machines resumed from one snapshot: same boot id and device numbers, another memory."""
    from hpccoll.topology import hosts as real
    from hpccoll.topology import identity

    pids = world.allgather(os.getpid())

    def on_my_host(path: str, token: bytes) -> bool:
        creator = next(rank for rank, pid in enumerate(pids) if f"-{pid}-" in path)
        return creator % hosts == world.rank % hosts and real.sees(path, token)

    monkeypatch.setattr(identity, "sees", on_my_host)
    machine, _ = with_warnings(world)
    assert machine.layout == Layout.from_keys([rank % hosts for rank in range(world.size)])
    assert "cannot see the memory of the first rank" in machine.sources[1].text


@pytest.mark.ranks(1, 2, 4)
def test_without_a_shared_memory_directory_identity_decides(world: MPI.Intracomm) -> None:
    machine = discover(world, directory="/dev/shm/does-not-exist")
    assert machine.layout == Layout((0,) * world.size)
    assert machine.hosts[0].notes == (
        "no shared memory directory /dev/shm/does-not-exist: No such file or directory",
    )
    if world.size > 1:
        assert not machine.shares_memory
        assert "there is no directory /dev/shm/does-not-exist" in machine.sources[1].text
        assert "no shared memory" in machine.levels[0].carrier


@pytest.mark.ranks(4)
def test_virtual_nodes_must_lie_within_real_ones(world: MPI.Intracomm, folders: list[str]) -> None:
    directory = folders[world.rank % 2]
    error = refused(world, TopologyError, "2+2", directory)
    assert "puts ranks 0, 1 on one node, but they share no memory" in str(error)
    assert "the real nodes are 2 nodes (cyclic:2+2)" in str(error)
    assert error.suspects == (0, 1)
    assert discover(world, "cyclic:2+2", directory).node == world.rank % 2


@pytest.mark.ranks(2, 4)
def test_a_rank_that_does_not_call_is_named_in_time(world: MPI.Intracomm) -> None:
    from hpccoll.topology.machine import discover as discover_

    private = world.Dup()
    absent = world.size - 1
    world.Barrier()
    begin = time.monotonic()
    if world.rank != absent:
        with pytest.raises(CollectiveTimeoutError) as caught:
            discover_(private, layout=None, shm_directory="/dev/shm", deadline=begin + 2)
        assert 1.8 < time.monotonic() - begin < 6.0
        assert f"topology discovery: {absent} of {world.size} ranks arrived" in str(caught.value)
        assert caught.value.suspects == (absent,)
        assert isinstance(caught.value, TimeoutError)


@pytest.mark.ranks(4)
def test_fifty_discoveries_leave_nothing_behind(world: MPI.Intracomm) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        discover(world, "2+2")
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert not list(Path("/dev/shm").glob(f"hpccoll-*-{os.getpid()}-*"))


def with_warnings(comm: MPI.Intracomm, directory: str = "/dev/shm") -> tuple[Machine, list[str]]:
    """A machine, and the RuntimeWarnings of this rank."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        machine = discover(comm, directory=directory)
    return machine, [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
