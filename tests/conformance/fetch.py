"""What other projects wrote, for our tests: fetched by pip, compared with the hashes below, kept in build/.

`python -m tests.conformance.fetch` fetches everything and says where it is.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import packages
from tests.support.launch import REPOSITORY
from tests.support.packages import Source, UnavailableError, required

__all__ = ["FOLDER", "UnavailableError", "mpi4py_tests", "mpipartition", "pylops_mpi", "required", "unpacked"]

FOLDER = REPOSITORY / "build" / "conformance"

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
MPIPARTITION = Source(
    "mpipartition==1.5.0",
    "mpipartition-1.5.0-py3-none-any.whl",
    "b50d834a19da7cdf8221e9aa1bb1f351fd54dba75998276864a6a133cf4510f0",
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


def mpipartition() -> Path:
    """A folder in which Python finds mpipartition.

    Raises: as `unpacked`.
    """
    return unpacked(MPIPARTITION)


def unpacked(source: Source) -> Path:
    """As `packages.unpacked`, kept with the others of these tests."""
    return packages.unpacked(source, FOLDER)


def main() -> None:
    """Fetch everything."""
    print(mpi4py_tests())
    print(mpipartition())
    tests, paths = pylops_mpi()
    print(tests, *paths, sep="\n")


if __name__ == "__main__":
    main()
