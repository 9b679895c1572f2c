"""NVLink fabrics that reach beyond a host, and what NCCL has on one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hpccoll.plans.detected import HostLinks, fabric_of, links_of
from hpccoll.plans.machines import MACHINES
from hpccoll.topology import fabric
from hpccoll.topology.fabric import links_from, own_fabric, visible, with_domains
from hpccoll.topology.hardware.detect import detect_host
from hpccoll.topology.hardware.model import Fabric, Gpu, NvLink, RdmaPort
from hpccoll.topology.layout import Layout
from tests.topology.conftest import Tree

if TYPE_CHECKING:
    from mpi4py import MPI

NCCL = 22700
LINKS = tuple(NvLink(index, True, 5.0) for index in range(18))


def gpus(*cliques: int | None, links: tuple[NvLink, ...] = LINKS) -> tuple[Gpu, ...]:
    """GPUs of one cluster and these cliques; None: of none that reaches beyond the host."""
    return tuple(
        Gpu(
            index, f"GPU-{index}a", "NVIDIA GB200", "unknown", links=links,
            fabric=Fabric("completed", "" if clique is None else "c0ffee", clique or 0),
        )
        for index, clique in enumerate(cliques)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        (None, (0, 1, 2, 3)),
        ("2,0", (2, 0)),
        ("GPU-1a, 3", (1, 3)),
        ("GPU-", ()),
        ("0,9,1", (0,)),
        ("", ()),
        ("-1", ()),
        ("MIG-GPU-1a/1/0", (0, 1, 2, 3)),
    ],
)
def test_visible_devices(text: str | None, indices: tuple[int, ...]) -> None:
    assert tuple(gpu.index for gpu in visible(gpus(1, 1, 1, 1), text)) == indices


@pytest.mark.parametrize(
    ("found", "environ", "expected"),
    [
        (gpus(7, 7, 7, 7), {}, "c0ffee.7"),
        (gpus(7, 7, 8, 8), {}, ""),
        (gpus(7, 7, 8, 8), {"CUDA_VISIBLE_DEVICES": "3"}, "c0ffee.8"),
        (gpus(None, None), {}, ""),
        (gpus(7, 7, links=()), {}, ""),
        (gpus(7, 7), {"NCCL_MNNVL_ENABLE": "0"}, ""),
        (gpus(7, 7), {"NCCL_MNNVL_ENABLE": "1"}, "c0ffee.7"),
        ((), {}, ""),
    ],
)
def test_the_fabric_of_a_process(
    monkeypatch: pytest.MonkeyPatch, found: Sequence[Gpu], environ: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(fabric, "joined_gpus", lambda: found)
    assert own_fabric(environ) == expected


def test_a_fabric_that_is_not_ready_joins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = [replace(gpu, fabric=Fabric("in progress", "c0ffee", 7)) for gpu in gpus(7, 7)]
    monkeypatch.setattr(fabric, "joined_gpus", lambda: starting)
    assert own_fabric({}) == ""


@pytest.mark.parametrize(
    ("nodes", "fabrics", "domains"),
    [
        ("2+2+2", "aaaaaa", ((0, 1, 2, 3, 4, 5),)),
        ("2+2+2", "aaaa..", ((0, 1, 2, 3), (4, 5))),
        ("2+2+2", "aabb..", None),
        ("2+2", "abab", ((0, 2), (1, 3))),
        ("4", "aabb", ((0, 1), (2, 3))),
        ("4", "aa..", ((0, 1), (2, 3))),
        ("cyclic:2+2", "aaaa", ((0, 1, 2, 3),)),
        ("2+2", "....", None),
    ],
)
def test_domains_of_ranks(nodes: str, fabrics: str, domains: tuple[tuple[int, ...], ...] | None) -> None:
    layout = Layout.parse(nodes)
    joined = with_domains(layout, [letter.strip(".") for letter in fabrics])
    assert joined.by_node == layout
    assert joined.by_domain.nodes == (domains or layout.nodes)
    assert (joined.domain_of is None) == (domains is None)
    assert (joined.by_domain is joined) == (domains is None)


@pytest.mark.parametrize(
    ("root", "hosts", "preset"),
    [
        ("dgx_a100", 1, "dgx-a100"),
        ("dgx_h100", 1, "dgx-h100"),
        ("hgx_h100", 1, "hgx-h200"),
        ("hgx_b200", 1, "hgx-b200"),
        ("gb200_tray", 18, "gb200-nvl72"),
    ],
)
def test_described_machines_have_the_links_of_their_presets(
    tree: Tree, root: str, hosts: int, preset: str
) -> None:
    host = detect_host(tree(root))
    found = fabric_of(links_from(host.gpus, host.rdma_ports), hosts, NCCL)
    assert found == MACHINES[preset].links.fabric
    assert not isinstance(found, str)
    assert links_of(found) == MACHINES[preset].links
    old = fabric_of(links_from(host.gpus, host.rdma_ports), hosts, 22100)
    assert not isinstance(old, str)
    assert not old.pat


@pytest.mark.parametrize(
    ("root", "why"),
    [
        ("workstation", "prices are for GPUs that NVSwitches join"),
        ("bridged_workstation", "prices are for GPUs that NVSwitches join"),
        ("gh200", "prices are for GPUs that NVSwitches join"),
        ("amd_cluster", "prices are for GPUs that NVSwitches join"),
        ("nvlink_lane_down", "17 NVLinks of a GPU are active, where H100, H200 have 18"),
    ],
)
def test_other_machines_have_no_price(tree: Tree, root: str, why: str) -> None:
    host = detect_host(tree(root))
    assert fabric_of(links_from(host.gpus, host.rdma_ports), 1, NCCL) == why


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        ([("Unspecified", 400.0)] * 8, (8, "EFA, 400 Gbit/s a GPU")),
        ([("Unspecified", 200.0)] * 16, (8, "EFA, 400 Gbit/s a GPU")),
        ([("Unspecified", 100.0)] * 4, "EFA of 400 Gbit/s a host has no price: 400 for each GPU have"),
        ([("InfiniBand", 400.0)] * 4, (4, "InfiniBand NDR")),
        ([("InfiniBand", 400.0)] * 10 + [("Ethernet", 100.0)], (8, "InfiniBand NDR")),
        ([("InfiniBand", 100.0)], "the network between the nodes has no price: InfiniBand of 200, 400 has"),
        ([("Ethernet", 400.0)] * 8, "the network between the nodes has no price: InfiniBand of 200, 400 has"),
        ([], "the network between the nodes is not one that has a price: no InfiniBand and no EFA"),
    ],
)  # fmt: skip
def test_networks(cards: list[tuple[str, float]], expected: tuple[int, str] | str) -> None:
    found = fabric_of(HostLinks(8, 4.0, 18, True, tuple(cards)), 1, NCCL)
    assert (found if isinstance(found, str) else (found.cards, found.network.name)) == expected


def test_links_of_a_host_travel_as_json() -> None:
    import json
    from dataclasses import asdict

    ports = [
        RdmaPort("mlx5_0", 1, "InfiniBand", "ACTIVE", "LinkUp", 400.0),
        RdmaPort("mlx5_1", 1, state="DOWN"),
    ]
    found = links_from(gpus(1, 1), ports)
    assert found == HostLinks(2, 5.0, 18, True, (("InfiniBand", 400.0),))
    assert HostLinks.of(json.loads(json.dumps(asdict(found)))) == found
    assert links_from((), ()) == HostLinks(0, 0.0, 0, True, ())


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("fabrics", "hosts", "domains"),
    [
        ("aaaa", "0011", ((0, 1, 2, 3),)),  # two hosts of one rack
        ("aabb", "0011", None),  # differing cliques: as the hosts are
        ("aabb", "0000", ((0, 1), (2, 3))),  # one host in two cliques
        ("aaa.", "0112", ((0, 1, 2), (3,))),  # the last host is in no domain
        ("abab", "0123", ((0, 2), (1, 3))),
    ],
)
def test_ranks_agree_on_domains(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, fabrics: str, hosts: str, domains: object
) -> None:
    """Each rank knows its own fabric alone; the communicator has that of all, virtual nodes have none."""
    import hpccoll
    from hpccoll.topology import machine, records
    from hpccoll.topology.report import format_tree, machine_as_dict

    facts = records.read_host_facts
    boot = f"host {hosts[world.rank]}"
    monkeypatch.setattr(records, "own_fabric", lambda environ: fabrics[world.rank].strip("."))
    monkeypatch.setattr(records, "read_host_facts", lambda where: replace(facts(where), boot_id=boot))
    keys = [int(host) for host in hosts]
    monkeypatch.setattr(machine, "_split_by_mpi", lambda comm, deadline: Layout.from_keys(keys))
    with hpccoll.Communicator(world) as comm:
        layout = comm.machine.layout
        assert layout.by_node == Layout.from_keys(keys)
        assert layout.by_domain.nodes == (domains or layout.nodes)
        assert comm.allgather(layout) == [layout] * 4
        levels = [level.family for level in comm.machine.levels]
        assert ("NVLINK" in levels) == (domains is not None)
        assert comm.allreduce(1) == 4
        text, document = format_tree(comm.machine), machine_as_dict(comm.machine)
        assert ("NVLink domains, in the place of nodes" in text) == (domains is not None)
        assert document["groups"]["LEADERS"] == [[node[0] for node in layout.nodes]]
        assert document["device_groups"]["LEADERS"] == [[one[0] for one in layout.domains]]
        half = comm.Split(comm.rank % 2)
        assert half.machine.layout.by_domain == layout.by_domain.restrict(
            [world.rank % 2, world.rank % 2 + 2]
        )
        half.Free()
    with hpccoll.Communicator(world, layout="nodes:" + ",".join(hosts)) as comm:
        assert comm.machine.layout.domain_of is None
