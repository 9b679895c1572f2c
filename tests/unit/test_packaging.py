"""The wheel: what is in it, with and without a C compiler."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.launch import REPOSITORY, run_program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def wheel(folder: Path, **env: str) -> zipfile.Path:
    """The wheel of a copy of the sources, built without network."""
    sources = folder / "sources"
    ignore = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "*.so", "__pycache__")
    shutil.copytree(REPOSITORY, sources, ignore=ignore)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(sources),
    ]
    result = run_program(command, timeout_s=240, env=env, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = folder.glob("hpccoll-*.whl")
    return zipfile.Path(built)


def names(built: zipfile.Path) -> set[str]:
    return set(built.root.namelist())


def extension(built: zipfile.Path) -> list[str]:
    return [
        name for name in names(built) if name.startswith("hpccoll/_native/_core") and name.endswith(".so")
    ]


def test_contents(tmp_path: Path) -> None:
    built = wheel(tmp_path)
    assert len(extension(built)) == 1
    sources = {str(path.relative_to(REPOSITORY)) for path in REPOSITORY.joinpath("hpccoll").rglob("*.py")}
    assert {name for name in names(built) if name.endswith(".py")} == sources, (
        "all of the package and nothing else"
    )
    assert "hpccoll/py.typed" in names(built)
    (info,) = (path for path in built.iterdir() if path.name.endswith(".dist-info"))
    metadata = (info / "METADATA").read_text()
    for line in (
        "Name: hpccoll",
        "License: Apache-2.0",
        "Requires-Python: >=3.10",
        "Provides-Extra: cuda13",
    ):
        assert line in metadata.splitlines()
    assert "hpccoll = hpccoll.cli:main" in (info / "entry_points.txt").read_text()
    assert any(name.endswith("LICENSE") for name in names(built))


def test_without_the_extension_on_purpose(tmp_path: Path) -> None:
    built = wheel(tmp_path, HPCCOLL_BUILD_NATIVE="0")
    assert extension(built) == []
    assert "hpccoll/_native/__init__.py" in names(built)


def test_without_a_compiler(tmp_path: Path) -> None:
    assert extension(wheel(tmp_path, CC="no-such-compiler")) == []
