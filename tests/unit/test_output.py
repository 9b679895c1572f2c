"""Files that commands write: whole or not at all, with one word on all ranks for those that cannot be."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from hpccoll import cli, files
from hpccoll.cli.output import json_text, write_json
from hpccoll.errors import UsageError
from tests.support.launch import run_ranks


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_file_is_there_as_a_whole(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "found.json"
    before = os.umask(mask)
    try:
        files.write_text(path, "first\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    path.chmod(0o640)
    files.check_writable(path)
    files.write_text(path, "second\n")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("second\n", 0o640)
    assert [one.name for one in tmp_path.iterdir()] == ["found.json"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "found.json"
    path.write_text("before")

    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match=rf"cannot write {path}: No space left on device"):
        files.write_text(path, "after")
    assert [one.name for one in tmp_path.iterdir()] == ["found.json"]
    assert path.read_text() == "before"


@pytest.mark.parametrize("why", [errno.EACCES, errno.EROFS, errno.EBUSY])
def test_where_only_the_file_can_be_written_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    """As of a file that is mounted into a container, or is in a directory of somebody else's."""
    path = tmp_path / "found.json"

    def refused(*paths: object) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(UsageError, match=os.strerror(why)):
        files.write_text(path, "after")
    assert not path.exists()
    path.write_text("before, and longer")
    files.write_text(path, "after")
    assert path.read_text() == "after"


def test_links_pipes_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    for text in ("new", "newer"):
        files.check_writable(link)
        files.write_text(link, text)
        assert (link.is_symlink(), target.read_text()) == (True, text)
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    files.check_writable(pipe)
    files.write_text(pipe, "through")
    reader.join(20.0)
    assert read == ["through"]
    files.check_writable("/dev/null")
    files.write_text("/dev/null", "away")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("name", ["", "file/found.json", "not there/found.json"])
def test_what_cannot_be_written_is_said_before_and_after(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / name
    said = []
    for attempt in (lambda: files.check_writable(path), lambda: files.write_text(path, "text")):
        with pytest.raises(UsageError, match="cannot write") as caught:
            attempt()
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_json_is_the_same_in_every_locale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"host": "rechner-ä", "bytes that are no text": os.fsdecode(b"\xff"), "numbers": [1, 0.5]}
    write_json(str(tmp_path / "file"), document)
    write_json("-", document)
    for text in ((tmp_path / "file").read_text(encoding="ascii"), capsys.readouterr().out):
        assert (json.loads(text), text) == (document, json_text(document))


@pytest.mark.parametrize(
    "command",
    [
        "plan allreduce --layout 2+2 --json",
        "plan allreduce --layout 2+2 --svg",
        "layout --model gpt3-175b --nodes 8 --json",
        "trace {} --json",
        "trace {} --html",
        "topo --root / --json",
        "topo --root / --svg",
        "doctor --root / --json",
    ],
)
def test_one_word_of_all_commands(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = command.format(tmp_path).split()
    assert cli.main([*words, "/nowhere/file"]) == cli.MISUSE
    said = f"hpccoll {words[0]}: cannot write /nowhere/file: No such file or directory\n"
    assert capsys.readouterr().err == said


def test_one_word_of_all_commands_on_all_ranks(tmp_path: Path) -> None:
    """Said once, before anything is measured; every rank ends with the same status."""
    commands = ["topo --json", "topo --svg", "doctor --json", "bench allreduce --json"]
    commands += [f"tune -o {tmp_path}/table.toml --json", "tune -o"]
    code = (
        "import sys\nfrom mpi4py import MPI\nfrom hpccoll import cli\n"
        f"for words in {commands!r}:\n"
        "    file = '/proc/file' + ('.toml' if words.endswith('-o') else '')\n"
        "    status = MPI.COMM_WORLD.gather(cli.main([*words.split(), file]))\n"
        "    if status: print(status, flush=True)\n"
    )
    done = run_ranks(3, ["-c", code], timeout_s=50.0)
    assert done.stdout.splitlines() == [str([cli.MISUSE] * 3)] * len(commands), done.stderr
    said = [line for line in done.stderr.splitlines() if line]
    assert [line.split(":")[0] for line in said] == [f"hpccoll {one.split()[0]}" for one in commands]
    assert all("cannot write /proc/file" in line for line in said)
    assert not (tmp_path / "table.toml").exists()
