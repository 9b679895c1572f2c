"""CuPy on the stand-in: its arrays, its kernels, its runtime, in each mode.

All runs in child processes, as this one shall not have the stand-in loaded.
"""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.emulation import build, load
from tests.emulation.cupy import build as cupy_build
from tests.emulation.cupy import generate
from tests.support import packages
from tests.support.launch import find_mpiexec
from tests.support.packages import UnavailableError

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module", autouse=True)
def needs_cupy() -> None:
    """Looked for when a test runs, and not before: CuPy's source may have to be fetched."""
    lack = build.missing() or cupy_build.missing()
    if lack and packages.required() and "cannot be fetched" in lack:
        pytest.fail(lack)
    if lack:
        pytest.skip(f"no CuPy on the CUDA stand-in: {lack}")


def case_names() -> list[str]:
    """From the sources: the modules need CuPy to be imported."""
    names = []
    for path in sorted((HERE / "cupy_cases").glob("*.py")):
        functions = [
            node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        names += [name.removeprefix("case_") for name in functions if name.startswith("case_")]
    return names


def run(*command: str, **more: object) -> subprocess.CompletedProcess[str]:
    child = load.environment(**more)
    return subprocess.run(command, cwd=ROOT, env=child, capture_output=True, text=True, timeout=280)


@functools.cache
def answers(mode: str) -> dict[str, str]:
    """What each case said in this mode: nothing where it went well.

    The limit of the lazy mode is long here, as cases see what has *not* run, on machines that may be busy.
    """
    done = run(sys.executable, "-m", "tests.emulation.cupy_cases", mode=mode, lazy_us=400000)
    said: dict[str, str] = {}
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        if "begin" in answer:
            said[answer["begin"]] = (
                f"the process ended within this case, code {done.returncode}\n{done.stderr}"
            )
        else:
            said[answer["end"]] = answer["said"]
    return said


# The first test of a mode runs all cases: a minute on a busy machine, where no kernel has been compiled yet.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["lazy", "eager", "delay"])
@pytest.mark.parametrize("name", case_names())
def test_case(name: str, mode: str) -> None:
    said = answers(mode).get(name, "it did not run")
    assert not said, said


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_on_devices_of_their_own(ranks: int) -> None:
    program = [sys.executable, "-m", "tests.emulation.cupy_cases.network"]
    done = run(*find_mpiexec().command(ranks, program))
    assert done.returncode == 0, done.stderr
    for rank in range(ranks):
        assert f"rank {rank} on device {rank}: " in done.stdout


def ends_with(code: str) -> str:
    """What a program says that breaks its context."""
    done = run(sys.executable, "-c", f"import cupy\n{code}\ncupy.cuda.runtime.deviceSynchronize()")
    assert done.returncode == 1
    return done.stderr


def kernel(body: str, threads: int = 1) -> str:
    source = f'extern "C" __global__ void bad(int *out) {{ {body} }}'
    return f"out = cupy.zeros(64, 'i4')\ncupy.RawKernel({source!r}, 'bad')((1,), ({threads},), (out,))"


def test_an_assertion_of_a_kernel_ends_the_context() -> None:
    said = ends_with(kernel("assert(threadIdx.x < 3);", 8))
    assert "thread (3,0,0): assertion failed: threadIdx.x < 3" in said
    assert "cudaErrorAssert" in said


def test_a_kernel_that_reads_what_is_not_there_ends_the_context() -> None:
    assert "cudaErrorIllegalAddress" in ends_with(kernel("out[1 << 28] = 1;"))


def test_a_barrier_that_some_threads_miss_is_told() -> None:
    body = "if (threadIdx.x < 4) __syncthreads(); else __syncwarp();"
    said = ends_with(kernel(body, 8))
    assert "the threads of a block wait for one another at different barriers" in said
    assert "cudaErrorLaunchFailure" in said


def test_a_lane_outside_of_its_own_mask_is_told() -> None:
    assert "a lane waits for others but not for itself" in ends_with(kernel("__syncwarp(1);", 2))


def test_a_stack_that_overflows_is_told() -> None:
    body = "volatile char big[127000]; for (volatile char &c : big) c = 7; __syncthreads(); *out = big[9];"
    assert "the stack of a kernel's thread has overflowed" in ends_with(kernel(body, 2))


def test_a_matrix_that_runs_over_its_memory_ends_the_context() -> None:
    said = ends_with("""
import numpy
from cupy_backends.cuda.libs import cublas
a, b, out = (cupy.ones((9, 9)) for _ in range(3))
one, zero = numpy.ones(1).ctypes.data, numpy.zeros(1).ctypes.data
handle = cupy.cuda.Device().cublas_handle
cublas.dgemm(handle, 0, 0, 9, 9, 900, one, a.data.ptr, 9, b.data.ptr, 900, zero, out.data.ptr, 9)
""")
    assert "a matrix is not in memory of this device" in said
    assert "cudaErrorIllegalAddress" in said


def test_a_process_without_cupy_loads_nothing_for_it() -> None:
    code = "print([line for line in open('/proc/self/maps') if 'cudart' in line or 'nvrtc' in line])"
    assert run(sys.executable, "-c", code).stdout.strip() == "[]"


def test_where_cupy_cannot_be_had_its_import_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy_build, "missing", lambda: "the index is away")
    done = run(sys.executable, "-c", "import cupy")
    assert done.returncode == 1
    assert "ImportError: CuPy cannot run on the CUDA stand-in: the index is away" in done.stderr
    with pytest.raises(RuntimeError, match="the index is away"):
        cupy_build.build()


def test_what_cannot_be_fetched_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise UnavailableError("cupy-14.2.0.tar.gz cannot be fetched: no network")

    monkeypatch.setattr(cupy_build, "sources", refuse)
    assert cupy_build.missing.__wrapped__() == "cupy-14.2.0.tar.gz cannot be fetched: no network"


def test_another_version_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy_build, "version_of", lambda name: "13.6.0")
    assert cupy_build.missing.__wrapped__() == "cupy-cuda12x 14.2.0 is not installed"


def test_all_errors_of_the_runtime_have_names() -> None:
    include = build.header_folder("cuda_runtime", "driver_types.h")
    assert include is not None
    text = generate.error_names(include)
    for name in ("cudaSuccess", "cudaErrorInvalidValue", "cudaErrorNotReady", "cudaErrorUnknown"):
        assert f'{{{name}, "{name}"}},' in text


def test_ranks_compile_a_kernel_once(tmp_path: Path) -> None:
    """All miss it in CuPy's own cache, at the same time."""
    kernels = Path(load.environment()["STANDIN_CUPY"], "kernels")
    before = set(kernels.glob("*.so"))
    number = time.time_ns() % 10**9
    source = f'extern "C" __global__ void fresh(int *out) {{ *out = {number}; }}'
    code = f"""
import os, pathlib
import cupy
out = cupy.empty(1, "i4")
cupy.RawKernel({source!r}, "fresh")((1,), (1,), (out,))
pathlib.Path({str(tmp_path)!r}, f"{{os.getpid()}}.found").write_text(str(int(out.get()[0])))
"""
    done = run(*find_mpiexec().command(3, [sys.executable, "-c", code]), CUPY_CACHE_DIR=tmp_path)
    assert [found.read_text() for found in tmp_path.glob("*.found")] == [str(number)] * 3, done.stderr
    assert len(set(kernels.glob("*.so")) - before) == 1
