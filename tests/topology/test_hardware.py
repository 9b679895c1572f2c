"""What is detected of described machines: facts, distances, domains, text, documents."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from hpccoll.errors import UsageError
from hpccoll.topology.hardware.affinity import affinities, distance, nearest
from hpccoll.topology.hardware.compare import differences
from hpccoll.topology.hardware.detect import detect_host, detect_process, survey_below
from hpccoll.topology.hardware.document import Survey, load, save, survey_as_dict, survey_from_dict
from hpccoll.topology.hardware.domains import gpu_domains, joined_layout
from hpccoll.topology.hardware.files import format_numbers, number_list
from hpccoll.topology.hardware.model import Host, Process
from hpccoll.topology.hardware.pci import lane_gb_s, link_gb_s
from hpccoll.topology.hardware.text import format_survey
from hpccoll.topology.layout import Layout
from tests.topology.conftest import Tree

SAYS = {
    "dgx_a100": [
        "NVIDIA DGXA100 920-23687-2530-000: AMD EPYC 7742 64-Core Processor, 2 x 64 cores; 8 NUMA nodes",
        "9 x InfiniBand ACTIVE 200 Gbit/s, 1 x RoCE ACTIVE 100 Gbit/s",
        "NVLink 3.0: 12 of 12 lanes to switches, 300 GB/s",
        "NVSwitch: 6 chips",
        "GPU 0  PXB mlx5_0, mlx5_1; SYS mlx5_2",
        "GPU 4  PXB mlx5_6, mlx5_7; SYS",
        "nvidia_peermem yes, dma-buf no, IOMMU no, ACS of bridges: 57 x off",
        "8 GPUs 0, 1, 2, 3, 4, 5, 6, 7 on dgx-a100",
    ],
    "dgx_h100": [
        "2 x 56 cores; 2 NUMA nodes; 1.97 TiB; 8 x NVIDIA H100 80GB HBM3; 10 x InfiniBand ACTIVE 400 Gbit/s",
        "NVLink 4.0: 18 of 18 lanes to switches, 478 GB/s",
        "NVSwitch: 4 chips",
        "PCIe x16 at 32 GT/s",
        "GPU 6  PXB mlx5_10; NODE",
        "docker0  docker  down",
    ],
    "hgx_h100": ["8 x InfiniBand ACTIVE 400 Gbit/s", "GPU 7  PIX mlx5_11; NODE", "dma-buf yes"],
    "hgx_b200": [
        "NVLink 5.0: 18 of 18 lanes to switches, 956 GB/s",
        "4 NUMA nodes",
        "GPU 2  PIX mlx5_8; NODE mlx5_9; SYS",
        "8 GPUs 0, 1, 2, 3, 4, 5, 6, 7 on hgx-b200",
    ],
    "gb200_tray": [
        "4 x NVIDIA GB200",
        "NVLink-C2C 224 GB/s  fabric 3143b15b clique 32766 completed",
        "2 NUMA nodes; 960 GiB",
        "fabric 3143b15b clique 32766: 4 GPUs",
    ],
    "gh200": ["72 cores; 1 NUMA node; 480 GiB; 1 x NVIDIA GH200 480GB", "0 of 18 lanes  NVLink-C2C 447 GB/s"],
    "workstation": ["4 x NVIDIA RTX A6000; no InfiniBand", "no NVLink", "ethernet  up  10 Gbit/s  ixgbe"],
    "bridged_workstation": [
        "NVLink 3.1: 4 of 4 lanes to GPUs, 56.2 GB/s",
        "2 GPUs 0, 1 on workstation",
        "2 GPUs 2, 3 on workstation",
    ],
    "amd_cluster": [
        "AMD EPYC 7763 64-Core Processor, 2 x 64 cores; 8 NUMA nodes; 256 GiB; no GPU found; "
        "1 x InfiniBand ACTIVE 200 Gbit/s",
        "NUMA node 1  cores 16-31  32 GiB\n│   └── NIC mlx5_0:1",
        "UCX_NET_DEVICES=mlx5_0:1",
    ],
    "laptop": ["4 cores; 1 NUMA node; 31 GiB; no GPU found", "wlp0s20f3  wireless  up", "memlock      4 MiB"],
    "nvlink_lane_down": ["GPU 3  NVIDIA H100", "NVLink 4.0: 17 of 18 lanes to switches, 452 GB/s"],
    "pcie_width": ["0000:c3:00.0  PCIe x4 at 32 GT/s (could be x16 at 32 GT/s)"],
    "pcie_speed": ["NIC mlx5_6:1  0000:9a:00.0  PCIe x16 at 8 GT/s (could be x16 at 32 GT/s)"],
    "port_down": ["InfiniBand DOWN 10 Gbit/s  physically Polling", "ib9  infiniband  down"],
    "port_slow": ["NIC mlx5_3:1  0000:40:00.0  PCIe x16 at 32 GT/s  InfiniBand ACTIVE 200 Gbit/s"],
    "gpu_far_from_its_card": ["GPU 2  NODE mlx5_0, mlx5_3, mlx5_5; SYS mlx5_4,"],
    "acs_on": ["PCIe switch 0000:01:00.0  PCIe x16 at 16 GT/s  ACS on", "IOMMU yes, ACS of bridges: 57 x on"],
    "no_peermem": ["nvidia_peermem no, dma-buf no"],
}  # fmt: skip


@pytest.mark.parametrize("name", SAYS)
def test_a_machine_prints_what_it_is_and_a_document_keeps_it(tree: Tree, name: str) -> None:
    survey = survey_below(tree(name))
    printed = format_survey(survey)
    for words in SAYS[name]:
        assert words in printed
    assert survey_from_dict(json.loads(json.dumps(survey_as_dict(survey)))) == survey


@pytest.mark.parametrize("name", ["dgx_a100", "dgx_h100", "hgx_b200"])
def test_nothing_is_unknown_of_a_whole_machine(tree: Tree, name: str) -> None:
    assert detect_host(tree(name)).unknown == ()


def test_distances(tree: Tree) -> None:
    a100, h100 = detect_host(tree("dgx_a100")), detect_host(tree("hgx_h100"))
    ports = {port.device: port.address for port in a100.rdma_ports}
    assert distance(a100, ports["mlx5_4"], ports["mlx5_5"]) == "PIX"  # two functions of one card
    assert distance(a100, a100.gpus[0].address, a100.gpus[1].address) == "PXB"
    assert distance(a100, a100.gpus[0].address, a100.gpus[2].address) == "SYS"
    assert [one.port.device for one in nearest(a100, a100.gpus[0])] == ["mlx5_0", "mlx5_1"]
    assert [[one.port.device for one in nearest(h100, gpu)] for gpu in h100.gpus[:2]] == [
        ["mlx5_0"],
        ["mlx5_3"],
    ]
    assert distance(h100, "0000:77:00.0", h100.gpus[0].address) is None
    root_ports = dataclasses.replace(
        h100, pci=tuple(dataclasses.replace(one, parent=None, root="pci0000:00") for one in h100.pci)
    )
    assert distance(root_ports, h100.gpus[0].address, h100.gpus[1].address) == "PHB"
    nowhere = dataclasses.replace(
        h100, pci=tuple(dataclasses.replace(one, parent=None, root=None, numa_node=None) for one in h100.pci)
    )
    assert distance(nowhere, h100.gpus[0].address, h100.gpus[1].address) is None
    assert {one.distance for one in affinities(nowhere, h100.gpus[0])} == {None}
    assert nearest(nowhere, h100.gpus[0]) == ()


def test_a_far_card_is_not_the_nearest_and_a_port_that_is_down_neither(tree: Tree) -> None:
    far = detect_host(tree("gpu_far_from_its_card"))
    assert {one.distance for one in nearest(far, far.gpus[2])} == {"NODE"}
    down = detect_host(tree("port_down"))
    assert [one.port.device for one in nearest(down, down.gpus[5])] == ["mlx5_9"]
    assert "mlx5_9" not in [one.port.device for one in nearest(down, down.gpus[5], active=True)]


def test_a_rack_is_one_domain_and_a_box_has_islands(tree: Tree) -> None:
    tray = detect_host(tree("gb200_tray"))
    rack = [as_tray(tray, number) for number in range(18)]
    assert len({key for host in rack for key in gpu_domains(host).values()}) == 1
    split = dataclasses.replace(
        tray,
        gpus=tuple(
            dataclasses.replace(gpu, fabric=dataclasses.replace(gpu.fabric, clique=gpu.index // 2))
            for gpu in tray.gpus
            if gpu.fabric is not None
        ),
    )
    assert list(Layout.from_keys([0] * 4, list(gpu_domains(split).values())).domains) == [(0, 1), (2, 3)]
    islands = gpu_domains(detect_host(tree("bridged_workstation")))
    assert Layout.from_keys([0] * 4, list(islands.values())).domains == ((0, 1), (2, 3))
    alone = gpu_domains(detect_host(tree("workstation")))
    assert len(set(alone.values())) == 4


def test_the_domains_of_ranks(tree: Tree) -> None:
    box, tray = detect_host(tree("bridged_workstation")), detect_host(tree("gb200_tray"))
    uuids = tuple(gpu.uuid for gpu in box.gpus)
    survey = Survey((box,), (Process(visible_devices=uuids),) * 4, (0,) * 4)
    joined = joined_layout(Layout.parse("4"), survey)
    assert joined is not None
    assert (joined.nodes, joined.domains) == (((0, 1, 2, 3),), ((0, 1), (2, 3)))
    rack = tuple(as_tray(tray, number) for number in range(2))
    processes = tuple(
        Process(visible_devices=tuple(gpu.uuid for gpu in rack[rank // 4].gpus)) for rank in range(8)
    )
    spanning = joined_layout(Layout.parse("4+4"), Survey(rack, processes, (0,) * 4 + (1,) * 4))
    assert spanning is not None
    assert spanning.domains == (tuple(range(8)),)
    assert len(spanning.nodes) == 2
    unseen = Survey((box,), (Process(visible_devices=()),) * 4, (0,) * 4)
    assert joined_layout(Layout.parse("4"), unseen) is None


def test_hosts_that_differ_are_marked_with_what_differs(tree: Tree) -> None:
    good = detect_host(tree("dgx_h100"))
    hosts = [dataclasses.replace(good, name=f"h{number}") for number in range(3)]
    hosts += [detect_host(tree("nvlink_lane_down")), detect_host(tree("port_slow"))]
    assert [[one.aspect for one in found] for found in differences(hosts)] == [
        [], [], [], ["NVLink"], ["network ports"]
    ]  # fmt: skip
    printed = format_survey(Survey(tuple(hosts)))
    assert "3 hosts are so: h0, h1, h2" in printed
    assert "! NVLink: 7 x 18 of 18 lanes, 1 x 17 of 18 lanes; most hosts: 8 x 18 of 18 lanes" in printed
    assert printed.count("GPU to network") == 3
    assert format_survey(Survey(tuple(hosts)), detail=True).count("GPU to network") == 5


def test_ranks_on_one_core_and_ranks_with_other_settings_are_shown() -> None:
    crowd = (
        Process(cpus=(3,), environment=(("NCCL_ALGO", "Ring"),)),
        Process(cpus=(3,)),
        Process(cpus=(0, 1)),
    )
    printed = format_survey(Survey((Host(name="a"),), crowd, (0, 0, 0)))
    assert "! ranks 0, 1 on a may use core 3 alone" in printed
    assert "NCCL_ALGO: Ring (rank 0); (not set) (ranks 1, 2)" in printed


def test_a_process(tree: Tree) -> None:
    process = detect_process(tree("amd_cluster"))
    assert process.cpus == tuple(range(128))
    assert process.memlock_bytes == -1
    assert process.environment == (("UCX_NET_DEVICES", "mlx5_0:1"),)
    assert (process.mpi_library, process.mpi_cuda_aware, process.nccl) == ("MPICH 4.2.1", False, None)


def test_this_machine_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_WEB_TOKEN", "abc")
    survey = Survey((detect_host(),), (detect_process(),), (0,))
    assert survey.hosts[0].processor.cpus
    assert survey.hosts[0].memory_bytes
    printed = format_survey(survey)
    assert "NCCL_DEBUG=WARN" in printed
    assert "abc" not in printed


def test_documents_of_other_versions(tree: Tree, tmp_path: Path) -> None:
    survey = survey_below(tree("workstation"))
    found = survey_as_dict(survey)
    found["hosts"][0]["cooling"] = "water"
    found["hosts"][0]["gpus"][0]["links"] = []
    del found["hosts"][0]["interfaces"]
    again = survey_from_dict(found)
    assert again.hosts[0].gpus == survey.hosts[0].gpus
    assert again.hosts[0].interfaces == ()
    path = tmp_path / "hosts.json"
    save(survey, path)
    assert load(path) == survey == survey_below(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", 'there is no "schema" in it'),
        ('{"schema": 99, "hosts": []}', "schema 99 is newer than 1"),
        ('{"schema": 1}', "hosts is missing"),
        ('{"schema": 1, "hosts": {}}', "hosts is {}: must be a list"),
        ('{"schema": 1, "hosts": [{"name": 3}]}', r"hosts\[0\].name is 3: must be str"),
        ('{"schema": 1, "hosts": [{"gpus": [{"index": 0}]}]}', r"hosts\[0\].gpus\[0\].uuid is missing"),
        ('{"schema": 1, "hosts": [{"numa_nodes": [{"index": true}]}]}', "is True: must be int"),
        (
            '{"schema": 1, "hosts": [{"pci": [{"address": "a", "kind": "gpu", "speed_gt_s": NaN}]}]}',
            "must be float",
        ),
        (
            '{"schema": 1, "hosts": [], "processes": [{}], "host_of": [0]}',
            "must be one host for each process",
        ),
    ],
)
def test_bad_documents(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "hosts.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load(path)


def test_a_reason_is_found_by_what_it_is_about(tree: Tree) -> None:
    host = detect_host(tree("amd_cluster"))
    assert host.why("gpus") == "no nvml.json: NVML was not recorded"
    assert host.why("gpus 0 links") == "no nvml.json: NVML was not recorded"
    assert host.why("memory_bytes") is None


def test_numbers_of_links_and_lists() -> None:
    assert lane_gb_s(16.0) * 16 == pytest.approx(31.5, abs=0.02)
    assert lane_gb_s(5.0) * 4 == pytest.approx(2.0)
    assert link_gb_s(None) is None
    for text in ("0-3,8", "5", "0,2,4-7"):
        assert format_numbers(number_list(text)) == text
    for text in ("3-1", "a", "1-", "-1", "0-99999999999", "1.5"):
        with pytest.raises(ValueError, match=r".*"):
            number_list(text)


def as_tray(tray: Host, number: int) -> Host:
    """The same tray as another one of the rack."""
    gpus = tuple(dataclasses.replace(gpu, uuid=f"GPU-{number}-{gpu.index}") for gpu in tray.gpus)
    return dataclasses.replace(tray, name=f"gb200-{number:02d}", boot_id=f"boot-{number}", gpus=gpus)
