"""What is fetched is what was recorded, and lies where it was meant to; no network is needed here."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance import fetch
from tests.conformance.fetch import unpacked
from tests.support.packages import Source, UnavailableError, files_of

METADATA = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
CONTENT = {
    "demo.py": "answer = 42\n",
    "demo-1.0.dist-info/METADATA": METADATA,
    "demo-1.0.dist-info/WHEEL": WHEEL,
    "demo-1.0.dist-info/RECORD": "",
}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A wheel in the one folder where pip looks."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setattr(fetch, "FOLDER", tmp_path / "cache")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    path = index / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in CONTENT.items():
            archive.writestr(name, text)
    return Source("demo==1.0", path.name, hashlib.sha256(path.read_bytes()).hexdigest())


def test_fetched_once(wheel: Source, tmp_path: Path) -> None:
    folder = unpacked(wheel)
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    assert {name: path.read_text() for name, path in files.items()} == CONTENT
    (tmp_path / "index" / wheel.file).unlink()
    assert unpacked(wheel) == folder
    assert list(fetch.FOLDER.iterdir()) == [folder], "nothing else is kept"


def test_another_file_is_refused(wheel: Source) -> None:
    with pytest.raises(ValueError, match=r"demo-1.0-\S+whl: its sha256 is not the recorded 0000"):
        unpacked(replace(wheel, sha256="0" * 64))
    assert list(fetch.FOLDER.iterdir()) == []


def test_what_cannot_be_reached_is_unavailable(wheel: Source, tmp_path: Path) -> None:
    (tmp_path / "index" / wheel.file).unlink()
    with pytest.raises(UnavailableError, match=r"demo-1.0-\S+whl cannot be fetched: (.|\n)*demo==1.0"):
        unpacked(wheel)


def test_a_source_archive_is_fetched_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "FOLDER", tmp_path / "cache")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    ran = tmp_path / "ran"
    content = {
        "setup.py": f"open({str(ran)!r}, 'w')\n",
        "PKG-INFO": METADATA,
        "pyproject.toml": """[build-system]
            requires = ["nothing-there"]
            build-backend = "setuptools.build_meta"
        """,
    }
    path = tmp_path / "demo-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in content.items():
            member = tarfile.TarInfo(f"demo-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    folder = unpacked(Source("demo==1.0", path.name, digest, is_inert=True))
    assert (folder / "demo-1.0" / "PKG-INFO").read_text() == METADATA
    assert not ran.exists()


def sources(path: Path, *members: tarfile.TarInfo) -> Path:
    """A tar archive of empty members."""
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO())
    return path


def test_links_are_left_out(tmp_path: Path) -> None:
    link, file = tarfile.TarInfo("demo/link"), tarfile.TarInfo("demo/file")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    archive = sources(tmp_path / "demo.tar.gz", link, file)
    assert [str(path) for path, _ in files_of(archive, is_wheel=False)] == ["demo/file"]


@pytest.mark.parametrize("name", ["../outside", "/outside", "demo/../../outside"])
def test_a_path_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    archive = sources(tmp_path / "demo.tar.gz", tarfile.TarInfo(name))
    with pytest.raises(ValueError, match="outside of its folder"):
        list(files_of(archive, is_wheel=False))


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("", False), ("0", False)])
def test_in_continuous_integration_it_must_be_there(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: bool
) -> None:
    monkeypatch.setenv("CI", value)
    assert fetch.required() is expected
