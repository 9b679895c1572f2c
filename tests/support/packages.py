"""What other projects published, for our tests: fetched by pip, compared with a recorded hash, unpacked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

FETCH_LIMIT_S = 180.0
# pip builds a source archive as far as to learn its name from it.  This stands in for what would build it:
# none of its code runs, and nothing that it needs must be there.  The name is what PKG-INFO says.
BACKEND = """
import email, pathlib

def get_requires_for_build_wheel(settings=None):
    return []

def prepare_metadata_for_build_wheel(folder, settings=None):
    text = pathlib.Path("PKG-INFO").read_text(encoding="utf-8")
    fields = email.message_from_string(text)
    place = pathlib.Path(folder, "{}-{}.dist-info".format(fields["Name"], fields["Version"]))
    place.mkdir()
    (place / "METADATA").write_text(text, encoding="utf-8")
    return place.name
"""


class UnavailableError(RuntimeError):
    """No package index could be reached, or it does not have the file."""


@dataclass(frozen=True)
class Source:
    """One file of a package index.

    Attributes:
        requirement: as pip takes it, with the exact version.
        file: its name.
        sha256: its hash.
        is_inert: pip runs nothing of a source archive; for one whose build is by setuptools.
    """

    requirement: str
    file: str
    sha256: str
    is_inert: bool = False

    @property
    def is_wheel(self) -> bool:
        return self.file.endswith(".whl")


def unpacked(source: Source, place: Path) -> Path:
    """The folder below `place` with what is in `source`, which is fetched unless it is there.

    Raises:
        UnavailableError: it cannot be fetched.
        ValueError: it is not the file whose hash is recorded.
    """
    folder = place / f"{source.file}-{source.sha256[:12]}"
    if folder.is_dir():
        return folder
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as name:
        archive = _fetch(source, Path(name))
        content = Path(name) / "content"
        for path, data in files_of(archive, source.is_wheel):
            target = content / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        try:
            content.rename(folder)
        except OSError:  # another run was faster
            if not folder.is_dir():
                raise
    return folder


def _fetch(source: Source, into: Path) -> Path:
    requirements = into / "requirements.txt"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--retries", "1", "--timeout", "20", *_kind(source)]
    command += ["--dest", str(into), "--requirement", str(requirements)]
    child = _environment(into) if source.is_inert else None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False, env=child
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{source.file}: not fetched within {FETCH_LIMIT_S:g} s") from None
    archive = into / source.file
    if done.returncode == 0 and archive.is_file():
        if hashlib.sha256(archive.read_bytes()).hexdigest() != source.sha256:
            raise ValueError(f"{source.file}: its sha256 is not the recorded {source.sha256}")
        return archive
    said = done.stderr.strip() or done.stdout.strip()
    if "DO NOT MATCH THE HASHES" in said:
        raise ValueError(f"{source.file}: its sha256 is not the recorded {source.sha256}: {said}")
    raise UnavailableError(f"{source.file} cannot be fetched: {said[-500:]}")


def _kind(source: Source) -> list[str]:
    if source.is_wheel:
        return ["--only-binary", ":all:"]
    build = ["--no-build-isolation", "--use-pep517"] if source.is_inert else []
    return ["--no-binary", source.requirement.split("==")[0], *build]


def _environment(into: Path) -> dict[str, str]:
    """That of a pip for which BACKEND is setuptools."""
    package = into / "backend" / "setuptools"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "build_meta.py").write_text(BACKEND)
    return {**os.environ, "PYTHONPATH": str(package.parent)}


def files_of(archive: Path, is_wheel: bool) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The regular files of an archive; links, devices and paths that lead out of it are no part of it."""
    if is_wheel:
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if not name.endswith("/"):
                    yield _inside(name), wheel.read(name)
        return
    with tarfile.open(archive) as sources:
        for member in sources:
            if member.isfile():
                file = sources.extractfile(member)
                assert file is not None
                yield _inside(member.name), file.read()


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"a file of the archive would lie outside of its folder: {name!r}")
    return path


def required() -> bool:
    """Whether what cannot be fetched is a failure (in continuous integration) rather than a skip."""
    return os.environ.get("CI", "").lower() == "true"
