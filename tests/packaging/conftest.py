"""Wheel and source archive, built as a maintainer would, and an environment in which nothing is but them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.fetch import required
from tests.support.launch import REPOSITORY, Result, run_program

LIMIT_S = 280.0


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees nothing of the repository nor of the tests' own environment."""

    folder: Path

    def run(self, *command: str, **variables: str) -> Result:
        """A command of its own."""
        program, *words = command
        env = {"PYTHONPATH": "", "VIRTUAL_ENV": "", "PATH": f"{self.folder}/bin:/usr/bin:/bin", **variables}
        return run_program(
            [str(self.folder / "bin" / program), *words], timeout_s=LIMIT_S, env=env, cwd=self.folder
        )

    def pip(self, *words: str, **variables: str) -> Result:
        return self.run("python", "-m", "pip", "--disable-pip-version-check", *words, **variables)


def environment(folder: Path, python: str = sys.executable) -> Environment:
    subprocess.run([python, "-m", "venv", str(folder)], check=True, timeout=LIMIT_S)
    return Environment(folder)


def other_python(version: str) -> str | None:
    """Another Python of this machine: installed beside the one that runs the tests, or in PATH."""
    found = sorted(map(str, Path(sys.base_prefix).parent.glob(f"*{version}.*/bin/python{version}")))
    found += filter(None, [shutil.which(f"python{version}")])
    for python in found:  # a shim of pyenv's may be there without what it stands for
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, without what was built in it."""
    copy = tmp_path_factory.mktemp("project") / "hpccoll"
    made = ("build", "dist", "*.egg-info", "*.so", "__pycache__", ".git", ".venv*", ".*_cache", ".hypothesis")
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns(*made))
    return copy


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With build and twine; without a network what needs them skips, in continuous integration it fails."""
    found = environment(tmp_path_factory.mktemp("tools") / "venv")
    done = found.pip("install", "build", "twine", "setuptools>=70.1")
    if done.returncode and not required():
        pytest.skip(f"build and twine cannot be fetched: {done.stderr[-500:]}")
    assert done.returncode == 0, done.stderr
    return found


@pytest.fixture(scope="session")
def distributions(project: Path, tools: Environment) -> Sequence[Path]:
    """The source archive, and the wheel that is built from it."""
    place = project / "dist"
    done = tools.run("python", "-m", "build", "--no-isolation", "--outdir", str(place), str(project))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (archive,), (wheel,) = place.glob("*.tar.gz"), place.glob("*.whl")
    assert sorted(os.listdir(place)) == sorted([archive.name, wheel.name])
    return archive, wheel


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With pip and setuptools alone."""
    return environment(tmp_path_factory.mktemp("fresh") / "venv")
