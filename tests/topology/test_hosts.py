"""What identifies the node of a process: faked file systems, and probes in real directories; no MPI."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.errors import ResourceError, TopologyError
from hpccoll.topology.hosts import MAX_BYTES, HostFacts, offer_probe, read_host_facts, sees

BOOT = "4939718a-2e18-4fca-843c-753c6556a8c0"
OTHER_BOOT = "0e9c2b7d-6a4f-4f6e-9a55-1d2f3a4b5c6d"


def fake_root(
    folder: Path,
    *,
    name: str = "node1",
    boot: str | None = BOOT,
    shm: Path | None = None,
    ipc: int = 4026531839,
) -> Path:
    """A file system with what is read; its /dev/shm is a link to `shm` (None: missing)."""
    kernel = folder / "proc/sys/kernel"
    (kernel / "random").mkdir(parents=True)
    (kernel / "hostname").write_text(name + "\n")
    if boot is not None:
        (kernel / "random/boot_id").write_text(boot + "\n")
    (folder / "proc/self/ns").mkdir(parents=True)
    (folder / "proc/self/ns/ipc").symlink_to(f"ipc:[{ipc}]")
    (folder / "dev").mkdir()
    if shm is not None:
        shm.mkdir(exist_ok=True)
        (folder / "dev/shm").symlink_to(shm)
    return folder


def test_two_containers_of_one_host_with_the_same_name_are_two_nodes(tmp_path: Path) -> None:
    one = read_host_facts(root=fake_root(tmp_path / "one", name="app", shm=tmp_path / "shm1"))
    two = read_host_facts(root=fake_root(tmp_path / "two", name="app", shm=tmp_path / "shm2"))
    assert (one.host_name, one.boot_id) == (two.host_name, two.boot_id) == ("app", BOOT)
    assert one.key != two.key


def test_containers_that_share_the_directory_are_one_node_whatever_else_they_do_not_share(
    tmp_path: Path,
) -> None:
    one = read_host_facts(root=fake_root(tmp_path / "one", name="a", shm=tmp_path / "shm", ipc=4026531839))
    two = read_host_facts(root=fake_root(tmp_path / "two", name="b", shm=tmp_path / "shm", ipc=4026532201))
    assert one.ipc_namespace != two.ipc_namespace
    assert one.host_name != two.host_name
    assert one.key == two.key


def test_two_hosts_with_the_same_name_and_equal_device_numbers_are_two_nodes(tmp_path: Path) -> None:
    one = read_host_facts(root=fake_root(tmp_path / "one", shm=tmp_path / "shm"))
    two = read_host_facts(root=fake_root(tmp_path / "two", shm=tmp_path / "shm", boot=OTHER_BOOT))
    assert (one.shm_device, one.shm_inode) == (two.shm_device, two.shm_inode)
    assert one.key != two.key


def test_without_boot_id_the_host_name_stands_in_and_the_reason_is_told(tmp_path: Path) -> None:
    one = read_host_facts(root=fake_root(tmp_path / "one", name="a", boot=None, shm=tmp_path / "shm"))
    two = read_host_facts(root=fake_root(tmp_path / "two", name="b", boot=None, shm=tmp_path / "shm"))
    assert one.key != two.key
    assert "no boot id: the host name stands in" in one.notes[0]


def test_a_host_that_happens_to_be_named_like_a_boot_id_is_not_that_boot(tmp_path: Path) -> None:
    one = read_host_facts(root=fake_root(tmp_path / "one", name=BOOT, boot=None, shm=tmp_path / "shm"))
    two = read_host_facts(root=fake_root(tmp_path / "two", name=BOOT, shm=tmp_path / "shm"))
    assert one.key != two.key


def test_without_shared_memory_directory_the_reason_is_told(tmp_path: Path) -> None:
    facts = read_host_facts(root=fake_root(tmp_path / "one"))
    assert (facts.shm_device, facts.shm_inode) == (-1, -1)
    assert facts.notes == ("no shared memory directory /dev/shm: No such file or directory",)


def test_nothing_readable_at_all(tmp_path: Path) -> None:
    facts = read_host_facts(root=tmp_path)
    assert facts.host_name == os.uname().nodename
    assert (facts.ipc_namespace, facts.pid_namespace, facts.net_namespace) == (-1, -1, -1)
    assert len(facts.notes) == 2


def test_namespaces_are_read_from_their_links(tmp_path: Path) -> None:
    root = fake_root(tmp_path, ipc=4026532201)
    (root / "proc/self/ns/net").symlink_to("something else")
    facts = read_host_facts(root=root)
    assert (facts.ipc_namespace, facts.net_namespace, facts.pid_namespace) == (4026532201, -1, -1)


def test_this_machine() -> None:
    facts = read_host_facts("/dev/shm")
    found = os.stat("/dev/shm")
    assert facts.key == (
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        found.st_dev,
        found.st_ino,
    )
    assert facts.notes == ()
    assert facts.net_namespace > 0
    assert read_host_facts("/dev/shm") == facts


def test_another_directory_is_another_node(tmp_path: Path) -> None:
    assert read_host_facts(str(tmp_path)).key != read_host_facts("/dev/shm").key


def test_facts_travel(tmp_path: Path) -> None:
    facts = read_host_facts(root=fake_root(tmp_path, boot=None))
    assert HostFacts.from_bytes(facts.to_bytes()) == facts


@given(
    st.text(max_size=400),
    st.text(max_size=400),
    st.integers(0, 2**64),
    st.lists(st.text(max_size=400), max_size=5),
)
def test_any_facts_travel_within_the_bound(name: str, directory: str, number: int, notes: list[str]) -> None:
    numbers = [number] * 5
    facts = HostFacts(name, BOOT, directory, *numbers, uid=number, notes=tuple(notes))
    data = facts.to_bytes()
    assert len(data) <= MAX_BYTES
    assert HostFacts.from_bytes(data) == facts


@pytest.mark.parametrize("char", ['"', "\\", "\x01", "é", "\U0001f600", "\ud800"])
def test_the_longest_facts_stay_within_the_bound(char: str) -> None:
    text = char * 5000
    facts = HostFacts(text, text, text, *[2**64] * 5, uid=2**32, notes=(text,) * 9)
    assert len(facts.to_bytes()) <= MAX_BYTES
    assert HostFacts.from_bytes(facts.to_bytes()) == facts


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"{}",
        b"[" * 2000,
        json.dumps({**vars(HostFacts("a")), "uid": "0"}).encode(),
        json.dumps({**vars(HostFacts("a")), "host_name": 3}).encode(),
        json.dumps({**vars(HostFacts("a")), "notes": [1]}).encode(),
        json.dumps({**vars(HostFacts("a")), "notes": 7}).encode(),
        json.dumps({**vars(HostFacts("a")), "extra": 1}).encode(),
        HostFacts("a").to_bytes() + b" " * MAX_BYTES,
    ],
)
def test_what_is_not_facts_is_refused(data: bytes) -> None:
    with pytest.raises(TopologyError, match="malformed facts about a host"):
        HostFacts.from_bytes(data)


def test_a_probe_is_seen_until_it_is_closed() -> None:
    probe = offer_probe("/dev/shm")
    try:
        assert Path(probe.path).parent == Path("/dev/shm")
        assert sees(probe.path, probe.token)
        assert not sees(probe.path, bytes(len(probe.token)))
    finally:
        probe.segment.close()
    assert not sees(probe.path, probe.token)
    assert not Path(probe.path).exists()


def test_two_probes_are_told_apart() -> None:
    one, two = offer_probe("/dev/shm"), offer_probe("/dev/shm")
    with one.segment, two.segment:
        assert not sees(one.path, two.token)


def test_a_probe_in_a_missing_directory_is_a_resource_error(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="missing"):
        offer_probe(str(tmp_path / "missing"))


def test_only_a_regular_file_is_looked_at(tmp_path: Path) -> None:
    token = b"0123456789abcdef"
    (tmp_path / "file").write_bytes(token)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "fifo")
    assert sees(str(tmp_path / "file"), token)
    assert not sees(str(tmp_path / "link"), token)
    assert not sees(str(tmp_path / "fifo"), token)
    assert not sees(str(tmp_path), token)
    assert not sees("/dev/zero", bytes(16))
    assert not sees("no\0path", token)
    assert not sees(str(tmp_path / "file"), b"")


@pytest.mark.needs_root
def test_a_file_of_another_user_is_not_looked_at(tmp_path: Path) -> None:
    token = b"0123456789abcdef"
    (tmp_path / "file").write_bytes(token)
    os.chown(tmp_path / "file", 12345, 12345)
    assert not sees(str(tmp_path / "file"), token)
