"""What the CUDA stand-in has to do, through cuda-bindings: `python -m tests.emulation.cases [names]`.

`test_cuda.py` runs all cases in one process for each mode and reads the answers. A case is a function
`case_...` of a module here; it gets fresh primary contexts, that of device 0 current.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver

MODE = os.environ.get("STANDIN_MODE", "lazy")
EAGER, LAZY = MODE == "eager", MODE == "lazy"
ERRORS = driver.CUresult
NON_BLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
GLOBAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
THREAD_LOCAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
LEGACY, PER_THREAD = driver.CUstream(1), driver.CUstream(2)
WORDS = 1000
POISON = np.frombuffer(bytes([0xA5] * 8), np.int64)[0]


def ok(result: tuple[Any, ...]) -> Any:
    """The values of a call that has to succeed."""
    assert result[0] == ERRORS.CUDA_SUCCESS, result[0]
    return result[1] if len(result) == 2 else result[1:]


def fails(result: tuple[Any, ...], name: str) -> None:
    assert result[0].name == f"CUDA_ERROR_{name}", f"{result[0].name}, not CUDA_ERROR_{name}"


def stream(flags: int = NON_BLOCKING) -> Any:
    return ok(driver.cuStreamCreate(flags))


def event(flags: int = 2) -> Any:
    return ok(driver.cuEventCreate(flags))


def device_array(words: int = WORDS) -> int:
    return int(ok(driver.cuMemAlloc(8 * words)))


def pinned(words: int = WORDS) -> np.ndarray:
    address = ok(driver.cuMemHostAlloc(8 * words, 0))
    return np.frombuffer((ctypes.c_char * (8 * words)).from_address(int(address)), np.int64)


def address_of(array: np.ndarray) -> int:
    return array.ctypes.data


def upload(target: int, array: np.ndarray) -> None:
    """Complete at return, whatever the stream that uses it."""
    ok(driver.cuMemcpyHtoD(target, address_of(array), array.nbytes))
    ok(driver.cuCtxSynchronize())


def download(source: int, words: int = WORDS) -> np.ndarray:
    ok(driver.cuCtxSynchronize())
    array = np.zeros(words, np.int64)
    ok(driver.cuMemcpyDtoH(address_of(array), source, array.nbytes))
    return array


def filled(value: int, words: int = WORDS) -> np.ndarray:
    return np.full(words, value, np.int64)


def full(value: int) -> int:
    target = device_array()
    upload(target, filled(value))
    return target


def copy_async(target: int, source: int, where: Any, words: int = WORDS) -> None:
    ok(driver.cuMemcpyDtoDAsync(target, source, 8 * words, where))


def until(true: Callable[[], bool], limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def run_in_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_kept: list[Any] = []


def host_function(function: Callable[[], object]) -> Any:
    """For a structure of cuda-bindings."""
    _kept.append(_CALLBACK(lambda _: function()))
    return driver.CUhostFn(_ptr=ctypes.addressof(_kept[-1]))


def call_host(where: Any, function: Callable[[], object]) -> tuple[Any, ...]:
    """cuLaunchHostFunc; that of cuda-bindings frees what it needs after the first call of a graph."""
    _kept.append(_CALLBACK(lambda _: function()))
    entry = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
    return (driver.CUresult(entry(ctypes.c_void_p(int(where)), _kept[-1], None)), None)


def fresh() -> None:
    """Clean primary contexts, that of device 0 current in this thread."""
    ok(driver.cuInit(0))
    for number in range(ok(driver.cuDeviceGetCount())):
        ok(driver.cuDevicePrimaryCtxReset(number))
        while ok(driver.cuDevicePrimaryCtxGetState(number))[1]:
            ok(driver.cuDevicePrimaryCtxRelease(number))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
