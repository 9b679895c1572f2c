"""NCCL's dumps and logs: several versions, cut off, hostile."""

from __future__ import annotations

import random
import time

import pytest

from hpccoll.errors import UsageError
from hpccoll.topology.nccl_view.graphs import parse_graphs
from hpccoll.topology.nccl_view.log import NcclTree, parse_log
from hpccoll.topology.nccl_view.topology import parse_topology
from tests.topology.fixtures.nccl import GRAPHS, TOPOLOGY_2_19, TOPOLOGY_2_27, log

VERSIONS = ("2.18.5", "2.19.3", "2.21.5", "2.23.4", "2.26.2", "2.27.5", "2.28.3")


def test_a_topology() -> None:
    found = parse_topology(TOPOLOGY_2_19)
    (gpu,) = found.gpus
    assert (gpu.dev, gpu.rank, gpu.sm, gpu.gdr, gpu.numa_node, gpu.host) == (0, 0, 80, True, 3, "")
    assert (gpu.address, gpu.bridges) == ("0000:07:00.0", ("0000:01:00.0",))
    assert [(one.target, one.count, one.to_switch) for one in gpu.links] == [
        ("0000:c4:00.0", 2, True),
        ("0000:c5:00.0", 2, True),
    ]
    card, ethernet = found.nets
    assert (card.name, card.speed_gbit_s, card.gdr, card.address) == ("mlx5_0", 200.0, True, "0000:0c:00.0")
    assert (ethernet.name, ethernet.gdr, ethernet.address, ethernet.numa_node) == ("eth0", False, None, None)
    assert found.numa_nodes == (3,)


def test_a_topology_of_two_hosts_on_one_fabric() -> None:
    first, second = parse_topology(TOPOLOGY_2_27).gpus
    assert (first.host, second.host) == ("0x1234abcd5678ef00", "0xfedc000000000001")
    assert first.links == second.links
    assert first.links[0].count == 18
    assert first.c2c_gb_s == pytest.approx(223.56)


