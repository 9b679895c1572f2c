"""One description of every host and of every process on rank 0."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from hpccoll.errors import CollectiveTimeoutError
from hpccoll.topology.hardware.model import Host, NumaNode, Process
from hpccoll.topology.layout import Layout

if TYPE_CHECKING:
    from mpi4py import MPI


@pytest.mark.ranks(4)
@pytest.mark.parametrize("hosts", ["4", "cyclic:2+2", "1+3", "4x1"])
def test_hosts_and_processes(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, hosts: str) -> None:
    from hpccoll.topology.hardware import gathering

    layout = Layout.parse(hosts)
    # Descriptions of different length, so that a wrong offset would be seen.
    found = Host(name=f"host of rank {world.rank}", numa_nodes=(NumaNode(0),) * (3 * world.rank))
    monkeypatch.setattr(gathering, "detect_host", lambda: found)
    private = world.Dup()
    own = Process(cpus=tuple(range(world.rank)))
    survey = gathering.gather_survey(private, layout, own, time.monotonic() + 20)
    private.Free()
    if world.rank != 0:
        assert survey is None
        return
    assert survey is not None
    leaders = [node[0] for node in layout.nodes]
    assert [host.name for host in survey.hosts] == [f"host of rank {rank}" for rank in leaders]
    assert [len(host.numa_nodes) for host in survey.hosts] == [3 * rank for rank in leaders]
    assert [process.cpus for process in survey.processes] == [tuple(range(rank)) for rank in range(4)]
    assert survey.host_of == layout.node_of
    assert [survey.ranks(host) for host in range(len(leaders))] == list(layout.nodes)


@pytest.mark.ranks(3)
def test_a_rank_that_does_not_tell(world: MPI.Intracomm) -> None:
    from hpccoll.topology.hardware.gathering import gather_survey

    private = world.Dup()
    world.Barrier()
    begin = time.monotonic()
    if world.rank == 0:
        with pytest.raises(CollectiveTimeoutError, match="hardware of all hosts: not complete"):
            gather_survey(private, Layout.parse("3"), Process(), begin + 1)
        assert 0.8 < time.monotonic() - begin < 10
    world.Barrier()
