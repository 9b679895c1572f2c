"""NVLink domains in the place of nodes, and plans that are taken for their price."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from math import isnan
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import UsageError
from hpccoll.plans import on_devices
from hpccoll.plans.margins import margin
from hpccoll.topology.layout import Layout
from tests.gpu.memory import mirror, perform
from tests.support.launch import run_ranks
from tests.support.oracle import COLLECTIVES, Job, Ragged, every_root

SPANNING = ("aabb", "0123")  # four hosts of one rank, in two racks
SPLIT = ("aabb", "0000")  # one host in two cliques
UNEVEN = ("aaa.", "0112")  # a rack of three ranks on two hosts, and a rank on none


@pytest.fixture
def rack(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[hpccoll.Communicator]:
    """A communicator whose ranks are on these fabrics and hosts."""
    from hpccoll.topology import machine, records

    fabrics, hosts = request.param
    rank, facts = MPI.COMM_WORLD.rank, records.read_host_facts
    monkeypatch.setattr(records, "own_fabric", lambda environ: fabrics[rank].strip("."))
    monkeypatch.setattr(
        records, "read_host_facts", lambda where: replace(facts(where), boot_id=f"host {hosts[rank]}")
    )
    monkeypatch.setattr(machine, "_split_by_mpi", lambda comm, deadline: Layout.from_keys(list(hosts)))
    with hpccoll.Communicator(MPI.COMM_WORLD) as comm:
        yield comm


@pytest.mark.ranks(4)
@pytest.mark.parametrize("rack", [SPANNING, SPLIT, UNEVEN], indirect=True, ids=str)
def test_plans_on_devices_go_between_domains(rack: Any, stream: int) -> None:
    """Every collective by every plan of NCCL's calls; on the host plans go between hosts."""
    domains = rack.machine.layout.by_domain
    assert "two_level" in rack.algorithms("allgather", "device")
    assert ("rail" in rack.algorithms("allgather", "device")) == domains.is_uniform
    assert ("two_level" in rack.algorithms("allgather")) == (1 < rack.node_count < rack.size)
    for collective in set(COLLECTIVES) - {"scan", "exscan"}:
        for name in rack.algorithms(collective, "device"):
            for job in every_root([Job(collective, 1), Job(collective, 1003)], rack.size):
                before = rack.tally()[collective, name]
                with rack.forced(name):
                    perform(rack, job, stream)
                    assert rack.allreduce(1) == 4  # on the host, whose layout may have no such plan
                assert rack.tally()[collective, name] == before + 1, (collective, name)
    mine = domains.group("NODE", rack.rank)
    assert len(mine) == 1 or mine in rack._context.on_devices.side._groups.nccl


@pytest.mark.ranks(4)
@pytest.mark.parametrize("rack", [SPANNING], indirect=True, ids=str)
def test_blocks_of_different_lengths_go_flat(rack: Any, stream: int) -> None:
    lengths = tuple(range(1, 5))
    for collective in ("allgather", "gather", "scatter"):
        with rack.forced("two_level"):
            perform(rack, Ragged(collective, lengths), stream)
        assert ("allgather", "two_level") not in rack.tally()


