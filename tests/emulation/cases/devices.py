"""Devices, contexts, entry points."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from tests.emulation.cases import (
    ERRORS,
    device_array,
    driver,
    fails,
    ok,
)


def case_devices() -> None:
    count = ok(driver.cuDeviceGetCount())
    assert count == 4
    assert len({bytes(ok(driver.cuDeviceGetUuid(i)).bytes) for i in range(count)}) == count
    buses = [ok(driver.cuDeviceGetPCIBusId(13, i)) for i in range(count)]
    assert [int(ok(driver.cuDeviceGetByPCIBusId(bus))) for bus in buses] == list(range(count))
    fails(driver.cuDeviceGet(4), "INVALID_DEVICE")
    fails(driver.cuDeviceGet(-1), "INVALID_DEVICE")
    managed = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
    assert ok(driver.cuDeviceGetAttribute(managed, 0)) == 0
    assert ok(driver.cuDriverGetVersion()) // 1000 == 12


def case_context_is_per_thread() -> None:
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(driver.cuMemAlloc(8)))
    thread.start()
    thread.join()
    fails(seen[0], "INVALID_CONTEXT")


def case_context_stack() -> None:
    first = ok(driver.cuCtxGetCurrent())
    second = ok(driver.cuDevicePrimaryCtxRetain(1))
    ok(driver.cuCtxPushCurrent(second))
    assert int(ok(driver.cuCtxGetDevice())) == 1
    assert int(ok(driver.cuCtxPopCurrent())) == int(second)
    assert int(ok(driver.cuCtxGetCurrent())) == int(first)
    ok(driver.cuDevicePrimaryCtxRelease(1))
    fails(driver.cuCtxSetCurrent(second), "CONTEXT_IS_DESTROYED")
    assert ok(driver.cuDevicePrimaryCtxGetState(1))[1] == 0
    ok(driver.cuCtxSetCurrent(driver.CUcontext(0)))
    fails(driver.cuMemAlloc(8), "INVALID_CONTEXT")


def case_context_of_its_own() -> None:
    made = ok(driver.cuCtxCreate(0, 1))
    assert int(ok(driver.cuCtxGetDevice())) == 1
    target = device_array()
    ok(driver.cuCtxDestroy(made))
    assert int(ok(driver.cuCtxGetDevice())) == 0
    fails(driver.cuMemFree(target), "INVALID_VALUE")
    fails(driver.cuCtxSetCurrent(made), "CONTEXT_IS_DESTROYED")


def case_unsupported_is_said() -> None:
    fails(driver.cuTexRefCreate(), "NOT_SUPPORTED")


def case_proc_address() -> None:
    get = ctypes.CDLL("libcuda.so.1").cuGetProcAddress_v2
    get.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]
    library = ctypes.CDLL("libcuda.so.1")

    def found(name: bytes, version: int, flags: int = 0) -> int | None:
        pointer, status = ctypes.c_void_p(), ctypes.c_int()
        result = get(name, ctypes.byref(pointer), version, flags, ctypes.byref(status))
        assert (result == 0) == (status.value == 0) == bool(pointer.value)
        return pointer.value

    def symbol(name: str) -> int | None:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value

    assert found(b"cuMemAlloc", 12000) == symbol("cuMemAlloc_v2")
    assert found(b"cuMemAlloc", 2000) == symbol("cuMemAlloc")
    assert found(b"cuStreamGetCaptureInfo", 12020) == symbol("cuStreamGetCaptureInfo_v2")
    assert found(b"cuStreamGetCaptureInfo", 12030) == symbol("cuStreamGetCaptureInfo_v3")
    assert found(b"cuGraphInstantiate", 12000) == symbol("cuGraphInstantiateWithFlags")
    assert found(b"cuMemcpyAsync", 12000, 2) == symbol("cuMemcpyAsync_ptsz")
    assert found(b"cuGraphInstantiate", 9000) is None
    assert found(b"cuNoSuchThing", 12000) is None


def case_error_names() -> None:
    assert ok(driver.cuGetErrorName(ERRORS.CUDA_ERROR_OUT_OF_MEMORY)) == b"CUDA_ERROR_OUT_OF_MEMORY"
    assert ok(driver.cuGetErrorString(ERRORS.CUDA_ERROR_OUT_OF_MEMORY)) == b"out of memory"
