"""Allocation in stream order, and errors that stay."""

from __future__ import annotations

import ctypes

import numpy as np

from tests.emulation.cases import (
    ERRORS,
    LAZY,
    MODE,
    POISON,
    WORDS,
    address_of,
    call_host,
    copy_async,
    download,
    driver,
    fails,
    filled,
    full,
    ok,
    stream,
)


def case_managed_memory() -> None:
    """The host reads and writes what copies of the device do."""
    where, source = stream(), full(4)
    memory = ok(driver.cuMemAllocManaged(8 * WORDS, 1))
    at_host = np.ctypeslib.as_array((ctypes.c_int64 * WORDS).from_address(int(memory)))
    assert (at_host == POISON).all()
    managed = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
    assert ok(driver.cuPointerGetAttribute(managed, memory))
    assert not ok(driver.cuPointerGetAttribute(managed, source))
    copy_async(memory, source, where)
    ok(driver.cuStreamSynchronize(where))
    assert (at_host == 4).all()
    at_host[:] = 7
    copy_async(source, memory, where)
    ok(driver.cuStreamSynchronize(where))
    assert (download(source) == 7).all()
    fails(driver.cuMemAllocManaged(64, 0), "INVALID_VALUE")
    ok(driver.cuMemFree(memory))
    fails(driver.cuMemFree(memory), "INVALID_VALUE")


def case_allocation_in_stream_order() -> None:
    where, host = stream(), filled(3)
    target = int(ok(driver.cuMemAllocAsync(8 * WORDS, where)))
    ok(driver.cuStreamSynchronize(where))
    assert (download(target) == POISON).all()
    ok(driver.cuMemcpyHtoDAsync(target, address_of(host), host.nbytes, where))
    ok(driver.cuStreamSynchronize(where))
    assert (download(target) == 3).all()
    used = ok(driver.cuMemGetInfo())[0]
    ok(driver.cuMemFreeAsync(target, where))
    fails(driver.cuMemcpyHtoDAsync(target, address_of(host), host.nbytes, where), "INVALID_VALUE")
    fails(driver.cuMemFreeAsync(target, where), "INVALID_VALUE")
    ok(driver.cuStreamSynchronize(where))
    assert ok(driver.cuMemGetInfo())[0] == used + 8192


def case_allocation_used_too_early() -> None:
    """Another stream that does not wait for the allocation."""
    one, other, host = stream(), stream(), filled(3)
    target = int(ok(driver.cuMemAllocAsync(8 * WORDS, one)))
    ok(driver.cuMemcpyHtoDAsync(target, address_of(host), host.nbytes, other))
    result = driver.cuStreamSynchronize(other)
    if LAZY:
        fails(result, "ILLEGAL_ADDRESS")


def case_use_after_free() -> None:
    source, where, other = full(3), stream(), stream()
    target = int(ok(driver.cuMemAllocAsync(8 * WORDS, where)))
    ok(driver.cuStreamSynchronize(where))
    if MODE == "delay":
        return  # which of the two is first is left to chance
    copy_async(target, source, other)
    ok(driver.cuMemFreeAsync(target, where))
    ok(driver.cuStreamSynchronize(where))
    if not LAZY:
        return
    fails(driver.cuStreamSynchronize(other), "ILLEGAL_ADDRESS")
    for again in (driver.cuMemAlloc(8), driver.cuStreamSynchronize(where), driver.cuCtxSynchronize()):
        fails(again, "ILLEGAL_ADDRESS")
    ok(driver.cuDevicePrimaryCtxReset(0))
    ok(driver.cuMemAlloc(8))


def case_use_after_free_at_an_address_of_others() -> None:
    """The address is in use again when the operation runs; addresses come round after so many allocations."""
    source, where, other = full(3), stream(), stream()

    def take() -> int:
        return int(ok(driver.cuMemAllocAsync(1 << 20, where)))

    def give(address: int) -> None:
        ok(driver.cuMemFreeAsync(address, where))
        ok(driver.cuStreamSynchronize(where))

    def take_and_give() -> int:
        address = take()
        give(address)
        return address

    first = take_and_give()
    seen = [first]
    while (address := take_and_give()) != first:
        seen.append(address)
    target = take()
    for _ in seen[1:]:
        take_and_give()
    if MODE == "delay":
        return  # which of the two is first is left to chance
    copy_async(target, source, other)
    give(target)
    assert take() == target
    ok(driver.cuStreamSynchronize(where))
    result = driver.cuStreamSynchronize(other)
    if LAZY:
        fails(result, "ILLEGAL_ADDRESS")


def case_after_an_error_the_queue_is_not_run() -> None:
    where, seen = stream(), []
    ok(call_host(where, lambda: seen.append(1)))
    ctypes.CDLL("libcuda.so.1").standin_break(0, int(ERRORS.CUDA_ERROR_LAUNCH_FAILED))
    fails(driver.cuStreamSynchronize(where), "LAUNCH_FAILED")
    ok(driver.cuDevicePrimaryCtxReset(0))
    if LAZY:
        assert not seen


def case_errors_stay_until_reset() -> None:
    """The rest of the queue is not run, and another device is not concerned."""
    first, seen, where = ok(driver.cuCtxGetCurrent()), [], stream()
    second = ok(driver.cuDevicePrimaryCtxRetain(1))
    broken = driver.CUresult.CUDA_ERROR_LAUNCH_FAILED
    assert ctypes.CDLL("libcuda.so.1").standin_break(0, int(broken)) == 0
    fails(call_host(where, lambda: seen.append(1)), "LAUNCH_FAILED")
    fails(driver.cuMemAlloc(8), "LAUNCH_FAILED")
    fails(driver.cuEventCreate(0), "LAUNCH_FAILED")
    ok(driver.cuCtxSetCurrent(second))
    ok(driver.cuMemAlloc(8))
    ok(driver.cuCtxSetCurrent(first))
    ok(driver.cuDevicePrimaryCtxReset(0))
    ok(driver.cuMemAlloc(8))
    assert not seen


def case_pools() -> None:
    attribute = driver.CUmemPool_attribute
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 1
    pool, where = ok(driver.cuMemPoolCreate(properties)), stream()
    ok(
        driver.cuMemPoolSetAttribute(
            pool, attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, driver.cuuint64_t(1 << 20)
        )
    )
    assert int(ok(driver.cuMemPoolGetAttribute(pool, attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD))) == 1 << 20
    target = ok(driver.cuMemAllocFromPoolAsync(5000, pool, where))
    assert int(ok(driver.cuMemPoolGetAttribute(pool, attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT))) == 8192
    ordinal = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    assert ok(driver.cuPointerGetAttribute(ordinal, target)) == 1
    ok(driver.cuMemFreeAsync(target, where))
    ok(driver.cuStreamSynchronize(where))
    assert int(ok(driver.cuMemPoolGetAttribute(pool, attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT))) == 0
    assert int(ok(driver.cuMemPoolGetAttribute(pool, attribute.CU_MEMPOOL_ATTR_USED_MEM_HIGH))) == 8192
    ok(driver.cuMemPoolDestroy(pool))
    fails(driver.cuMemAllocFromPoolAsync(8, pool, where), "INVALID_HANDLE")
    ok(driver.cuMemAllocFromPoolAsync(8, ok(driver.cuDeviceGetDefaultMemPool(0)), where))
