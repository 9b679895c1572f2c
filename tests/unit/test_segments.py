"""Mapped segments: what is on disk, who may attach, what is left behind, and what is said when it fails."""

from __future__ import annotations

import errno
import gc
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import hpccoll
from hpccoll.errors import ResourceError, TopologyError, UsageError
from hpccoll.memory import segments
from hpccoll.memory.segments import Segment, attach_segment, create_segment, free_bytes, sweep

PAGE = os.sysconf("SC_PAGE_SIZE")
NOBODY = 65534
WITHOUT_MPI = "import mpi4py; mpi4py.rc.initialize = False\n"  # a forked child could not finalise it

needs_root = pytest.mark.needs_root
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def new(directory: Path, nbytes: int = PAGE, purpose: str = "test") -> Segment:
    return create_segment(nbytes, directory=str(directory), purpose=purpose)


def start_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT_MPI + code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(Path(hpccoll.__path__[0]).parent)},
        stdout=subprocess.PIPE,
        text=True,
    )


def run_python(code: str, *arguments: object) -> str:
    child = start_python(code, *arguments)
    try:
        out, _ = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 0, out
    return out.strip()


def is_mapped(path: str) -> bool:
    return os.path.basename(path) in Path("/proc/self/maps").read_text()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# What is there


def test_a_segment_is_a_private_file_of_whole_pages(tmp_path: Path) -> None:
    with new(tmp_path, 3 * PAGE + 1, "slots.node0") as segment:
        found = os.lstat(segment.path)
        assert stat.S_ISREG(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert found.st_uid == os.geteuid()
        assert found.st_size == segment.nbytes == len(segment.buffer) == 4 * PAGE
        assert found.st_blocks * 512 >= 4 * PAGE  # reserved, not sparse
        assert bytes(segment.buffer) == bytes(4 * PAGE)
        uid, pid = os.geteuid(), os.getpid()
        name = rf"hpccoll-{uid}-[0-9a-f]{{8}}\.\d+-{pid}-\d+-[0-9a-f]{{16}}-slots\.node0"
        assert re.fullmatch(name, os.path.basename(segment.path))
    assert os.listdir(tmp_path) == []


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        with new(tmp_path) as segment:
            assert stat.S_IMODE(os.stat(segment.path).st_mode) == 0o600
    finally:
        os.umask(before)


def test_it_is_made_in_shared_memory_by_default() -> None:
    with create_segment(100, purpose="default") as segment:
        assert os.path.dirname(segment.path) == "/dev/shm"
        assert os.path.exists(segment.path)
    assert not os.path.exists(segment.path)


def test_a_relative_directory_gives_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with create_segment(1, directory=".", purpose="test") as segment:
        assert os.path.dirname(segment.path) == str(tmp_path)


def test_two_maps_show_the_same_memory(tmp_path: Path) -> None:
    with new(tmp_path, 1000) as mine, attach_segment(mine.path, 1000) as other:
        mine.array(np.int32, 64, 5)[...] = [1, 2, 3, 4, 5]
        assert other.array(np.int32, 64, 5).tolist() == [1, 2, 3, 4, 5]
        other.buffer[64] = 9
        assert mine.array(np.int32, 64, 1)[0] == 9
        assert mine.array(np.complex128, PAGE - 16, 1).shape == (1,)
        assert mine.array(np.int8, PAGE, 0).shape == (0,)


@pytest.mark.parametrize(
    ("dtype", "offset", "count"),
    [("i8", PAGE - 8, 2), ("i8", PAGE, 1), ("i8", -8, 1), ("i8", 0, -1), ("i8", 4, 1), ("i1", 0, PAGE + 1)],
)
def test_views_outside_or_unaligned_are_refused(tmp_path: Path, dtype: str, offset: int, count: int) -> None:
    with new(tmp_path) as segment, pytest.raises(UsageError):
        segment.array(dtype, offset, count)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_an_empty_segment_is_refused(tmp_path: Path, nbytes: int) -> None:
    with pytest.raises(UsageError, match="at least 1 byte"):
        new(tmp_path, nbytes)


@pytest.mark.parametrize("purpose", ["", "a/b", "../x", "a-b", "ä", "x" * 65])
def test_a_purpose_that_is_no_plain_word_is_refused(tmp_path: Path, purpose: str) -> None:
    with pytest.raises(UsageError, match="purpose"):
        new(tmp_path, purpose=purpose)
    assert os.listdir(tmp_path) == []


# Its life


def test_after_unlink_it_is_still_shared(tmp_path: Path) -> None:
    with new(tmp_path) as mine, attach_segment(mine.path, PAGE) as other:
        mine.unlink()
        mine.unlink()
        assert os.listdir(tmp_path) == []
        mine.array("i8", 0, 1)[0] = 77
        assert other.array("i8", 0, 1)[0] == 77


def test_only_the_creator_unlinks(tmp_path: Path) -> None:
    with new(tmp_path) as mine:
        other = attach_segment(mine.path, PAGE)
        other.unlink()
        other.close()
        assert os.path.exists(mine.path)


def test_the_map_goes_with_its_last_view(tmp_path: Path) -> None:
    segment = new(tmp_path)
    array, buffer = segment.array("i8", 8, 4), segment.buffer
    segment.close()
    segment.close()
    assert os.listdir(tmp_path) == []
    array[...] = 5
    assert buffer[8:16] == bytes([5, 0, 0, 0, 0, 0, 0, 0])
    with pytest.raises(UsageError, match="is closed"):
        _ = segment.buffer
    with pytest.raises(UsageError, match="is closed"):
        segment.array("i8", 0, 1)
    del buffer
    assert is_mapped(segment.path)
    del array
    gc.collect()
    assert not is_mapped(segment.path)


def test_segments_hold_no_descriptors(tmp_path: Path) -> None:
    before = descriptors()
    mine = [new(tmp_path) for _ in range(300)]
    others = [attach_segment(segment.path, PAGE) for segment in mine]
    assert descriptors() == before
    for segment in mine + others:
        segment.close()
    assert os.listdir(tmp_path) == []


def test_a_forgotten_segment_leaves_no_file(tmp_path: Path) -> None:
    segment = new(tmp_path)
    assert len(os.listdir(tmp_path)) == 1
    del segment
    gc.collect()
    assert os.listdir(tmp_path) == []


CREATE = (
    "import os, sys, time\n"
    "from hpccoll.memory.segments import create_segment\n"
    "segment = create_segment(4096, directory=sys.argv[1], purpose='child')\n"
    "print(segment.path, flush=True)\n"
)


@pytest.mark.parametrize("end", ["", "view = segment.array('i8', 0, 2)", "import os; 1 // 0"])
def test_a_creator_that_ends_leaves_no_file(tmp_path: Path, end: str) -> None:
    child = start_python(CREATE + end, tmp_path)
    out, _ = child.communicate(timeout=30)
    assert Path(out.strip()).parent == tmp_path
    assert child.returncode == ("//" in end)
    assert os.listdir(tmp_path) == []


def test_a_forked_child_takes_nothing_away(tmp_path: Path) -> None:
    code = CREATE + (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    segment.unlink(); segment.close(); del segment\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert os.path.exists(segment.path)\n"
        "segment.buffer[0] = 1\n"
    )
    run_python(code, tmp_path)
    assert os.listdir(tmp_path) == []


# Who may attach


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_missing_file_is_another_node(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"is not there.*another host or mount namespace"):
        attach_segment(str(tmp_path / "hpccoll-none"), PAGE)
    with pytest.raises(TopologyError, match="is not there"):
        attach_segment(str(tmp_path / "no" / "hpccoll-none"), PAGE)


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    with new(tmp_path) as segment:
        link = tmp_path / "link"
        link.symlink_to(segment.path)
        with pytest.raises(TopologyError, match="not a shared memory segment"):
            attach_segment(str(link), PAGE)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, make: object) -> None:
    path = str(tmp_path / "thing")
    make(path, 0o600)  # type: ignore[operator]
    with pytest.raises(TopologyError, match="not a shared memory segment"):
        attach_segment(path, PAGE)


