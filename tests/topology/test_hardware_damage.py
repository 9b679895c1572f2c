"""Missing, unreadable and damaged files never make detection fail, only facts unknown."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from hpccoll.topology.hardware.detect import detect_host, survey_below
from hpccoll.topology.hardware.document import survey_as_dict, survey_from_dict
from hpccoll.topology.hardware.model import Host
from hpccoll.topology.hardware.picture import draw_survey
from hpccoll.topology.hardware.text import format_survey
from tests.topology.fixtures.broken import BROKEN
from tests.topology.fixtures.tree import write

GARBAGE = (
    b"",
    b"\0\xff\xfe\x80garbage",
    b"-1",
    b"9" * 400,
    b"nan",
    b"0-4294967295",
    b'\x1b[31mred\x1b[0m <&> "quoted" \'',
    b"{" * 5000,
    b'{"gpus": [{"index": 0, "uuid": "\\u001b", "name": "x", "address": "y"}], "driver": 7}',
    b"0x",
    b"x" * 3_000_000,
)


@pytest.mark.parametrize("seed", range(3))
def test_random_damage(tmp_path: Path, seed: int) -> None:
    machine = BROKEN["gpu_far_from_its_card"]()
    machine.roots, machine.nodes = machine.roots[:3] + machine.roots[-1:], machine.nodes[:1]
    root = write(machine, tmp_path / "host")
    chance = random.Random(seed)
    for _ in range(10):
        for path in chance.sample(sorted(walk(root)), 6):
            damage(path, chance)
        look_at(root)
        if not any(map(os.path.isdir, (root / "sys", root / "proc"))):
            break


@pytest.mark.parametrize(
    "name", ["sys", "proc", "etc", "nvml.json", "software.json", "proc/cpuinfo", "sys/class/infiniband"]
)
def test_whole_parts_are_missing(tmp_path: Path, name: str) -> None:
    root = write(BROKEN["no_peermem"](), tmp_path / "host") if name == "sys" else small(tmp_path)
    path = root / name
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
    look_at(root)


def test_a_root_without_anything(tmp_path: Path) -> None:
    host = detect_host(tmp_path)
    assert host.gpus == host.pci == host.numa_nodes == ()
    assert {one.what for one in host.unknown} >= {
        "gpus",
        "pci",
        "numa_nodes",
        "memory_bytes",
        "shm_bytes",
        "kernel",
    }


def test_links_that_go_round_and_pipes_are_not_followed(tmp_path: Path) -> None:
    root = small(tmp_path)
    hostname = root / "proc/sys/kernel/hostname"
    hostname.unlink()
    os.mkfifo(hostname)  # reading it would wait for ever
    loop = root / "sys/bus/pci/devices/0000:ff:00.0"
    loop.symlink_to(loop.name)
    host = look_at(root)
    assert host.name is None
    assert host.why("name") == "/proc/sys/kernel/hostname: not a regular file"


def test_parents_that_go_round(tmp_path: Path) -> None:
    from hpccoll.topology.hardware.affinity import bridges_above
    from hpccoll.topology.hardware.model import PciDevice

    ring = [PciDevice("0000:01:00.0", "bridge", parent="0000:02:00.0")]
    ring += [PciDevice("0000:02:00.0", "bridge", parent="0000:01:00.0")]
    ring += [PciDevice("0000:03:00.0", "gpu", parent="0000:01:00.0")]
    assert len(bridges_above(Host(pci=tuple(ring)), "0000:03:00.0")) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to read as")
def test_what_another_user_may_not_read(tmp_path: Path) -> None:
    root = small(tmp_path)
    config = root / "sys/bus/pci/devices/0000:40:01.1/config"
    config.write_bytes(config.read_bytes()[:256])  # as the kernel shows it to ordinary users
    host = look_at(root)
    bridge = host.pci_device("0000:40:01.1")
    assert bridge is not None
    assert bridge.acs is None
    assert "only 256 bytes can be read; root can read all" in (host.why("pci 0000:40:01.1 acs") or "")


def small(tmp_path: Path) -> Path:
    """A host of few files."""
    from tests.topology.fixtures.machines import amd_cluster

    return write(amd_cluster(), tmp_path / "host")


def walk(root: Path) -> list[Path]:
    return [Path(folder) / name for folder, _, names in os.walk(root) for name in names]


def damage(path: Path, chance: random.Random) -> None:
    """Delete it, put garbage into it, or put a directory, a broken link or a cut text in its place."""
    if not os.path.lexists(path):
        return
    how = chance.randrange(5)
    text = path.read_bytes() if path.is_file() else b""
    if path.is_symlink() or path.is_file():
        path.unlink()
    if how == 1:
        path.write_bytes(chance.choice(GARBAGE))
    elif how == 2:
        path.mkdir(exist_ok=True)
    elif how == 3:
        path.symlink_to("/nowhere/at/all")
    elif how == 4:
        path.write_bytes(text[: len(text) // 2])


def look_at(root: Path) -> Host:
    """All that `hpccoll topo` does with a root; returns the host."""
    from xml.etree import ElementTree

    survey = survey_below(root)
    printed = format_survey(survey)
    assert "\x1b" not in printed
    assert "\0" not in printed
    ElementTree.fromstring(draw_survey(survey))
    assert survey_from_dict(json.loads(json.dumps(survey_as_dict(survey)))) == survey
    return survey.hosts[0]