@pytest.mark.ranks(4)
def test_a_plan_is_taken_where_its_price_is_clearly_lower(
    stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if NCCL's own call were dearer, since with four ranks no other is clearly cheaper."""

    def dearer(plan: Any, *arguments: Any) -> Any:
        cost = price(plan, *arguments)
        return replace(cost, time_s=times * cost.time_s) if plan.name == "flat" else cost

    price, times = on_devices.price, 1.0
    monkeypatch.setattr(on_devices, "price", dearer)
    with hpccoll.Communicator(MPI.COMM_WORLD, layout="2+2", device_machine="dgx-a100") as comm:
        sure = comm.explain("broadcast", 64, memory="device")
        assert sure.plan == "flat"
        assert sure.candidates[0].time_s < sure.candidates[1].time_s * margin(64)
        clear = margin(128)
        perform(comm, Job("broadcast", 16), stream)
        times = 1.02 * clear * sure.candidates[1].time_s / sure.candidates[0].time_s
        cheap = comm.explain("broadcast", 128, dtype="i4", memory="device")
        assert cheap.plan == "two_level"
        assert f"times as fast as NCCL's own call; {clear:.2f} is enough" in str(cheap)
        perform(comm, Job("broadcast", 32), stream)
        assert comm.tally()["broadcast", "two_level"] == 1
        assert comm.tally()["broadcast", "flat"] == 1
        times *= 0.95
        unsure = comm.explain("broadcast", 256, memory="device")
        assert unsure.plan == "flat"
        assert f"below {clear:.2f} that is not sure" in unsure.why
        bits = comm.explain("allreduce", 128, dtype="i4", op=MPI.BXOR, memory="device")
        assert (bits.plan, bits.why) == (
            "flat", "NCCL's own call: nothing was measured, and kernels combine, which has no price"
        )  # fmt: skip
        with comm.forced("two_level"):
            assert comm.explain("broadcast", 64, memory="device").why == "asked for by name: two_level"


@pytest.mark.ranks(2, 4)
def test_here_nothing_is_priced(stream: int) -> None:
    """Virtual nodes have no network between them that has a price."""
    layout = "+".join(["2"] * (MPI.COMM_WORLD.size // 2))
    with hpccoll.Communicator(MPI.COMM_WORLD, layout=layout) as comm:
        found = comm.explain("allgather", 4096, memory="device")
        assert found.plan == "flat"
        if comm.node_count == 1:
            assert found.why.startswith("NCCL's own call, which is all there is for one node")
        else:
            assert found.why == "NCCL's own call: nothing was measured, and the nodes are virtual"
            assert isnan(found.candidates[0].time_s)
            assert "not priced" in str(found)
        with pytest.raises(UsageError, match="memory is 'gpu': must be one of host, device"):
            comm.explain("allgather", 4096, memory="gpu")
        assert comm.explain("scan", 4096, memory="device").why.startswith("on devices NCCL's call")
        send, take = mirror(np.arange(3.0), stream), mirror(np.zeros(3), stream)
        comm.Allreduce(send, take)
        assert (take.download() == np.arange(3.0) * comm.size).all()
    with hpccoll.Communicator(MPI.COMM_WORLD, device_path="host") as comm:
        why = comm.explain("allreduce", 4096, memory="device").why
        assert why.startswith("on devices over the host; there: ")


@pytest.mark.skipif("STANDIN_FOLDER" not in os.environ, reason="a fabric of the stand-in")
@pytest.mark.timeout(180)
def test_the_fabric_that_nvml_tells() -> None:
    """Ranks of one host in two cliques; NCCL_MNNVL_ENABLE=0 on one of them takes it out."""
    program = """
import os
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
os.environ["STANDIN_FABRIC"] = f"rack:{rank % 2}"
if rank == 3:
    os.environ["NCCL_MNNVL_ENABLE"] = "0"
import hpccoll
with hpccoll.Communicator(MPI.COMM_WORLD) as comm:
    found = comm.allgather(comm.machine.layout.domains)
if rank == 0:
    print(*set(found))
"""
    done = run_ranks(4, ["-c", program], timeout_s=120)
    assert done.returncode == 0, done
    assert done.stdout.strip() == "((0, 2), (1,), (3,))"


@pytest.mark.ranks(4)
@pytest.mark.parametrize("rack", [SPANNING], indirect=True, ids=str)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"lanes": 17}, "the hosts have different GPUs, links or network cards"),
    ],
    ids=["alike", "one differs"],
)
def test_prices_are_those_of_the_hosts_that_a_domain_joins(
    rack: Any, stream: int, monkeypatch: pytest.MonkeyPatch, change: dict[str, int], why: str
) -> None:
    """Two hosts of four GPUs and cards each are a node of eight; the same on all ranks."""
    from hpccoll.plans.detected import HostLinks
    from hpccoll.runtime import device_side

    tray = HostLinks(4, 5.0, 18, True, (("InfiniBand", 400.0),) * 4)
    mine = replace(tray, **change) if rack.rank == 2 else tray
    monkeypatch.setattr(device_side, "own_links", lambda: mine)
    found = rack.explain("allgather", 4096, memory="device")
    perform(rack, Job("allgather", 1024), stream)
    links = rack._context.on_devices.side._links
    if why:
        assert links is None
        assert found.why == f"NCCL's own call: nothing was measured, and {why}"
        return
    assert (links.fabric.gpus, links.fabric.cards, links.fabric.network.name) == (8, 8, "InfiniBand NDR")
    assert not isnan(found.candidates[0].time_s)
    assert rack.allgather(str(found)) == [str(found)] * 4