@pytest.mark.parametrize("nbytes", [1, PAGE, 2 * PAGE + 1])
def test_a_foreign_size_is_refused(tmp_path: Path, nbytes: int) -> None:
    with new(tmp_path, 2 * PAGE) as segment:
        with pytest.raises(TopologyError, match=rf"has {2 * PAGE} bytes"):
            attach_segment(segment.path, nbytes)
        attach_segment(segment.path, PAGE + 1).close()  # the same number of pages


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o700])
def test_a_file_that_others_may_open_is_refused(tmp_path: Path, mode: int) -> None:
    with new(tmp_path) as segment:
        os.chmod(segment.path, mode)
        with pytest.raises(TopologyError, match=f"mode {mode:04o}, not 0600"):
            attach_segment(segment.path, PAGE)


@needs_root
@as_root
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    with new(tmp_path) as segment:
        os.chown(segment.path, NOBODY, -1)
        with pytest.raises(TopologyError, match=f"belongs to user {NOBODY}, not to 0"):
            attach_segment(segment.path, PAGE)


@needs_root
@as_root
def test_a_rank_of_another_user_cannot_attach() -> None:
    refusal = pytest.raises(TopologyError, match="do all ranks run as one user")
    with create_segment(1, purpose="private") as segment, as_user(NOBODY), refusal:
        attach_segment(segment.path, 1)


