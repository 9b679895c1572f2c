"""Functions of the host, and values that a stream waits for."""

from __future__ import annotations

import time

from tests.emulation.cases import (
    LAZY,
    address_of,
    call_host,
    copy_async,
    download,
    driver,
    fails,
    full,
    ok,
    pinned,
    stream,
)


def case_host_functions_in_order() -> None:
    where, seen = stream(), []
    for i in range(50):
        ok(call_host(where, lambda i=i: seen.append(i)))
    if LAZY:
        assert not seen
    ok(driver.cuStreamSynchronize(where))
    assert seen == list(range(50))


def case_host_function_may_not_call_cuda() -> None:
    where, seen = stream(), []
    ok(call_host(where, lambda: seen.append(driver.cuStreamQuery(where))))
    ok(driver.cuStreamSynchronize(where))
    fails(seen[0], "NOT_PERMITTED")


def case_values() -> None:
    """A stream waits for the host; the host is never blocked by that, in eager mode neither."""
    host, source, target, where = pinned(), full(4), full(0), stream()
    host[:] = 0
    geq = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
    ok(driver.cuStreamWaitValue64(where, address_of(host), 5, geq))
    copy_async(target, source, where)
    ok(driver.cuStreamWriteValue32(where, address_of(host) + 8, 77, 0))
    time.sleep(0.03)
    fails(driver.cuStreamQuery(where), "NOT_READY")
    assert host[1] == 0
    host[0] = 6
    ok(driver.cuStreamSynchronize(where))
    assert host[1] == 77
    assert (download(target) == 4).all()
