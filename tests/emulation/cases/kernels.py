"""Kernels, and other processes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.emulation.cases import (
    ERRORS,
    WORDS,
    download,
    driver,
    fails,
    full,
    ok,
    stream,
)

_KERNEL = """
#include "kernel.h"
int factor = 3;
static int scale(void *const *arguments, const struct standin_launch *launch)
{
    long *data = *(long **)arguments[0];
    int count = *(int *)arguments[1];
    for (unsigned i = 0; i < launch->grid[0] * launch->block[0] && (int)i < count; i++)
        data[i] *= factor;
    return 0;
}
static const size_t sizes[] = {sizeof(long *), sizeof(int)};
const struct standin_kernel standin_kernels[] = {{"scale", 2, sizes, scale}, {0, 0, 0, 0}};
"""


def module_image() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "kernel.c", Path(folder) / "kernel.so"
        source.write_text(_KERNEL)
        headers = Path(__file__).resolve().parents[1] / "cuda"
        command = ["gcc", "-O1", "-shared", "-fPIC", f"-I{headers}", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        content = target.read_bytes()
    return b"STANDIN-MODULE\0\0" + len(content).to_bytes(8, "little") + content


def launch(function: Any, data: int, where: Any, block: int = 128) -> tuple[Any, ...]:
    arguments = ((data, WORDS), (ctypes.c_void_p, ctypes.c_int))
    return driver.cuLaunchKernel(function, 10, 1, 1, block, 1, 1, 0, where, arguments, 0)


def case_kernels() -> None:
    fails(driver.cuModuleLoadData(b"\x7fELF" + bytes(100)), "NO_BINARY_FOR_GPU")
    module = ok(driver.cuModuleLoadData(module_image()))
    fails(driver.cuModuleGetFunction(module, b"other"), "NOT_FOUND")
    function, where, target = ok(driver.cuModuleGetFunction(module, b"scale")), stream(), full(5)
    fails(launch(function, target, where, block=2048), "INVALID_VALUE")
    ok(launch(function, target, where))
    ok(driver.cuStreamSynchronize(where))
    assert (download(target) == 15).all()
    pointer, size = ok(driver.cuModuleGetGlobal(module, b"factor"))
    assert size == 4
    ok(driver.cuMemsetD32(pointer, 2, 1))
    ok(driver.cuCtxSynchronize())
    ok(launch(function, target, where))
    ok(driver.cuStreamSynchronize(where))
    assert (download(target) == 30).all()


def case_kernel_with_a_stale_pointer() -> None:
    module = ok(driver.cuModuleLoadData(module_image()))
    function, where, target = ok(driver.cuModuleGetFunction(module, b"scale")), stream(), full(5)
    ok(driver.cuMemFree(target))
    launch(function, target, where)
    fails(driver.cuStreamSynchronize(where), "ILLEGAL_ADDRESS")


def case_memory_of_another_device_in_a_kernel() -> None:
    first = ok(driver.cuCtxGetCurrent())
    second = ok(driver.cuDevicePrimaryCtxRetain(1))
    ok(driver.cuCtxSetCurrent(second))
    target = full(5)
    ok(driver.cuCtxSetCurrent(first))
    module = ok(driver.cuModuleLoadData(module_image()))
    function, where = ok(driver.cuModuleGetFunction(module, b"scale")), stream()
    ok(driver.cuCtxEnablePeerAccess(second, 0))
    ok(launch(function, target, where))
    ok(driver.cuStreamSynchronize(where))
    ok(driver.cuCtxDisablePeerAccess(second))
    launch(function, target, where)
    fails(driver.cuStreamSynchronize(where), "ILLEGAL_ADDRESS")


_IMPORT = """
import ctypes, sys
from tests.emulation.cases import WORDS, download, driver, fresh, ok
fresh()
handle = driver.CUipcMemHandle()
ctypes.memmove(handle.getPtr(), bytes.fromhex(sys.argv[1]), 64)
pointer = ok(driver.cuIpcOpenMemHandle(handle, 1))
assert (download(int(pointer)) == 9).all()
ok(driver.cuMemsetD8(pointer, 0, 8 * WORDS))
ok(driver.cuCtxSynchronize())
ok(driver.cuIpcCloseMemHandle(pointer))
"""


def handle_bytes(handle: Any) -> bytes:
    return ctypes.string_at(handle.getPtr(), 64)


def case_memory_of_another_process() -> None:
    target = full(9)
    handle = ok(driver.cuIpcGetMemHandle(target))
    fails(driver.cuIpcOpenMemHandle(handle, 1), "INVALID_CONTEXT")
    subprocess.run([sys.executable, "-c", _IMPORT, handle_bytes(handle).hex()], check=True, timeout=60)
    assert (download(target) == 0).all()


def case_fork() -> None:
    """The driver does not survive a fork, and says so."""
    child = os.fork()
    if not child:
        os._exit(int(driver.cuMemAlloc(8)[0]) + int(driver.cuInit(0)[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2 * int(ERRORS.CUDA_ERROR_NOT_INITIALIZED)
