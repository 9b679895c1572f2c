"""Compiles the stand-in: `build()` gives the folder with the libraries, made in seconds where it is missing.

The folder's name is a hash of all that goes in (sources, headers, compiler); a change of any makes another.
Many processes may call it at once: one builds, the others wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.emulation.cuda.generate import generate
from tests.emulation.load import refuse_real_driver

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parents[1] / "build" / "emulation"
FLAGS = ["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-fPIC", "-D_GNU_SOURCE="]
INTERNAL = (
    "-D__CUDA_API_VERSION_INTERNAL"  # cuda.h: every version of an entry point, by its name in the library
)


@dataclass(frozen=True)
class Library:
    """A shared library, of all C files of a folder (and some of others)."""

    soname: str
    folder: str
    also: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ("-lpthread",)
    before: tuple[str, ...] = ()  # libraries of ours that it is linked with

    def sources(self) -> list[Path]:
        return [*sorted((HERE / self.folder).glob("*.c")), *(HERE / name for name in self.also)]


PARTS = (
    Library("libcuda.so.1", "cuda", defines=(INTERNAL,), libraries=("-lpthread", "-ldl")),
    Library("libnvidia-ml.so.1", "nvml", also=("cuda/identity.c", "cuda/settings.c"), defines=(INTERNAL,)),
    Library("libnccl.so.2", "nccl", libraries=("-ldl", "-lpthread", "-lrt", "-lm"), before=("libcuda.so.1",)),
)


def header_folder(package: str, header: str) -> Path | None:
    """The `include` folder of one of NVIDIA's wheels (`nvidia/<package>/include`) in this Python."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / package / "include"
        if (folder / header).is_file():
            return folder
    return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing() -> str | None:
    """What this Python lacks to build the stand-in and run on it, for the reason of a skip; None: nothing."""
    if not shutil.which("gcc"):
        return "no gcc"
    for package, header, wheel in (
        ("cuda_runtime", "cuda.h", "nvidia-cuda-runtime-cu12"),
        ("nccl", "nccl.h", "nvidia-nccl-cu12"),
    ):
        if not header_folder(package, header):
            return f"{wheel} is not installed"
    bindings = _version("cuda-bindings")
    if bindings and not bindings.startswith("12."):
        return f"cuda-bindings {bindings} is not for CUDA 12, of which the headers are"
    try:
        refuse_real_driver()
    except RuntimeError as error:
        return str(error)
    return None


def includes() -> list[Path]:
    """Folders of cuda.h and nccl.h. Raises RuntimeError naming the wheel that is missing."""
    lack = missing()
    if lack:
        raise RuntimeError(f"the CUDA stand-in cannot be built: {lack}")
    folders = [header_folder("cuda_runtime", "cuda.h"), header_folder("nccl", "nccl.h")]
    return [folder for folder in folders if folder]


def fingerprint(headers: list[Path]) -> str:
    """A hash of everything that the libraries are made from."""
    digest = hashlib.sha256()
    digest.update(subprocess.run(["gcc", "--version"], check=True, capture_output=True).stdout)
    files = [Path(__file__), *(path for path in sorted(HERE.rglob("*")) if path.suffix in {".c", ".h"})]
    files += [HERE / "cuda" / "generate.py", headers[0] / "cuda.h", headers[1] / "nccl.h"]
    for path in files:
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _generated(headers: list[Path], folder: Path) -> Path:
    """The C file made from NVIDIA's headers; it is not kept in the repository."""
    path = folder / "generated.c"
    path.write_text(generate(headers[0]))
    return path


def _compile_all(folder: Path, headers: list[Path]) -> None:
    jobs: list[tuple[Library, Path, Path]] = []
    for part in PARTS:
        sources = part.sources()
        if part.folder == "cuda":
            sources.append(_generated(headers, folder))
        jobs += [(part, source, folder / f"{part.folder}-{source.stem}.o") for source in sources]

    def compile_one(job: tuple[Library, Path, Path]) -> None:
        part, source, target = job
        places = [f"-I{HERE / 'cuda'}", *(f"-isystem{path}" for path in headers)]
        run(["gcc", *FLAGS, *part.defines, *places, "-c", str(source), "-o", str(target)])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, jobs))
    for part in PARTS:
        objects = [str(target) for owner, _, target in jobs if owner is part]
        ours = [f"-l:{name}" for name in part.before]
        link = [
            "gcc",
            "-shared",
            f"-Wl,-soname,{part.soname}",
            "-Wl,-Bsymbolic-functions",
            "-Wl,-rpath,$ORIGIN",
        ]
        if objects:
            run([*link, *objects, f"-L{folder}", *ours, *part.libraries, "-o", str(folder / part.soname)])


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, which `make` fills in another place unless it is there; one of several processes does."""
    if folder.is_dir():
        return folder
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with _only_one(OUTPUT / ".lock"):
        if not folder.is_dir():
            work = Path(tempfile.mkdtemp(prefix="part-", dir=OUTPUT))
            try:
                make(work)
                work.chmod(0o755)
                work.rename(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder


def build() -> Path:
    """The folder with the libraries. Raises RuntimeError: a real driver, a missing wheel, what gcc says."""
    headers = includes()
    return made_once(OUTPUT / fingerprint(headers), lambda folder: _compile_all(folder, headers))
