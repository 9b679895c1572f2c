"""What other projects wrote, for our tests: fetched by pip, compared with the hashes below, kept in build/.

`python -m tests.conformance.fetch` fetches everything and says where it is.
"""

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

from tests.support.launch import REPOSITORY

FOLDER = REPOSITORY / "build" / "conformance"
FETCH_LIMIT_S = 180.0


class UnavailableError(RuntimeError):
    """No package index could be reached, or it does not have the file."""


@dataclass(frozen=True)
class Source:
    """One file of a package index."""

    requirement: str
    file: str
    sha256: str

    @property
    def is_wheel(self) -> bool:
        return self.file.endswith(".whl")


MPI4PY = Source(
    "mpi4py==4.1.2",
    "mpi4py-4.1.2.tar.gz",
    "56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02",
)
PYLOPS_MPI = Source(
    "pylops-mpi==0.8.0",
    "pylops_mpi-0.8.0.tar.gz",
    "02c9c72beff47f781829c352c9bce072c242c8fb7aaeeb67776bed55fc5dacbf",
)
# What pylops-mpi imports and the tests' environment lacks; pure Python, so a folder in the path will do.
PYLOPS = Source(
    "pylops==2.8.0",
    "pylops-2.8.0-py3-none-any.whl",
    "5f2dff378e4dadd91d1424b6fc527fa96e893fc43e58fea0817ed9f3246a51cf",
)
PYPROXIMAL = Source(
    "pyproximal==0.12.0",
    "pyproximal-0.12.0-py3-none-any.whl",
    "b84ba73404c4428c64867a1b6079bb1f87718209d5f41e2eb17f71d47dcfde8f",
)


def mpi4py_tests() -> Path:
    """The folder with mpi4py's test modules.

    Raises: as `unpacked`.
    """
    return unpacked(MPI4PY) / "mpi4py-4.1.2" / "test"


def pylops_mpi() -> tuple[Path, tuple[Path, ...]]:
    """The folder with pylops-mpi's test files, and the folders in which to find what they import.

    Raises: as `unpacked`.
    """
    folder = unpacked(PYLOPS_MPI) / "pylops_mpi-0.8.0"
    return folder / "tests", (folder, unpacked(PYLOPS), unpacked(PYPROXIMAL))


def unpacked(source: Source) -> Path:
    """The folder with what is in `source`, which is fetched unless it is there.

    Raises:
        UnavailableError: it cannot be fetched.
        ValueError: it is not the file whose hash is recorded here.
    """
    folder = FOLDER / f"{source.file}-{source.sha256[:12]}"
    if folder.is_dir():
        return folder
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        archive = _fetch(source, Path(name))
        content = Path(name) / "content"
        for path, data in _files(archive, source.is_wheel):
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
    kind = "--only-binary" if source.is_wheel else "--no-binary"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--retries", "1", "--timeout", "20", kind, ":all:" if source.is_wheel else _name(source)]
    command += ["--dest", str(into), "--requirement", str(requirements)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False)
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


def _name(source: Source) -> str:
    return source.requirement.split("==")[0]


def _files(archive: Path, is_wheel: bool) -> Iterator[tuple[PurePosixPath, bytes]]:
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


def main() -> None:
    """Fetch everything."""
    print(mpi4py_tests())
    tests, paths = pylops_mpi()
    print(tests, *paths, sep="\n")


if __name__ == "__main__":
    main()
