"""Wheel and source archive: what is in them, and that they work where nothing else is."""

from __future__ import annotations

import json
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import hpccoll
from tests.packaging.conftest import Environment, environment, other_python
from tests.support.launch import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NOT_BUILT = "_core is not built for this Python: install hpccoll with a C compiler present"
NEEDED = {"hpccoll", "ml_dtypes", "mpi4py", "numpy"}
ROW = ("bench", "allreduce", "--layout", "2+2", "-b", "64K", "-e", "64K", "-n", "2", "--json")


def test_the_index_would_take_them(distributions: Sequence[Path], tools: Environment) -> None:
    done = tools.run("twine", "check", "--strict", *map(str, distributions))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


def test_the_wheel_has_the_package_and_nothing_else(distributions: Sequence[Path], project: Path) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        infos = sorted(name for name in names if ".dist-info/" in name)
        metadata = Parser().parsestr(wheel.read(f"{infos[0].partition('/')[0]}/METADATA").decode())
        entries = wheel.read(next(name for name in infos if name.endswith("entry_points.txt"))).decode()
    sources = {str(path.relative_to(project)) for path in project.joinpath("hpccoll").rglob("*.py")}
    (extension,) = (name for name in names if name.endswith(".so"))
    assert extension.startswith("hpccoll/_native/_core.")
    typed = {"hpccoll/py.typed", "hpccoll/_native/_core.pyi"}
    assert names - set(infos) == sources | typed | {extension}
    assert [Path(name).name for name in infos] == [
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "LICENSE", "top_level.txt"
    ]  # fmt: skip
    assert "hpccoll = hpccoll.cli:main" in entries
    check_metadata(metadata, (project / "README.md").read_text())


def check_metadata(found: Message, readme: str) -> None:
    assert (found["Name"], found["Version"]) == ("hpccoll", hpccoll.__version__)
    assert (found["License"] or found["License-Expression"]) == "Apache-2.0"
    assert found["Requires-Python"] == ">=3.10"
    assert found["Description-Content-Type"] == "text/markdown"
    assert str(found.get_payload()).strip() == readme.strip()
    always = {line.split(">")[0] for line in found.get_all("Requires-Dist", []) if ";" not in line}
    assert always == NEEDED - {"hpccoll"}


def test_the_source_archive_is_the_whole_project(distributions: Sequence[Path], project: Path) -> None:
    with tarfile.open(distributions[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    kept = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    made = {name for name in names if ".egg-info/" in name} | {"PKG-INFO"}
    kept = {name for name in kept if not name.startswith("dist/") and ".egg-info/" not in name}
    assert names - made == kept


def test_the_oldest_python_is_the_same_everywhere() -> None:
    for file, words in (
        ("setup.cfg", "python_requires = >=3.10\n"),
        ("pyproject.toml", 'target-version = "py310"\n'),
        ("pyproject.toml", 'python_version = "3.10"\n'),
        ("Makefile", "sys.version_info < (3, 10)"),
    ):
        assert words in (REPOSITORY / file).read_text(), file


def test_the_wheel_works_alone(distributions: Sequence[Path], fresh: Environment) -> None:
    done = fresh.pip("install", f"{distributions[1]}[mpich]")
    assert done.returncode == 0, done.stderr
    installed = json.loads(fresh.pip("list", "--format=json").stdout)
    assert {one["name"] for one in installed} <= NEEDED | {"mpich", "pip", "setuptools", "tomli"}
    check(fresh, "in use")


def test_the_source_archive_works_without_a_compiler(
    distributions: Sequence[Path], fresh: Environment
) -> None:
    """pip says nothing of it; `hpccoll --version` does, and `hpccoll topo`."""
    fresh.pip("uninstall", "--yes", "hpccoll")
    done = fresh.pip("install", f"{distributions[0]}[mpich]", CC="no-such-compiler")
    assert done.returncode == 0, done.stderr
    check(fresh, f"hpccoll._native.{NOT_BUILT}")


def test_the_oldest_python(distributions: Sequence[Path], tmp_path: Path) -> None:
    """The source archive, with the extension: the interfaces of Python and NumPy in C are others there."""
    python = other_python("3.10")
    if python is None:
        pytest.skip("no Python 3.10 on this machine")
    oldest = environment(tmp_path / "venv", python)
    done = oldest.pip("install", f"{distributions[0]}[mpich]")
    assert done.returncode == 0, done.stderr
    assert "Python 3.10" in oldest.run("hpccoll", "--version").stdout
    check(oldest, "in use")


def check(fresh: Environment, extension: str) -> None:
    """Versions, and a two-level all-reduce of which every element is looked at."""
    done = fresh.run("hpccoll", "--version")
    assert done.stdout.startswith(f"hpccoll {hpccoll.__version__}, C extension: {extension}\n"), done
    assert "MPICH" in done.stdout
    assert str(fresh.folder) in fresh.run("python", "-c", "import hpccoll; print(hpccoll.__file__)").stdout
    command = ("-n", "4", str(fresh.folder / "bin" / "hpccoll"), *ROW, str(fresh.folder / "found.json"))
    done = fresh.run("mpiexec", *command, "--algorithm", "scatter_rail_gather")
    assert done.returncode == 0, done
    found = json.loads((fresh.folder / "found.json").read_text())
    assert found["layout"] == "2+2"
    assert [one["out_of_place"]["nwrong"] for one in found["results"]] == [0]


def test_without_the_extension_on_purpose(project: Path, tmp_path: Path) -> None:
    own = Environment(Path(sys.executable).parents[1])
    words = ("wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(project))
    done = own.pip(*words, HPCCOLL_BUILD_NATIVE="0")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as built:
        assert [name for name in built.namelist() if name.endswith(".so")] == []