def test_graphs() -> None:
    ring, tree, nvls = parse_graphs(GRAPHS)
    assert (ring.algorithm, ring.pattern, ring.type_intra, ring.type_inter) == ("ring", "ring", "NVL", "PXB")
    assert [(one.gpus, one.receive, one.send) for one in ring.channels] == [((0, 1), 0, 0), ((1, 0), 1, 1)]
    assert (tree.pattern, tree.speed_inter, tree.channels[0].receive) == ("balanced tree", 12.5, None)
    assert (nvls.algorithm, nvls.channels) == ("nvls", ())
    assert (
        parse_graphs('<graphs version="1"><graph id="9" pattern="77"/></graphs>')[0].pattern == "pattern 77"
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_log(version: str) -> None:
    found = parse_log(log(version))
    assert found.versions == [version]
    assert found.networks == ["IB"]
    assert found.devices == {0: ("mlx5_0:1", "IB"), 1: ("mlx5_1:1", "RoCE")}
    assert found.settings == {"NCCL_IB_HCA": "mlx5_0,mlx5_1"}
    assert found.warnings == ["socketProgress: Connection closed by remote peer"]
    (comm,) = found.communicators
    modern = version != "2.18.5"
    assert (comm.id, comm.size, comm.nvls) == ("0xabc", 4, modern)
    assert comm.ranks == {0: "7000", 1: "f000", 2: "7000", 3: "f000"}
    assert comm.rings == {0: (0, 1, 2, 3), 1: (0, 1, 2, 3)}
    assert comm.trees[:2] == [NcclTree(0, 0, 2, (1,)), NcclTree(1, 0, None, (1, 2))]
    assert comm.channels["coll"] == comm.channels["p2p"] == 2
    assert comm.channels["nvls"] == (16 if modern else 0)
    assert comm.transports() == {"P2P": 2, "SHM": 2, "NET/IB/GDRDMA": 2, "NET/IB": 2}
    net = next(one for one in comm.connections if one.transport == "NET")
    assert (net.source, net.target, net.device, net.gdr, net.way) == (1, 2, 0, True, "send")
    inside = comm.connections[0]
    assert (inside.detail, inside.gdr) == ("CUMEM" if modern else "IPC/read", None)


@pytest.mark.parametrize("prefix", ["[1,3]<stdout>:", "3: ", "2026-01-02T03:04:05Z ", "\x1b[0m"])
def test_prefixes_of_launchers(prefix: str) -> None:
    lines = [prefix + line for line in log("2.21.5").splitlines()]
    assert parse_log(lines).communicators[0].transports() == {
        "P2P": 2,
        "SHM": 2,
        "NET/IB/GDRDMA": 2,
        "NET/IB": 2,
    }


def test_two_communicators_are_kept_apart() -> None:
    one = log("2.27.5")
    other = one.replace("commId 0xabc", "commId 0xdef")
    for rank in range(4):
        other = other.replace(f":{200 + rank} [", f":{300 + rank} [")
    found = parse_log(one + other.replace("0   1   2   3", "0   3   2   1"))
    assert [comm.id for comm in found.communicators] == ["0xabc", "0xdef"]
    assert [comm.rings[0] for comm in found.communicators] == [(0, 1, 2, 3), (0, 3, 2, 1)]
    assert [len(comm.connections) for comm in found.communicators] == [8, 8]


def test_a_log_of_another_program_is_empty() -> None:
    found = parse_log("epoch 1 loss 0.3\nNCCL\nchannel 00/02 : 0 1\n")
    assert found.communicators == found.versions == []


def test_logs_that_are_cut_or_damaged_anywhere() -> None:
    text, chance = log("2.27.5"), random.Random(7)
    for place in range(0, len(text), 97):
        parse_log(text[:place])
    for _ in range(50):
        letters = list(text)
        for _ in range(40):
            letters[chance.randrange(len(letters))] = chance.choice("0[]:->/ \n\0x")
        parse_log("".join(letters))


def test_lines_made_to_keep_a_parser_busy_take_no_time() -> None:
    head = "h:1:2 [0] NCCL INFO "
    begin = time.process_time()
    for line in (
        "Channel 00/02 : " + "1" * 200_000 + "x",
        "Channel 00/02 : " + "1 " * 200_000 + "x",
        "Trees " + "[0] 1/-1/-1->0->" * 20_000,
        "Channel 00/0 : 0[0] -> 1[1] via " + "/" * 200_000,
        "NCCL_A set to " + "." * 200_000,
        "comm 0x1 rank 0 nranks 4 cudaDev 0 busId 1 " + "a" * 200_000,
        "NET/IB : Using " + "[0]" * 60_000,
        "a:" * 100_000,
    ):
        parse_log(head + line)
        parse_log(line + " NCCL INFO")
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("document", [TOPOLOGY_2_19, GRAPHS])
def test_documents_that_are_cut_anywhere(document: str) -> None:
    parse = parse_topology if document is TOPOLOGY_2_19 else parse_graphs
    for place in range(0, len(document.rstrip()), 61):
        with pytest.raises(UsageError, match="not a whole XML document"):
            parse(document[:place])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "not a whole XML document"),
        (b"\xff\xfe\x00", "not a whole XML document"),
        ("\ud800", "not an XML document"),
        ("<graphs/>", "must be <system>"),
        ('<!DOCTYPE system [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><system>&b;</system>', "DOCTYPE"),
        ('<!DOCTYPE system SYSTEM "file:///etc/passwd"><system/>', "DOCTYPE"),
        ("<system>" + "<pci>" * 200 + "</pci>" * 200 + "</system>", "levels"),
        ("<system><cpu/></system>", "<cpu> has no numaid"),
        ('<system><cpu numaid="x"/></system>', "must be a whole number"),
        (f'<system><cpu numaid="{"9" * 5000}"/></system>', "must be a whole number"),
        ('<system>\n<cpu numaid="0"><gpu sm="80"/></cpu></system>', "line 2: <gpu> has no dev"),
        ('<system><cpu numaid="0"><net dev="0" speed="fast"/></cpu></system>', "must be a whole number"),
        ("<system>" + " " * (1 << 26) + "</system>", "bytes of XML"),
    ],
    ids=range(13),
)
def test_hostile_documents(document: str | bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_topology(document)
