"""The picture: well-formed, every GPU and card in it, what is broken marked."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

import pytest

from hpccoll.topology.hardware.detect import detect_host, survey_below
from hpccoll.topology.hardware.document import Survey
from hpccoll.topology.hardware.model import Host, RdmaPort
from hpccoll.topology.hardware.picture import draw_survey
from tests.topology.conftest import Tree
from tests.topology.test_hardware import as_tray

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str, name: str = "text") -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(SVG + name)]


@pytest.mark.parametrize(
    "name", ["dgx_a100", "hgx_b200", "gh200", "bridged_workstation", "amd_cluster", "laptop"]
)
def test_every_gpu_and_every_port_is_drawn(tree: Tree, name: str) -> None:
    survey = survey_below(tree(name))
    picture = draw_survey(survey)
    shown, (host,) = texts(picture), survey.hosts
    for gpu in host.gpus:
        assert shown.count(f"GPU {gpu.index}") == 1
        assert gpu.address in shown
    for port in host.rdma_ports:
        assert shown.count(port.name) == 1
    assert shown.count("network") == bool(host.rdma_ports)
    assert all(f"NUMA node {node}" in shown or f"NUMA {node}" in shown for node in used_nodes(host))


def used_nodes(host: Host) -> set[int]:
    addresses = [gpu.address for gpu in host.gpus] + [port.address for port in host.rdma_ports]
    found = (host.pci_device(address) for address in addresses)
    return {one.numa_node for one in found if one is not None and one.numa_node is not None}


def test_rates_on_the_lines(tree: Tree) -> None:
    shown = texts(draw_survey(survey_below(tree("dgx_h100"))))
    assert shown.count("478 GB/s") == 8
    assert shown.count("63 GB/s") == 8
    assert shown.count("400 Gbit/s") == 12
    assert texts(draw_survey(survey_below(tree("bridged_workstation")))).count("56.2 GB/s") == 2


def test_what_is_broken_is_marked(tree: Tree) -> None:
    assert "17/18 lanes" in texts(draw_survey(survey_below(tree("nvlink_lane_down"))))
    assert "DOWN" in texts(draw_survey(survey_below(tree("port_down"))))
    good = detect_host(tree("dgx_h100"))
    picture = draw_survey(Survey((good, good, detect_host(tree("port_slow")))))
    assert texts(picture).count("differs") == 1
    assert any("Differs: network ports" in title for title in texts(picture, "title"))


def test_a_rack_and_more_hosts_than_fit(tree: Tree) -> None:
    tray = detect_host(tree("gb200_tray"))
    picture = draw_survey(Survey(tuple(as_tray(tray, number) for number in range(18))))
    shown = texts(picture)
    assert sum(shown.count(f"GPU {index}") for index in range(4)) == 72
    assert sum(shown.count(f"mlx5_{index}:1") for index in range(4)) == 72
    assert "NVLink fabric 3143b15b, clique 32766" in shown
    assert any("72 GPUs in 1 NVLink domain" in text for text in shown)
    many = draw_survey(Survey(tuple(as_tray(tray, number) for number in range(100))))
    assert "and 64 more hosts" in texts(many)


def test_names_are_escaped_and_nothing_is_needed() -> None:
    host = Host(name='<&"evil">', product="]]></svg>", rdma_ports=(RdmaPort("<script>", 1),))
    shown = texts(draw_survey(Survey((host, dataclasses.replace(host, name=None)))))
    assert '<&"evil">' in shown
    assert "<script>:1" in shown
    ElementTree.fromstring(draw_survey(Survey(())))
