"""Compiles what CuPy needs on the stand-in: `build()` gives its folder, made in seconds at the first call.

Before that, CuPy's source archive is fetched.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from tests.emulation.build import FLAGS, HERE, OUTPUT, header_folder, made_once, run
from tests.emulation.cupy import generate
from tests.support.launch import REPOSITORY
from tests.support.packages import Source, UnavailableError, unpacked

OURS = HERE / "cupy"
CUPY = Source(
    "cupy==14.2.0",
    "cupy-14.2.0.tar.gz",
    "cfed725e612178cfbdbf62f4a3a598b60edecbbca718c0d4580c21a16ae4a62c",
    is_inert=True,
)
VERSION = CUPY.requirement.split("==")[1]
# As CuPy's own build has them, for CUDA 12.9.
CONSTANTS = {
    "CUPY_CUDA_VERSION": 12090,
    "CUPY_HIP_VERSION": 0,
    "CUPY_USE_CUDA_PYTHON": False,
    "CUPY_CUFFT_STATIC": False,
}
DIRECTIVES = {
    "embedsignature": True,
    "c_api_binop_methods": True,
    "binding": False,
    "freethreading_compatible": True,
    "warn.deprecated.IF": False,
}
KERNEL_FLAGS = ["-fPIC", "-O1", "-g0", "-w", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off"]
KERNEL_FLAGS += ["-fno-gnu-unique", "-U_FORTIFY_SOURCE"]
# What every kernel of CuPy begins with.
CUPY_HEADERS = ("cupy/complex.cuh", "cupy/carray.cuh", "cupy/atomics.cuh", "cupy/math_constants.h")


def package_folder(name: str) -> Path | None:
    """Where a package of this Python is; it is not imported."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def missing() -> str | None:
    """What is lacking to run CuPy on the stand-in, for the reason of a skip; None: nothing."""
    if not shutil.which("g++"):
        return "no g++"
    if version_of("cupy-cuda12x") != VERSION:
        return f"cupy-cuda12x {VERSION} is not installed"
    if not version_of("Cython").startswith("3.2."):
        return "Cython 3.2 is not installed"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "no Python.h"
    if not header_folder("cuda_runtime", "cuda_runtime_api.h"):
        return "nvidia-cuda-runtime-cu12 is not installed"
    try:
        sources()
    except UnavailableError as error:
        return str(error)
    return None


@cache
def sources() -> Path:
    """The unpacked source archive of CuPy. Raises UnavailableError, ValueError."""
    return unpacked(CUPY, REPOSITORY / "build" / "sources") / f"cupy-{VERSION}"


def fingerprint(include: Path) -> str:
    """A hash of everything that goes in."""
    digest = hashlib.sha256(CUPY.sha256.encode())
    digest.update(subprocess.run(["g++", "--version"], check=True, capture_output=True).stdout)
    digest.update(f"{sys.executable} {sys.version} {version_of('Cython')}".encode())
    kinds = {".c", ".cpp", ".h", ".hpp", ".py"}
    files = [path for path in sorted(OURS.rglob("*")) if path.suffix in kinds]
    files += [HERE / "cuda" / "kernel.h", HERE / "nccl" / "floats.h", include / "cuda.h"]
    for path in files:
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build() -> Path:
    """The folder with what CuPy needs. Raises RuntimeError: what is missing, or what a compiler says."""
    lack = missing()
    if lack:
        raise RuntimeError(f"CuPy cannot run on the CUDA stand-in: {lack}")
    include = header_folder("cuda_runtime", "cuda_runtime_api.h")
    assert include is not None
    return made_once(OUTPUT / f"cupy-{fingerprint(include)}", lambda folder: _make(folder, include))


def _make(folder: Path, include: Path) -> None:
    (folder / "device").mkdir()
    jobs: list[Callable[[Path, Path], None]] = [_runtime, _nvrtc, _kernels_apart, _kernels_meeting, _cublas]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in [pool.submit(job, folder, include) for job in jobs]:
            done.result()
    for part in folder.glob("*.o"):
        part.unlink()
    (folder / "runtime.cpp").unlink()


def _includes(include: Path) -> list[str]:
    return [f"-I{OURS / 'headers'}", f"-isystem{include}"]


def _library(soname: str, parts: list[Path], folder: Path, *more: str) -> None:
    run(["g++", "-shared", f"-Wl,-soname,{soname}", *map(str, parts), *more, "-o", str(folder / soname)])


