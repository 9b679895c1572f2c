"""Which operation comes after which, and who waits."""

from __future__ import annotations

import os
import threading
import time

import numpy as np

from tests.emulation.cases import (
    ERRORS,
    LAZY,
    LEGACY,
    MODE,
    PER_THREAD,
    POISON,
    WORDS,
    address_of,
    call_host,
    copy_async,
    device_array,
    download,
    driver,
    event,
    fails,
    filled,
    full,
    ok,
    pinned,
    stream,
    until,
)


def case_pageable_upload_is_staged() -> None:
    target, where, host = device_array(), stream(), filled(1)
    ok(driver.cuMemcpyHtoDAsync(target, address_of(host), host.nbytes, where))
    host[:] = 2
    ok(driver.cuStreamSynchronize(where))
    assert (download(target) == 1).all()


def case_pinned_upload_reads_when_it_runs() -> None:
    target, where, host = device_array(), stream(), pinned()
    host[:] = 1
    ok(driver.cuMemcpyHtoDAsync(target, address_of(host), host.nbytes, where))
    host[:] = 2
    ok(driver.cuStreamSynchronize(where))
    if MODE != "delay":
        assert (download(target) == (2 if LAZY else 1)).all()


def case_pageable_download_is_complete() -> None:
    source, where, host = full(7), stream(), filled(0)
    ok(driver.cuMemcpyDtoHAsync(address_of(host), source, host.nbytes, where))
    assert (host == 7).all()


def case_pinned_download_is_not() -> None:
    source, where, host = full(7), stream(), pinned()
    host[:] = 0
    ok(driver.cuMemcpyDtoHAsync(address_of(host), source, host.nbytes, where))
    if MODE != "delay":
        assert (host == (0 if LAZY else 7)).all()
    ok(driver.cuStreamSynchronize(where))
    assert (host == 7).all()


def case_blocking_upload_and_another_stream() -> None:
    """The default stream's copy of pageable memory may still be going on when the call returns."""
    target, copy, where, host = device_array(), full(0), stream(), filled(3)
    ok(driver.cuMemcpyHtoD(target, address_of(host), host.nbytes))
    copy_async(copy, target, where)
    ok(driver.cuStreamSynchronize(where))
    seen = download(copy)
    if MODE != "delay":
        assert (seen == (POISON if LAZY else 3)).all()


def case_blocking_stream_follows_default() -> None:
    target, middle, where, host = device_array(), device_array(), stream(0), filled(3)
    ok(driver.cuMemcpyHtoD(middle, address_of(host), host.nbytes))
    copy_async(target, middle, where)
    ok(driver.cuStreamSynchronize(where))
    assert (download(target) == 3).all()


def case_default_follows_blocking_stream() -> None:
    source, middle, target = full(4), full(0), full(0)
    copy_async(middle, source, stream(0))
    copy_async(target, middle, LEGACY)
    copy_async(source, target, stream(0))
    ok(driver.cuStreamSynchronize(LEGACY))
    assert (download(target) == 4).all()


def case_waiting_for_default_is_waiting_for_blocking_streams() -> None:
    seen: list[str] = []
    ok(call_host(stream(0), lambda: seen.append("blocking")))
    ok(call_host(stream(), lambda: seen.append("other")))
    ok(driver.cuStreamSynchronize(LEGACY))
    assert "blocking" in seen
    if LAZY:
        assert seen == ["blocking"]


def case_default_does_not_follow_other_streams() -> None:
    source, middle, target = full(4), full(0), full(9)
    copy_async(middle, source, stream())
    copy_async(target, middle, LEGACY)
    ok(driver.cuStreamSynchronize(LEGACY))
    seen = np.zeros(WORDS, np.int64)
    ok(driver.cuMemcpyDtoHAsync(address_of(seen), target, seen.nbytes, stream()))
    if MODE != "delay":
        assert (seen == (0 if LAZY else 4)).all()


def case_default_stream_of_a_thread() -> None:
    context = ok(driver.cuCtxGetCurrent())
    source, middle, target = full(4), full(0), full(0)
    ids: list[int] = []

    def other() -> None:
        ok(driver.cuCtxSetCurrent(context))
        ids.append(ok(driver.cuStreamGetId(PER_THREAD)))
        copy_async(middle, source, PER_THREAD)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert ids[0] != ok(driver.cuStreamGetId(PER_THREAD)) != ok(driver.cuStreamGetId(LEGACY))
    copy_async(target, middle, LEGACY)  # follows the streams of all threads
    ok(driver.cuStreamSynchronize(LEGACY))
    assert (download(target) == 4).all()


def case_missing_event_wait() -> None:
    """The mistake that the lazy mode is for: it has to show every time."""
    for _ in range(20):
        source, middle, target = full(4), full(0), full(0)
        one, other = stream(), stream()
        copy_async(middle, source, one)
        copy_async(target, middle, other)
        ok(driver.cuStreamSynchronize(other))
        seen = np.zeros(WORDS, np.int64)
        ok(driver.cuMemcpyDtoHAsync(address_of(seen), target, seen.nbytes, other))
        if MODE != "delay":
            assert (seen == (0 if LAZY else 4)).all()
        ok(driver.cuCtxSynchronize())


def case_event_wait() -> None:
    for _ in range(20):
        source, middle, target = full(4), full(0), full(0)
        one, other, mark = stream(), stream(), event()
        copy_async(middle, source, one)
        ok(driver.cuEventRecord(mark, one))
        ok(driver.cuStreamWaitEvent(other, mark, 0))
        ok(driver.cuEventDestroy(mark))
        copy_async(target, middle, other)
        ok(driver.cuStreamDestroy(one))
        ok(driver.cuStreamSynchronize(other))
        assert (download(target) == 4).all()


