"""What a capture forbids."""

from __future__ import annotations

from typing import Any

from tests.emulation.cases import (
    GLOBAL,
    LEGACY,
    RELAXED,
    THREAD_LOCAL,
    address_of,
    call_host,
    driver,
    event,
    fails,
    filled,
    full,
    ok,
    run_in_thread,
    stream,
)


def ends_invalid(where: Any) -> None:
    fails(driver.cuStreamEndCapture(where), "STREAM_CAPTURE_INVALIDATED")
    ok(driver.cuStreamSynchronize(where))


def begun() -> Any:
    where = stream()
    ok(driver.cuStreamBeginCapture(where, GLOBAL))
    return where


def case_capture_forbids_waiting() -> None:
    for forbidden in (driver.cuStreamSynchronize, driver.cuStreamQuery):
        where = begun()
        fails(forbidden(where), "STREAM_CAPTURE_UNSUPPORTED")
        fails(call_host(where, int), "STREAM_CAPTURE_INVALIDATED")
        ends_invalid(where)
    where = begun()
    fails(driver.cuCtxSynchronize(), "STREAM_CAPTURE_UNSUPPORTED")
    ends_invalid(where)
    where, mark = begun(), event()
    ok(driver.cuEventRecord(mark, where))
    fails(driver.cuEventSynchronize(mark), "STREAM_CAPTURE_UNSUPPORTED")
    ends_invalid(where)


def case_capture_forbids_allocating() -> None:
    where = begun()
    fails(driver.cuMemAlloc(8), "STREAM_CAPTURE_UNSUPPORTED")
    ends_invalid(where)
    where = stream()
    ok(driver.cuStreamBeginCapture(where, RELAXED))
    ok(driver.cuMemAlloc(8))
    ok(driver.cuStreamEndCapture(where))
    where, context, seen = begun(), ok(driver.cuCtxGetCurrent()), []

    def other() -> None:
        ok(driver.cuCtxSetCurrent(context))
        seen.append(driver.cuMemAlloc(8))

    run_in_thread(other)
    fails(seen[0], "STREAM_CAPTURE_UNSUPPORTED")
    ends_invalid(where)
    where = stream()
    ok(driver.cuStreamBeginCapture(where, THREAD_LOCAL))
    run_in_thread(other)
    ok(seen[1])
    ok(driver.cuStreamEndCapture(where))


def case_capture_and_default_stream() -> None:
    fails(driver.cuStreamBeginCapture(LEGACY, GLOBAL), "STREAM_CAPTURE_UNSUPPORTED")
    source, target, host = full(1), full(0), filled(1)
    where = stream(0)
    ok(driver.cuStreamBeginCapture(where, RELAXED))
    fails(driver.cuMemcpyDtoDAsync(target, source, 8, LEGACY), "STREAM_CAPTURE_IMPLICIT")
    ends_invalid(where)
    ok(driver.cuStreamBeginCapture(where, RELAXED))
    fails(driver.cuMemcpyHtoD(target, address_of(host), 8), "STREAM_CAPTURE_IMPLICIT")
    ends_invalid(where)
    where = begun()  # a stream that does not block is not ordered with the default one
    ok(driver.cuMemcpyDtoDAsync(target, source, 8, LEGACY))
    ok(driver.cuStreamEndCapture(where))


def case_capture_ends_where_it_began() -> None:
    fails(driver.cuStreamEndCapture(stream()), "ILLEGAL_STATE")
    where, other, fork = begun(), stream(), event()
    fails(driver.cuStreamBeginCapture(where, GLOBAL), "ILLEGAL_STATE")
    ok(driver.cuEventRecord(fork, where))
    ok(driver.cuStreamWaitEvent(other, fork, 0))
    fails(driver.cuStreamEndCapture(other), "STREAM_CAPTURE_UNMATCHED")
    ends_invalid(where)
    where = begun()
    context, seen = ok(driver.cuCtxGetCurrent()), []

    def elsewhere() -> None:
        ok(driver.cuCtxSetCurrent(context))
        seen.append(driver.cuStreamEndCapture(where))

    run_in_thread(elsewhere)
    fails(seen[0], "STREAM_CAPTURE_WRONG_THREAD")
    ok(driver.cuStreamEndCapture(where))


def case_capture_needs_its_forks_back() -> None:
    where, other, fork = begun(), stream(), event()
    ok(driver.cuEventRecord(fork, where))
    ok(driver.cuStreamWaitEvent(other, fork, 0))
    ok(call_host(other, int))
    fails(driver.cuStreamEndCapture(where), "STREAM_CAPTURE_UNJOINED")
    ok(driver.cuStreamSynchronize(other))


def case_capture_and_strangers() -> None:
    outside = event()
    ok(driver.cuEventRecord(outside, stream()))
    where = begun()
    fails(driver.cuStreamWaitEvent(where, outside, 0), "STREAM_CAPTURE_ISOLATION")
    ends_invalid(where)
    one, other, mark = begun(), begun(), event()
    ok(driver.cuEventRecord(mark, one))
    fails(driver.cuStreamWaitEvent(other, mark, 0), "STREAM_CAPTURE_MERGE")
    ends_invalid(one)
    ends_invalid(other)
    where, mark = begun(), event()
    ok(driver.cuEventRecord(mark, where))
    ok(driver.cuStreamEndCapture(where))
    fails(driver.cuEventQuery(mark), "CAPTURED_EVENT")
    ok(driver.cuEventRecord(mark, where))
    ok(driver.cuEventSynchronize(mark))