def _c_objects(part: str, generated: str, folder: Path, include: Path, *flags: str) -> list[Path]:
    """Objects of a folder of ours and of some generated text."""
    written = folder / f"{part}-generated.c"
    written.write_text(generated)
    objects = []
    for source in [*sorted((OURS / part).glob("*.c")), written]:
        objects.append(folder / f"{part}-{source.stem}.o")
        places = [f"-I{OURS / part}", *_includes(include)]
        run(["gcc", *FLAGS, *flags, *places, "-c", str(source), "-o", str(objects[-1])])
    return objects


def _runtime(folder: Path, include: Path) -> None:
    """Our libcudart.so.12, and CuPy's extension linked with it."""
    objects = _c_objects("cudart", generate.error_names(include), folder, include)
    _library("libcudart.so.12", objects, folder, "-Wl,-Bsymbolic-functions")
    tree = sources()
    module = "cupy_backends.cuda.api.runtime"
    written = folder / "runtime.cpp"
    command = [sys.executable, "-m", "cython", "-3", "--cplus", "--module-name", module, "-I", str(tree)]
    for name, value in {**CONSTANTS, "CUPY_CYTHON_VERSION": version_of("Cython")}.items():
        command += ["-E", f"{name}={value!r}"]
    for name, on in DIRECTIVES.items():
        command += ["-X", f"{name}={on}"]
    run([*command, "-o", str(written), str(tree / (module.replace(".", "/") + ".pyx"))])
    places = [f"-I{tree / 'cupy_backends' / 'cuda' / 'api'}", f"-I{sysconfig.get_paths()['include']}"]
    libraries = [f"-L{folder}", "-l:libcudart.so.12"]
    flags = ["-O0", "-w", "-fPIC", "-shared", *places, *_includes(include)]
    run(["g++", *flags, str(written), *libraries, "-o", str(folder / "runtime.so")])


def _kernel_includes(include: Path) -> list[str]:
    return [f"-I{OURS / 'device'}", *_includes(include)]


def _nvrtc(folder: Path, include: Path) -> None:
    objects = []
    kernel = [*KERNEL_FLAGS, *_kernel_includes(include)]
    names = ["-DSTANDIN_KERNEL_FLAGS=" + ",".join(f'"{flag}"' for flag in kernel)]
    flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-std=c++17", "-fPIC", "-U_FORTIFY_SOURCE"]
    for source in sorted((OURS / "nvrtc").glob("*.cpp")):
        objects.append(folder / f"nvrtc-{source.stem}.o")
        run(["g++", *flags, *names, *_includes(include), "-c", str(source), "-o", str(objects[-1])])
    _library("libnvrtc.so.12", objects, folder, "-ldl")


def _kernels_apart(folder: Path, include: Path) -> None:
    _compile_headers(folder, include, "apart", meets=False)


def _kernels_meeting(folder: Path, include: Path) -> None:
    _compile_headers(folder, include, "meeting", meets=True)


def _compile_headers(folder: Path, include: Path, name: str, *, meets: bool) -> None:
    """The headers of all of CuPy's kernels, compiled ahead: a kernel then takes a third of the time."""
    installed = package_folder("cupy")
    assert installed is not None
    headers = installed / "_core" / "include"
    bundled = [headers / "cupy" / "_cccl" / part for part in ("cub", "thrust", "libcudacxx")]
    text = "".join(f"#include <{header}>\n" for header in ("prelude.hpp", *CUPY_HEADERS))
    source = folder / "device" / f"{name}.hpp"
    source.write_text(text)
    (folder / "device" / "kernel.hpp").write_text(text)
    (folder / "device" / "kernel.hpp.gch").mkdir(exist_ok=True)
    places = [*_kernel_includes(include), *(f"-I{path}" for path in (*bundled, headers))]
    flags = [*KERNEL_FLAGS, *places, "-std=gnu++17", f"-DSTANDIN_MEETS={int(meets)}"]
    target = folder / "device" / "kernel.hpp.gch" / name
    run(["g++", *flags, "-x", "c++-header", str(source), "-o", str(target)])


def _cublas(folder: Path, include: Path) -> None:
    """CuPy asks for libcublas's symbols by their version, and of libcublasLt only that it is there."""
    installed = package_folder("cupy_backends")
    assert installed is not None
    extension = next((installed / "cuda" / "libs").glob("cublas.*.so"))
    objects = _c_objects("cublas", generate.absent_cublas(extension), folder, include, "-O3")
    versions = folder / "cublas.map"
    versions.write_text("libcublas.so.12 { global: *; };\n")
    _library("libcublas.so.12", objects, folder, f"-Wl,--version-script={versions}")
    _library("libcublasLt.so.12", [], folder)
