"""`hpccoll doctor`: on each described machine it names what is wrong, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpccoll import cli
from hpccoll.cli.doctor import of_survey, report
from hpccoll.doctor import placement
from hpccoll.doctor.finding import ABSENT, FINE, NOTE, UNKNOWN, WRONG, Finding, Verdict, judge
from hpccoll.doctor.network import rounds, slow_links
from hpccoll.topology.hardware.detect import survey_below
from hpccoll.topology.hardware.document import Survey
from hpccoll.topology.hardware.model import Interface, Process, Unknown
from tests.topology.conftest import Tree
from tests.topology.fixtures.broken import BROKEN
from tests.topology.fixtures.machines import HEALTHY
from tests.topology.fixtures.others import OTHERS

# For each broken machine the check that finds it, and words of what it says.
NAMED = {
    "nvlink_lane_down": ("NVLink", ("GPU 3", "17 of 18", "lane 7", "--gpu-reset -i 3")),
    "pcie_width": ("PCIe", ("GPU 5", "x4 at 32 GT/s", "x16")),
    "pcie_speed": ("PCIe", ("mlx5_6", "8 GT/s", "32 GT/s")),
    "port_down": ("network ports", ("mlx5_9:1", "DOWN", "Polling")),
    "port_slow": ("network ports", ("mlx5_3:1", "200 Gbit/s", "400 Gbit/s")),
    "gpu_far_from_its_card": ("GPU to network", ("GPU 2", "far", "PIX")),
    "acs_on": ("ACS", ("ACS is on",)),
    "no_peermem": ("GPUDirect RDMA", ("nvidia_peermem", "modprobe nvidia-peermem")),
    "gpu_lost": ("GPUs", ("7 of 8 GPUs", "0000:d1:00.0", "xid")),
    "no_port": ("network ports", ("mlx5_0:1", "DOWN", "Polling")),
    "half_a_bond": ("bonds", ("bond3 runs on 1 of its 2 links", "eth7 is down")),
    "no_imex": ("NVLink fabric", ("no IMEX channel", "nvidia-imex")),
}


def wrong(verdicts: Iterable[Verdict]) -> list[tuple[str, Finding]]:
    return [(one.check, finding) for one in verdicts for finding in one.said(WRONG)]


@pytest.mark.parametrize("name", [*HEALTHY, *OTHERS, "bridged_workstation"])
def test_nothing_is_wrong_with_a_healthy_machine(tree: Tree, name: str) -> None:
    verdicts = of_survey(survey_below(tree(name)))
    assert wrong(verdicts) == []
    assert {one.word for one in verdicts} <= {FINE, NOTE, UNKNOWN, ABSENT}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_broken_machine(tree: Tree, name: str) -> None:
    ((check, found),) = wrong(of_survey(survey_below(tree(name))))
    wanted, words = NAMED[name]
    assert check == wanted
    for one in words:
        assert one in f"{found.text} {found.evidence} {found.cure}"
    assert found.evidence
    assert found.cure


NOTED = {
    "hgx_h200_four_cards": {
        "GPU to network": "GPUs 1, 3, 5, 7 are farther from the network than the others: NODE"
    },
    "l40s_box": {
        "GPU to network": "GPUs 4, 5, 6, 7 are farther from the network than the others: SYS",
        "network ports": "port mlx5_1:1 is DOWN, the other port of its card is active",
    },
    "roce_bonds": {},
    "aws_p5en": {},
    "azure_nd": {},
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_other_machines_have_by_design_is_a_note_at_most(tree: Tree, name: str) -> None:
    verdicts = of_survey(survey_below(tree(name)))
    assert {one.check: one.findings[0].text for one in verdicts if one.word == NOTE} == NOTED[name]
    unknown = {one.check for one in verdicts if one.word == UNKNOWN}
    assert unknown == ({"GPU to network"} if name == "azure_nd" else set())
    assert cli.main(["topo", "--root", str(tree(name))]) == 0


def test_a_card_that_is_missing_is_wrong(tree: Tree) -> None:
    full = survey_below(tree("hgx_h100")).hosts[0]
    without = replace(full, rdma_ports=tuple(one for one in full.rdma_ports if one.device != "mlx5_4"))
    ((check, found),) = wrong(of_survey(Survey((without,))))
    assert (check, found.text) == ("GPU to network", "GPU 2 is far from the network: NODE, the others PIX")


def test_an_unused_port_that_other_hosts_use_is_wrong(tree: Tree) -> None:
    box = survey_below(tree("l40s_box")).hosts[0]
    ports = tuple(replace(one, state="ACTIVE", rate_gbit_s=200.0) for one in box.rdma_ports)
    used = replace(box, name="used", rdma_ports=ports)
    ((check, found),) = wrong(of_survey(Survey((box, used, replace(used, name="also")))))
    assert check == "network ports"
    assert found.text == "l40s: port mlx5_1:1 is DOWN, physically Polling"


@pytest.mark.parametrize(
    ("change", "check", "word"),
    [
        ({"gpus": ()}, "GPUs", WRONG),
        ({"gpus": (), "unknown": (Unknown("gpus", "no NVML"),)}, "GPUs", UNKNOWN),
        ({"gpus": (), "unknown": (Unknown("gpus", "no NVML"),)}, "NVLink", UNKNOWN),
        ({"gpus": (), "unknown": (Unknown("gpus", "no NVML"),)}, "GPUDirect RDMA", UNKNOWN),
        ({"gpus": (), "unknown": (Unknown("gpus", "no NVML"),)}, "ACS", UNKNOWN),
        ({"gpus": (), "unknown": (Unknown("gpus", "no NVML"),)}, "NCCL", UNKNOWN),
        ({"gpus": (), "pci": (), "unknown": (Unknown("gpus", "no NVML"),)}, "NVLink", ABSENT),
        ({"gpus": (), "pci": (), "unknown": (Unknown("gpus", "a"), Unknown("pci", "b"))}, "GPUs", UNKNOWN),
    ],
)
def test_what_could_not_be_looked_at_is_never_fine(
    tree: Tree, change: dict[str, Any], check: str, word: str
) -> None:
    host = replace(survey_below(tree("dgx_h100")).hosts[0], **change)
    (verdict,) = (one for one in of_survey(Survey((host,))) if one.check == check)
    assert verdict.word == word


def test_as_few_lanes_on_all_gpus_are_noted(tree: Tree) -> None:
    """So some models are sold; or a switch is missing."""
    host = survey_below(tree("dgx_h100")).hosts[0]
    few = []
    for gpu in host.gpus:
        links = tuple(replace(one, active=one.index < 8) for one in gpu.links)
        few.append(replace(gpu, links=links))
    (verdict,) = (
        one for one in of_survey(Survey((replace(host, gpus=tuple(few)),))) if one.check == "NVLink"
    )
    assert verdict.word == NOTE
    assert verdict.findings[0].text == "each NVIDIA H100 80GB HBM3 has 8 of 18 lanes of NVLink"


def test_the_command(tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--root", str(tree("dgx_h100"))]) == 0
    assert "0 wrong" in capsys.readouterr().out
    path = tmp_path / "doctor.json"
    assert cli.main(["doctor", "--root", str(tree("port_down")), "--json", str(path)]) == 1
    assert "wrong   network ports: port mlx5_9:1 is DOWN" in capsys.readouterr().out
    document = json.loads(path.read_text())
    assert document["status"] == 1
    assert [one["check"] for one in document["checks"] if one["word"] == WRONG] == ["network ports"]
    assert cli.main(["doctor", "--root", str(tree("port_down")), "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out) == document
    assert cli.main(["doctor", "--root", str(tmp_path / "none")]) == cli.MISUSE
    assert cli.main(["doctor", "--root", str(tree("laptop")), "--json", str(tmp_path)]) == cli.MISUSE


def job(tree: Tree, names: list[str], ranks: int, **process: Any) -> Survey:
    """Hosts by name, with so many ranks each; a rank has 8 cores and sees all GPUs of its host."""
    hosts = [
        replace(survey_below(tree(name)).hosts[0], name=f"node{number}", boot_id=str(number))
        for number, name in enumerate(names)
    ]
    processes, host_of = [], []
    for number, host in enumerate(hosts):
        for place in range(ranks):
            usual = Process(
                cpus=tuple(range(8 * place, 8 * place + 8)),
                memlock_bytes=-1,
                mpi_library="Open MPI v5.0.6",
                mpi_cuda_aware=True,
                nccl="2.27.5",
                nccl_cuda="12",
                visible_devices=tuple(gpu.uuid for gpu in host.gpus),
            )
            processes.append(replace(usual, **process))
            host_of.append(number)
    return Survey(tuple(hosts), tuple(processes), tuple(host_of))


def changed(survey: Survey, rank: int, **process: Any) -> Survey:
    found = [replace(one, **process) if index == rank else one for index, one in enumerate(survey.processes)]
    return replace(survey, processes=tuple(found))


def test_a_job_in_which_all_is_well(tree: Tree) -> None:
    assert wrong(of_survey(job(tree, ["dgx_h100", "dgx_h100"], 2))) == []


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        (lambda job: changed(job, 3, nccl="2.21.5"), "NCCL", "2.27.5 (ranks 0-2), 2.21.5 (rank 3)"),
        (lambda job: changed(job, 1, mpi_library="MPICH 4.2"), "MPI", "MPICH 4.2 (rank 1)"),
        (
            lambda job: changed(job, 2, nccl_cuda="13.0"),
            "CUDA",
            "rank 2: NCCL was built for CUDA 13.0, and driver 535.129.03 knows CUDA up to 12.2",
        ),
        (lambda job: changed(job, 2, memlock_bytes=65536), "locked memory", "rank 2 may lock 64 KiB"),
        (
            lambda job: changed(job, 2, environment=(("NCCL_ALGO", "Ring"),)),
            "variables",
            "NCCL_ALGO differs between ranks: (not set) (ranks 0, 1, 3), Ring (rank 2)",
        ),
        (lambda job: changed(job, 1, cpus=job.processes[0].cpus[:1]), "", ""),
        (
            lambda job: changed(changed(job, 0, cpus=(0,)), 1, cpus=(0,)),
            "cores of ranks",
            "ranks 0, 1 on node0 may use core 0 alone",
        ),
        (
            lambda job: changed(
                changed(job, 0, visible_devices=job.processes[0].visible_devices[:1]),
                1,
                visible_devices=job.processes[0].visible_devices[:1],
            ),
            "GPUs of ranks",
            "ranks 0, 1 on node0 take one GPU",
        ),
        (
            lambda job: replace(
                job, processes=tuple(replace(one, visible_devices=()) for one in job.processes)
            ),
            "GPUs of ranks",
            "no rank sees one",
        ),
        (
            lambda job: replace(job, hosts=(job.hosts[0], replace(job.hosts[1], name="node0"))),
            "host names",
            "2 hosts are called node0",
        ),
        (
            lambda job: replace(
                job, hosts=(job.hosts[0], replace(job.hosts[1], shm_bytes=64 << 20, shm_free_bytes=None))
            ),
            "/dev/shm",
            "node1: /dev/shm has 64 MiB",
        ),
    ],
)
def test_one_thing_wrong_with_a_job(
    tree: Tree, change: Callable[[Survey], Survey], check: str, words: str
) -> None:
    found = wrong(of_survey(change(job(tree, ["dgx_h100", "dgx_h100"], 2))))
    if not check:
        assert found == []
        return
    ((where, finding),) = found
    assert where == check
    assert words in finding.text


def test_a_rank_far_from_its_gpu(tree: Tree) -> None:
    survey = job(tree, ["dgx_h100"], 2)
    host = survey.hosts[0]
    far = next(node for node in host.numa_nodes if 0 not in node.cpus)
    ((check, found),) = wrong(of_survey(changed(survey, 0, cpus=far.cpus[:8])))
    assert (check, "NUMA node 0" in found.text, "rank 0 on node0" in found.text) == (
        "cores of ranks",
        True,
        True,
    )


def test_ranks_that_see_one_gpu_each_are_noted(tree: Tree) -> None:
    survey = job(tree, ["dgx_h100"], 2)
    for rank in range(2):
        survey = changed(
            survey, rank, visible_devices=survey.processes[rank].visible_devices[rank : rank + 1]
        )
    (verdict,) = [one for one in of_survey(survey) if one.check == "GPUs of ranks"]
    assert verdict.word == NOTE
    assert "--gpus-per-node" in verdict.findings[0].cure


@pytest.mark.parametrize(
    ("environment", "word", "words"),
    [
        ({}, FINE, ""),
        ({"NCCL_IB_DISABLE": "0"}, FINE, ""),
        ({"NCCL_IB_DISABLE": "1"}, WRONG, "is there: NCCL_IB_DISABLE=1 (rank 0)"),
        ({"NCCL_NET": "Socket"}, WRONG, "NCCL_NET=Socket"),
        ({"NCCL_IB_HCA": "mlx5"}, FINE, ""),
        ({"NCCL_IB_HCA": "=mlx5_0:1"}, FINE, ""),
        ({"NCCL_IB_HCA": "^mlx5_0"}, FINE, ""),
        ({"NCCL_IB_HCA": "bnxt_re0"}, WRONG, "NCCL_IB_HCA=bnxt_re0 names no active port"),
    ],
)
def test_whether_nccl_takes_the_network(
    tree: Tree, environment: dict[str, str], word: str, words: str
) -> None:
    survey = job(tree, ["dgx_h100"], 1, environment=tuple(environment.items()))
    (verdict,) = [one for one in of_survey(survey) if one.check == "NCCL's network"]
    assert (verdict.word, words in verdict.findings[0].text) == (word, True)


@pytest.mark.parametrize(
    ("environment", "word", "words"),
    [
        ({}, FINE, ""),
        ({"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5"}, FINE, ""),  # of verbs, which EFA has not
        ({"FI_PROVIDER": "efa;shm"}, FINE, ""),
        ({"FI_PROVIDER": "tcp"}, WRONG, "libfabric is told to leave EFA: FI_PROVIDER=tcp (rank 0)"),
        ({"NCCL_NET": "Socket"}, WRONG, "NCCL goes over sockets, though EFA is there"),
    ],
)
def test_whether_nccl_takes_efa(tree: Tree, environment: dict[str, str], word: str, words: str) -> None:
    survey = job(tree, ["aws_p5en"], 1, environment=tuple(environment.items()))
    (verdict,) = [one for one in of_survey(survey) if one.check == "NCCL's network"]
    assert (verdict.word, words in verdict.findings[0].text) == (word, True)


@pytest.mark.parametrize(
    ("name", "value", "word", "words"),
    [
        ("NCCL_SOCKET_IFNAME", "eth0", FINE, ""),
        ("NCCL_SOCKET_IFNAME", "eth", FINE, ""),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo", ABSENT, ""),
        ("OMPI_MCA_btl_tcp_if_include", "10.0.0.0/24", FINE, ""),
        ("UCX_NET_DEVICES", "mlx5_0:1", FINE, ""),
        ("NCCL_SOCKET_IFNAME", "docker0", WRONG, "docker0 is a docker interface"),
        ("FI_TCP_IFACE", "lo", WRONG, "lo is a loopback interface"),
        ("NCCL_SOCKET_IFNAME", "eth7", WRONG, "node0 has no interface eth7"),
        ("NCCL_SOCKET_IFNAME", "eth1", WRONG, "eth1 is down on node0"),
    ],
)
def test_interfaces_that_are_chosen(tree: Tree, name: str, value: str, word: str, words: str) -> None:
    survey = job(tree, ["dgx_h100"], 1, environment=((name, value),))
    interfaces = (
        Interface("lo", "loopback", "unknown"),
        Interface("docker0", "docker", "up"),
        Interface("eth0", "ethernet", "up"),
        Interface("eth1", "ethernet", "down"),
    )
    survey = replace(survey, hosts=(replace(survey.hosts[0], interfaces=interfaces),))
    (verdict,) = [one for one in of_survey(survey) if one.check == "chosen interfaces"]
    assert (verdict.word, words in verdict.findings[0].text) == (word, True)


def test_a_host_that_differs_is_noted(tree: Tree) -> None:
    verdicts = of_survey(job(tree, ["dgx_h100", "dgx_h100", "port_slow"], 1))
    assert [one.check for one in verdicts if one.word == WRONG] == ["network ports"]
    (verdict,) = [one for one in verdicts if one.check == "hosts alike"]
    assert verdict.word == NOTE
    assert all("node2" in one.text for one in verdict.findings)


# --- starting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "size", "word"),
    [
        ({}, 1, FINE),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}, 1, WRONG),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}, 4, FINE),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}, 2, NOTE),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "8"}, 8, FINE),
        ({"PMI_SIZE": "4"}, 1, WRONG),
    ],
)
def test_how_the_processes_were_started(environ: dict[str, str], size: int, word: str) -> None:
    found = judge("processes", placement.processes(environ, size, "MPICH 5.0"), "all")
    assert found.word == word
    if word == WRONG:
        assert "do not know of each other" in found.findings[0].text


# --- links ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 7, 16, 40])
def test_rounds(hosts: int) -> None:
    pairs = [pair for one in rounds(hosts) for pair in one]
    assert len(set(pairs)) == len(pairs)
    assert all(0 <= a < b < hosts for a, b in pairs)
    for one in rounds(hosts):
        assert len({host for pair in one for host in pair}) == 2 * len(one)
    if hosts <= 16:
        assert len(pairs) == hosts * (hosts - 1) // 2
    else:
        met = [sum(host in pair for pair in pairs) for host in range(hosts)]
        assert min(met) >= 14


def rates(
    hosts: int, out: dict[int, float], into: dict[int, float], pairs: dict[tuple[int, int], float]
) -> Any:
    """Rates between hosts that send and receive at 100 MB/s but for these."""
    return {
        (a, b): 1e6 * min(out.get(a, 100), into.get(b, 100), pairs.get((a, b), 1e9))
        for a in range(hosts)
        for b in range(hosts)
        if a != b
    }


@pytest.mark.parametrize("hosts", [2, 3, 4, 8])
def test_slow_links_are_named(hosts: int) -> None:
    names = [f"node{number}" for number in range(hosts)]

    def texts(**table: Any) -> list[str]:
        full = {"out": {}, "into": {}, "pairs": {}} | table
        return [one.text for one in slow_links(rates(hosts, **full), names)]

    assert texts() == []
    assert texts(out={1: 70.0}) == []
    (one,) = texts(out={1: 10.0})
    assert one == "the link of node1 is slow: it sends at 10 MB/s, the others at 100 MB/s"
    if hosts > 2:
        (one,) = texts(into={0: 10.0})
        assert one == "the link of node0 is slow: it receives at 10 MB/s, the others at 100 MB/s"
        (one,) = texts(out={1: 10.0}, into={1: 10.0})
        assert one.startswith(
            "the link of node1 is slow: it sends at 10 MB/s, the others at 100 MB/s and rec"
        )
        (one,) = texts(pairs={(0, 2): 10.0})
        assert one.startswith("from node0 to node2 it is slow: 10 MB/s, though both reach 100 MB/s")
    assert [one.word for one in slow_links({}, ["node0"])] == [ABSENT]


def test_the_report_is_short_for_many_findings() -> None:
    many = Verdict("PCIe", tuple(Finding(WRONG, f"card {number}") for number in range(40)))
    text = report("", [many])
    assert text.count("wrong   PCIe: card") == 12
    assert "PCIe: and 28 more" in text
    assert "40 wrong" in text