def case_demand_goes_back_through_events() -> None:
    """What is waited for runs at once, with all that it depends on, and not when its time is over."""
    start = time.monotonic()
    for _ in range(5):
        streams, marks = [stream() for _ in range(6)], [event() for _ in range(6)]
        cells = [full(i) for i in range(7)]
        for i, (where, mark) in enumerate(zip(streams, marks, strict=True)):
            if i:
                ok(driver.cuStreamWaitEvent(where, marks[i - 1], 0))
            copy_async(cells[i + 1], cells[i], where)
            ok(driver.cuEventRecord(mark, where))
        ok(driver.cuEventSynchronize(marks[-1]))
        seen = filled(9)
        ok(driver.cuMemcpyDtoHAsync(address_of(seen), cells[-1], seen.nbytes, streams[-1]))
        assert (seen == 0).all()
    if LAZY:
        assert time.monotonic() - start < 5 * int(os.environ["STANDIN_LAZY_US"]) * 1e-6


def case_wait_is_for_the_record_of_then() -> None:
    source, middle, target = full(4), full(0), full(0)
    one, other, mark = stream(), stream(), event()
    ok(driver.cuEventRecord(mark, one))
    ok(driver.cuStreamWaitEvent(other, mark, 0))
    copy_async(middle, source, one)
    ok(driver.cuEventRecord(mark, one))
    copy_async(target, middle, other)
    ok(driver.cuStreamSynchronize(other))
    if LAZY:
        assert driver.cuEventQuery(mark)[0] == ERRORS.CUDA_ERROR_NOT_READY
    ok(driver.cuEventSynchronize(mark))
    assert driver.cuEventQuery(mark)[0] == ERRORS.CUDA_SUCCESS


def case_event_times() -> None:
    first, last, where = event(0), event(0), stream()
    fails(driver.cuEventElapsedTime(first, last), "INVALID_HANDLE")
    ok(driver.cuEventRecord(first, where))
    ok(call_host(where, lambda: time.sleep(0.02)))
    ok(driver.cuEventRecord(last, where))
    if LAZY:
        fails(driver.cuEventElapsedTime(first, last), "NOT_READY")
    ok(driver.cuEventSynchronize(last))
    assert ok(driver.cuEventElapsedTime(first, last)) >= 19
    fails(driver.cuEventElapsedTime(first, event()), "INVALID_HANDLE")


def case_event_rules() -> None:
    ok(driver.cuEventSynchronize(event()))
    ok(driver.cuEventQuery(event()))
    ok(driver.cuStreamWaitEvent(stream(), event(), 0))
    fails(driver.cuEventCreate(4), "INVALID_VALUE")
    mark = event()
    ok(driver.cuEventDestroy(mark))
    fails(driver.cuEventRecord(mark, LEGACY), "INVALID_HANDLE")
    where = stream()
    ok(driver.cuStreamDestroy(where))
    fails(driver.cuStreamSynchronize(where), "INVALID_HANDLE")
    first = ok(driver.cuCtxGetCurrent())
    mark = event()
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(1))))
    fails(driver.cuEventRecord(mark, stream()), "INVALID_HANDLE")
    ok(driver.cuStreamWaitEvent(stream(), mark, 0))
    ok(driver.cuCtxSetCurrent(first))


def case_event_between_devices() -> None:
    first = ok(driver.cuCtxGetCurrent())
    source, one, mark = full(4), stream(), event()
    second = ok(driver.cuDevicePrimaryCtxRetain(1))
    ok(driver.cuCtxSetCurrent(second))
    middle, other = full(0), stream()
    ok(driver.cuCtxSetCurrent(first))
    ok(driver.cuMemcpyPeerAsync(middle, second, source, first, 8 * WORDS, one))
    ok(driver.cuEventRecord(mark, one))
    ok(driver.cuCtxSetCurrent(second))
    target = full(0)
    ok(driver.cuStreamWaitEvent(other, mark, 0))
    copy_async(target, middle, other)
    ok(driver.cuStreamSynchronize(other))
    assert (download(target) == 4).all()
    ok(driver.cuCtxSetCurrent(first))


def case_peer_access() -> None:
    second = ok(driver.cuDevicePrimaryCtxRetain(1))
    assert ok(driver.cuDeviceCanAccessPeer(0, 1)) == 1
    assert ok(driver.cuDeviceCanAccessPeer(0, 0)) == 0
    ok(driver.cuCtxEnablePeerAccess(second, 0))
    fails(driver.cuCtxEnablePeerAccess(second, 0), "PEER_ACCESS_ALREADY_ENABLED")
    ok(driver.cuCtxDisablePeerAccess(second))
    fails(driver.cuCtxDisablePeerAccess(second), "PEER_ACCESS_NOT_ENABLED")
    fails(driver.cuCtxEnablePeerAccess(ok(driver.cuCtxGetCurrent()), 0), "INVALID_DEVICE")


def case_queries_do_not_wait() -> None:
    source, target, where = full(4), full(0), stream()
    copy_async(target, source, where)
    if LAZY:
        fails(driver.cuStreamQuery(where), "NOT_READY")
    until(lambda: driver.cuStreamQuery(where)[0] == ERRORS.CUDA_SUCCESS)


def case_time_limit_of_lazy() -> None:
    """Nobody asks, and it runs all the same: another process may wait for it."""
    source, host, where = full(4), pinned(), stream()
    host[:] = 0
    ok(driver.cuMemcpyDtoHAsync(address_of(host), source, host.nbytes, where))
    until(lambda: bool((host == 4).all()))
