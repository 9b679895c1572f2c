"""What control groups leave: read from trees of files as the kernel shows them, of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpccoll.errors import ResourceError
from hpccoll.memory import segments
from hpccoll.memory.limits import Limit, memory_limit
from hpccoll.memory.segments import create_segment

MIB = 1 << 20


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def group(directory: Path, version: int, limit: object, used: int, files: int) -> None:
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if version == 1
        else ("memory.max", "memory.current")
    )
    prefix = "total_" if version == 1 else ""
    write(directory / names[0], str(limit))
    write(directory / names[1], str(used))
    write(directory / "memory.stat", f"cache 7\n{prefix}inactive_file {files}\n{prefix}active_file 0\nrss 3")


def first(root: Path, path: str = "/job/step") -> Path:
    """A system with the first version mounted; returns where."""
    write(root / "proc/self/cgroup", f"3:cpuset:/\n4:memory:{path}\n0::/")
    mounts = "14 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    write(
        root / "proc/self/mountinfo",
        mounts + "13 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset",
    )
    return root / "sys/fs/cgroup/memory"


def second(root: Path, path: str = "/job/step") -> Path:
    write(root / "proc/self/cgroup", f"0::{path}")
    write(
        root / "proc/self/mountinfo",
        "20 31 0:38 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate",
    )
    return root / "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("version", "mounted", "none"), [(1, first, 9223372036854771712), (2, second, "max")]
)
class TestVersions:
    def test_what_is_left_counts_without_pages_of_files(
        self, tmp_path: Path, version: int, mounted: object, none: object
    ) -> None:
        mount = mounted(tmp_path)  # type: ignore[operator]
        group(mount / "job/step", version, 100 * MIB, 70 * MIB, 20 * MIB)
        assert memory_limit(tmp_path) == Limit(50 * MIB, 100 * MIB, str(mount / "job/step"))

    def test_groups_above_count_too(
        self, tmp_path: Path, version: int, mounted: object, none: object
    ) -> None:
        mount = mounted(tmp_path)  # type: ignore[operator]
        group(mount / "job/step", version, 100 * MIB, 10 * MIB, 0)
        group(mount / "job", version, 200 * MIB, 195 * MIB, 0)
        group(mount, version, none, 500 * MIB, 0)
        assert memory_limit(tmp_path) == Limit(5 * MIB, 200 * MIB, str(mount / "job"))

    def test_no_limit(self, tmp_path: Path, version: int, mounted: object, none: object) -> None:
        mount = mounted(tmp_path)  # type: ignore[operator]
        group(mount / "job/step", version, none, 10 * MIB, 0)
        assert memory_limit(tmp_path) is None

    def test_a_container_sees_its_own_group_as_the_mount(
        self, tmp_path: Path, version: int, mounted: object, none: object
    ) -> None:
        mount = mounted(tmp_path, "/docker/0123")  # type: ignore[operator]
        group(mount, version, 64 * MIB, 80 * MIB, 0)
        assert memory_limit(tmp_path) == Limit(0, 64 * MIB, str(mount))


@pytest.mark.parametrize("missing", ["cgroup", "mountinfo"])
def test_where_nothing_is_told_there_is_no_limit(tmp_path: Path, missing: str) -> None:
    group(first(tmp_path) / "job/step", 1, MIB, 0, 0)
    (tmp_path / "proc/self" / missing).unlink()
    assert memory_limit(tmp_path) is None


def test_garbage_is_no_limit(tmp_path: Path) -> None:
    mount = second(tmp_path)
    group(mount / "job/step", 2, "many", 0, 0)
    (mount / "memory.max").write_bytes(b"\xff\xfe")
    assert memory_limit(tmp_path) is None


def test_a_segment_that_would_be_the_end_of_a_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "memory_limit", lambda: Limit(3 * MIB, 64 * MIB, "/sys/fs/cgroup/job"))
    with pytest.raises(
        ResourceError, match=r"of 4.0 MiB for test: only 3.0 MiB .* limit of 64.0 MiB .*cgroup/job"
    ):
        create_segment(4 * MIB, directory=str(tmp_path), purpose="test")
    assert list(tmp_path.iterdir()) == []
    create_segment(3 * MIB, directory=str(tmp_path), purpose="test").close()
