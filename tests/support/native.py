"""The C files of the extension built otherwise: with sanitizers, changed, for another processor."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.launch import REPOSITORY, Result, run_program

__all__ = [
    "ADDRESSES", "NATIVE", "RACES", "build_harness", "build_package", "compile_each", "missing",
    "run_harness", "runtimes", "with_changed_line",
]  # fmt: skip

NATIVE = REPOSITORY / "hpccoll" / "_native"
HARNESS = REPOSITORY / "tests" / "native" / "harness"
# The files that the harness drives; of what they have for Python nothing is linked.
ENGINE = ("copy", "execution", "group", "kernels", "network", "slots", "wire")
COMMON = ("-std=gnu11", "-pthread", "-fvisibility=hidden", "-g", "-Wall", "-Wextra", "-Werror")
ADDRESSES = (
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
)
RACES = ("-O1", "-fsanitize=thread")
LIMIT_S = 200


@functools.cache
def missing(compiler: str, *flags: str) -> str:
    """Why programs cannot be built so, as the reason of a skip; "" where they can."""
    if not shutil.which(compiler):
        return f"there is no {compiler}"
    if not Path(_include(), "Python.h").is_file():
        return "there is no Python.h"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "empty.c")
        source.write_text("int main(void) { return 0; }\n")
        done = run_program([compiler, *flags, str(source), "-o", f"{folder}/empty"], timeout_s=LIMIT_S)
    return (
        "" if done.returncode == 0 else f"{compiler} {' '.join(flags)} builds nothing: {done.stderr[-300:]}"
    )


def compile_each(sources: Sequence[Path], folder: Path, *flags: str, compiler: str = "gcc") -> list[Path]:
    """An object of each source, two at a time; a warning is an error."""
    folder.mkdir(exist_ok=True)

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        places = [f"-I{source.parent}", f"-I{NATIVE}", f"-I{_include()}"]
        _run([compiler, *COMMON, *flags, *places, "-c", str(source), "-o", str(target)])
        return target

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compile_one, sources))


def build_harness(
    folder: Path, *flags: str, native: Path = NATIVE, compiler: str = "gcc", link: Sequence[str] = ()
) -> Path:
    """tests/native/harness as a program, with the engine's files from `native`."""
    # Sections of their own: the linker leaves out what only Python would call.
    sections = ("-ffunction-sections", "-fdata-sections")
    if any("address" in flag for flag in flags):
        sections += ("--param", "asan-globals=0")  # else every table stays, and all that it names
    own = compile_each(sorted(HARNESS.glob("*.c")), folder / "own", *flags, f"-I{native}", compiler=compiler)
    engine = [native / f"{name}.c" for name in ENGINE]
    objects = own + compile_each(engine, folder / "engine", *flags, *sections, compiler=compiler)
    program = folder / "harness"
    options = ["-pthread", "-Wl,--gc-sections", *flags, *link]
    _run([compiler, *options, *map(str, objects), "-o", str(program)])
    return program


def run_harness(program: Path, *arguments: str, before: Sequence[str] = ()) -> Result:
    """Run it, `before` being what runs it; a sanitizer's first report ends it."""
    env = {"TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return run_program([*before, str(program), *arguments], timeout_s=LIMIT_S, env=env)


def with_changed_line(folder: Path, file: str, old: str, new: str) -> Path:
    """A copy of the C files in which one place reads otherwise."""
    copy = folder / "changed"
    shutil.copytree(NATIVE, copy, ignore=shutil.ignore_patterns("*.so", "*.py*", "__pycache__"))
    text = (copy / file).read_text()
    assert text.count(old) == 1, f"{file} has {text.count(old)} times: {old}"
    (copy / file).write_text(text.replace(old, new))
    return copy


def build_package(folder: Path, *flags: str) -> Path:
    """A copy of the package and its tests in which the extension is built so; returns the extension."""
    for name in ("hpccoll", "tests"):
        shutil.copytree(
            REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    objects = compile_each(sorted(NATIVE.glob("*.c")), folder / "objects", *flags, "-fPIC")
    extension = folder / "hpccoll" / "_native" / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    _run(["gcc", "-shared", *flags, *map(str, objects), "-o", str(extension)])
    return extension


def runtimes(*names: str) -> str:
    """The sanitizers' own libraries, for LD_PRELOAD: Python itself is not linked to them."""
    found = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in names
    ]
    return ":".join(found)


def _include() -> str:
    return sysconfig.get_path("include")


def _run(command: Sequence[str]) -> None:
    done = run_program(command, timeout_s=LIMIT_S)
    if done.returncode or done.timed_out:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
