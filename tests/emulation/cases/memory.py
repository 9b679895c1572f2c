"""Memory: allocating, copying, what an address is."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np

from tests.emulation.cases import (
    ERRORS,
    LAZY,
    MODE,
    POISON,
    WORDS,
    address_of,
    device_array,
    download,
    driver,
    fails,
    filled,
    ok,
    pinned,
    stream,
    upload,
)


def case_memory_is_poisoned() -> None:
    assert (download(device_array()) == POISON).all()
    assert (pinned() == POISON).all()


def case_bounds_and_frees() -> None:
    target = device_array()
    host = filled(1)
    fails(driver.cuMemcpyHtoD(target + 8, address_of(host), host.nbytes), "INVALID_VALUE")
    fails(driver.cuMemcpyHtoD(address_of(host), address_of(host), 8), "INVALID_VALUE")
    fails(driver.cuMemcpyDtoH(address_of(host), address_of(host), 8), "INVALID_VALUE")
    fails(driver.cuMemsetD32(target + 2, 0, 1), "INVALID_VALUE")
    fails(driver.cuMemFree(target + 8), "INVALID_VALUE")
    fails(driver.cuMemAlloc(0), "INVALID_VALUE")
    ok(driver.cuMemFree(target))
    fails(driver.cuMemFree(target), "INVALID_VALUE")
    fails(driver.cuMemcpyHtoD(target, address_of(host), 8), "INVALID_VALUE")
    ok(driver.cuMemFree(0))


def case_out_of_memory() -> None:
    free, total = ok(driver.cuMemGetInfo())
    assert free == total == int(os.environ["STANDIN_MEMORY_MIB"]) << 20
    fails(driver.cuMemAlloc(total + 1), "OUT_OF_MEMORY")
    most = ok(driver.cuMemAlloc(total - 4096))
    fails(driver.cuMemAlloc(8192), "OUT_OF_MEMORY")
    fails(driver.cuMemAllocAsync(8192, 0), "OUT_OF_MEMORY")
    ok(driver.cuMemFree(most))
    assert ok(driver.cuMemGetInfo())[0] == free


def case_addresses_are_not_used_again_soon() -> None:
    seen = set()
    for _ in range(50):
        target = device_array()
        assert target not in seen
        seen.add(target)
        ok(driver.cuMemFree(target))


def case_memory_goes_round() -> None:
    """Addresses come round after a while, and stay disjoint."""
    total = ok(driver.cuMemGetInfo())[1]
    held: list[tuple[int, int]] = []
    generator = random.Random(3)
    for _ in range(300):
        size = generator.randrange(1, total // 4)
        result = driver.cuMemAlloc(size)
        if result[0] == ERRORS.CUDA_ERROR_OUT_OF_MEMORY:
            ok(driver.cuMemFree(held.pop(generator.randrange(len(held)))[0]))
            continue
        start = int(ok(result))
        assert all(start + size <= other or other + length <= start for other, length in held)
        held.append((start, size))


def case_pointer_attributes() -> None:
    attribute = driver.CUpointer_attribute
    target = device_array()
    host = pinned()

    def read(which: Any, address: int) -> Any:
        return driver.cuPointerGetAttribute(which, address)

    memory_type, ordinal = (
        attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    )
    assert int(ok(read(memory_type, target + 8))) == int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE)
    assert int(ok(read(memory_type, address_of(host)))) == int(driver.CUmemorytype.CU_MEMORYTYPE_HOST)
    assert ok(read(ordinal, target)) == 0
    assert int(ok(read(attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, target + 8))) == target
    assert ok(read(attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE, target)) == 8 * WORDS
    assert not ok(read(attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, target))
    fails(read(attribute.CU_POINTER_ATTRIBUTE_HOST_POINTER, target), "INVALID_VALUE")
    plain = filled(0)
    fails(read(memory_type, address_of(plain)), "INVALID_VALUE")
    values = ok(driver.cuPointerGetAttributes(2, [memory_type, ordinal], address_of(plain)))
    assert int(values[0]) == 0
    assert int(values[1]) == -2
    ids = {ok(read(attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID, device_array())) for _ in range(3)}
    assert len(ids) == 3


def case_registered_memory() -> None:
    host = filled(5)
    ok(driver.cuMemHostRegister(address_of(host), host.nbytes, 0))
    fails(driver.cuMemHostRegister(address_of(host), host.nbytes, 0), "HOST_MEMORY_ALREADY_REGISTERED")
    assert int(ok(driver.cuMemHostGetDevicePointer(address_of(host), 0))) == address_of(host)
    target, where = device_array(), stream()
    ok(driver.cuMemcpyHtoDAsync(target, address_of(host), host.nbytes, where))
    host[:] = 6
    ok(driver.cuStreamSynchronize(where))
    assert (download(target) == (6 if LAZY else 5)).all() or MODE == "delay"
    ok(driver.cuMemHostUnregister(address_of(host)))
    fails(driver.cuMemHostUnregister(address_of(host)), "HOST_MEMORY_NOT_REGISTERED")


def case_fills() -> None:
    target = device_array(8)
    for set_all, width in ((driver.cuMemsetD8, 1), (driver.cuMemsetD16, 2), (driver.cuMemsetD32, 4)):
        upload(target, filled(0, 8))
        ok(set_all(target, 0x5B, 64 // width))
        value = sum(0x5B << (8 * width * i) for i in range(8 // width))
        assert (download(target, 8) == value).all()
    upload(target, filled(0, 8))
    ok(driver.cuMemsetD2D8(target, 16, 1, 8, 4))
    assert (download(target, 8) == [0x0101010101010101, 0] * 4).all()


def case_copies_of_two_dimensions() -> None:
    host = np.arange(64, dtype=np.int64)
    source, target = device_array(64), device_array(64)
    upload(source, host)
    upload(target, filled(0, 64))
    request = driver.CUDA_MEMCPY2D()
    request.srcMemoryType = request.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    request.srcDevice, request.dstDevice = source, target
    request.srcPitch, request.dstPitch = 64, 32
    request.srcXInBytes, request.srcY = 16, 1
    request.WidthInBytes, request.Height = 24, 3
    ok(driver.cuMemcpy2D(request))
    wanted = np.zeros((16, 4), np.int64)
    wanted[:3, :3] = host.reshape(8, 8)[1:4, 2:5]
    assert (download(target, 64).reshape(16, 4) == wanted).all()
    request.srcPitch = 1 << 20
    fails(driver.cuMemcpy2D(request), "INVALID_VALUE")