def test_refusing_leaks_no_descriptor(tmp_path: Path) -> None:
    before = descriptors()
    with new(tmp_path) as segment:
        for _ in range(10):
            with pytest.raises(TopologyError):
                attach_segment(segment.path, 5 * PAGE)
    assert descriptors() == before


# Too little of something


def test_a_full_directory_is_said_before_anything_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = descriptors()
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(segments, "free_bytes", lambda directory: 2**20)
    with pytest.raises(ResourceError) as caught:
        new(tmp_path, 2**26, "slots")
    assert str(caught.value) == (
        f"shared memory segment of 64.0 MiB for slots: only 1.0 MiB free in {tmp_path}; enlarge it "
        "(docker run --shm-size=..., mount -o remount,size=...) or lower HPCCOLL_STAGING_BYTES"
    )
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == []
    assert descriptors() == before


@needs_root
@as_root
def test_a_small_tmpfs_is_an_error_and_stays_usable(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from hpccoll.errors import ResourceError\n"
        "from hpccoll.memory.segments import create_segment, free_bytes\n"
        "where = sys.argv[1]\n"
        "assert free_bytes(where) == 2**20\n"
        "first = create_segment(2**19, directory=where, purpose='first')\n"
        "assert free_bytes(where) == 2**19\n"
        "for nbytes in (2**26, 2**19 + 1):\n"
        "    try:\n"
        "        create_segment(nbytes, directory=where, purpose='slots')\n"
        "    except ResourceError as error:\n"
        "        print(error)\n"
        "    assert os.listdir(where) == [os.path.basename(first.path)]\n"
        "create_segment(2**19, directory=where, purpose='rest').array('i1', 0, 2**19)[...] = 1\n"
    )
    mounted = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$0" || exit 77; exec "$@"']
    done = subprocess.run(
        [*mounted, str(tmp_path), sys.executable, "-c", WITHOUT_MPI + code, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(Path(hpccoll.__path__[0]).parent)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    wanted = "shared memory segment of {} for slots: only 512.0 KiB free in {};"
    lines = done.stdout.splitlines()
    assert [line.partition(" enlarge")[0] for line in lines] == [
        wanted.format("64.0 MiB", tmp_path),
        wanted.format("516.0 KiB", tmp_path),
    ]


def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    with pytest.raises(ResourceError, match=rf"there is no directory {missing}; .*HPCCOLL_SHM_DIR") as caught:
        new(missing)
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(ResourceError, match="No such file"):
        free_bytes(str(missing))


@needs_root
@as_root
def test_a_directory_without_permission_is_said(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    with as_user(NOBODY), pytest.raises(ResourceError, match=r"is not writable \(Permission denied\)"):
        new(tmp_path)


@contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_used_up_descriptors_are_said(tmp_path: Path) -> None:
    with new(tmp_path) as segment:
        with limited(resource.RLIMIT_NOFILE, 3):
            with pytest.raises(ResourceError, match=r"limit 3\).*ulimit -n") as making:
                new(tmp_path)
            with pytest.raises(ResourceError, match=r"limit 3\).*ulimit -n"):
                attach_segment(segment.path, PAGE)
        assert making.value.errno == errno.EMFILE
        assert os.listdir(tmp_path) == [os.path.basename(segment.path)]


def test_used_up_address_space_is_said(tmp_path: Path) -> None:
    nbytes = 2**40
    path = tmp_path / "sparse"
    with open(os.open(path, os.O_CREAT | os.O_RDWR, 0o600), "wb") as file:
        file.truncate(nbytes)
    before = descriptors()
    refusal = pytest.raises(ResourceError, match=r"of 1\.0 TiB for .*ulimit -v")
    with limited(resource.RLIMIT_AS, 2**39), refusal as caught:
        attach_segment(str(path), nbytes)
    assert caught.value.errno == errno.ENOMEM
    assert descriptors() == before


def test_a_file_size_limit_is_said(tmp_path: Path) -> None:
    with limited(resource.RLIMIT_FSIZE, PAGE), pytest.raises(ResourceError, match="raise ulimit -f"):
        new(tmp_path, 2 * PAGE)
    assert os.listdir(tmp_path) == []


# What the dead leave


def dead_segment(directory: Path) -> str:
    child = start_python(CREATE + "time.sleep(60)", directory)
    assert child.stdout is not None
    path = child.stdout.readline().strip()
    child.kill()
    child.communicate(timeout=30)
    assert os.path.exists(path)
    return path


def with_part(path: str, position: int, part: str) -> Path:
    """The path with one part of its name replaced: 1 uid, 2 machine, 3 pid, 4 start."""
    head, name = os.path.split(path)
    parts = name.split("-")
    parts[position] = part
    return Path(head, "-".join(parts))


def test_sweep_removes_what_a_killed_creator_left(tmp_path: Path) -> None:
    with new(tmp_path) as mine:
        dead = dead_segment(tmp_path)
        assert sweep(str(tmp_path)) == [dead]
        assert os.listdir(tmp_path) == [os.path.basename(mine.path)]
    assert sweep(str(tmp_path)) == []


def test_sweep_leaves_a_live_creator_of_another_process(tmp_path: Path) -> None:
    child = start_python(CREATE + "time.sleep(60)", tmp_path)
    assert child.stdout is not None
    path = child.stdout.readline().strip()
    try:
        assert sweep(str(tmp_path)) == []
        child.send_signal(signal.SIGSTOP)
        assert sweep(str(tmp_path)) == []
        child.kill()
        deadline = time.monotonic() + 10
        while not sweep(str(tmp_path)):  # dead, and not yet waited for: a zombie
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not os.path.exists(path)
    finally:
        child.kill()
        child.communicate(timeout=30)


def test_sweep_knows_a_pid_that_was_given_out_again(tmp_path: Path) -> None:
    with new(tmp_path) as mine:
        earlier = with_part(mine.path, 4, "1")
        earlier.touch(0o600)
        assert sweep(str(tmp_path)) == [str(earlier)]
        assert os.path.exists(mine.path)


def test_sweep_leaves_what_it_cannot_judge(tmp_path: Path) -> None:
    dead = Path(dead_segment(tmp_path))
    machine = dead.name.split("-")[2]
    boot, _, namespace = machine.partition(".")
    kept = [
        with_part(str(dead), 1, str(os.geteuid() + 1)),
        with_part(str(dead), 2, f"{boot}.1"),
        with_part(str(dead), 2, f"00000000.{namespace}"),
        with_part(str(dead), 2, "unknown"),
        with_part(str(dead), 3, "0"),
        with_part(str(dead), 3, "99999999999999999999"),
        tmp_path / "hpccoll-notes",
        tmp_path / f"x{dead.name}",
    ]
    for path in kept:
        path.touch(0o600)
    target = tmp_path / "target"
    target.touch()
    link = with_part(str(dead), 5, "abcdef")
    link.symlink_to(target)
    folder = with_part(str(dead), 5, "abcde0")
    folder.mkdir()
    assert sweep(str(tmp_path)) == [str(dead)]
    assert sorted(tmp_path.iterdir()) == sorted([*kept, target, link, folder])


@needs_root
@as_root
def test_sweep_leaves_another_users_file(tmp_path: Path) -> None:
    dead = dead_segment(tmp_path)
    os.chown(dead, NOBODY, -1)
    assert sweep(str(tmp_path)) == []
    assert os.path.exists(dead)


def test_sweep_of_a_missing_directory_finds_nothing(tmp_path: Path) -> None:
    assert sweep(str(tmp_path / "none")) == []


@needs_root
@as_root
def test_a_proc_of_another_namespace_is_not_believed(tmp_path: Path) -> None:
    """In a pid namespace under the outer /proc, pids there mean other processes: nothing is judged."""
    code = (
        "import sys\n"
        "from hpccoll.memory.segments import create_segment, sweep\n"
        "segment = create_segment(1, directory=sys.argv[1], purpose='inner')\n"
        "print(segment.path, sweep(sys.argv[1]))\n"
    )
    done = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", WITHOUT_MPI + code, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(Path(hpccoll.__path__[0]).parent)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if "unshare failed" in done.stderr:
        pytest.skip(f"no pid namespace can be made here: {done.stderr.strip()}")
    path, _, swept = done.stdout.strip().partition(" ")
    assert "-unknown-1-" in path, done.stderr
    assert swept == "[]"
