"""Many things at once."""

from __future__ import annotations

import ctypes
import os
import random
import threading
from typing import Any

import numpy as np

from tests.emulation.cases import (
    LEGACY,
    NON_BLOCKING,
    PER_THREAD,
    WORDS,
    address_of,
    copy_async,
    download,
    driver,
    event,
    filled,
    full,
    ok,
    stream,
)


def case_any_program_that_waits_is_right() -> None:
    """Random copies on random streams, each waiting for what it needs, give what they give one by one."""
    generator = random.Random(int(os.environ.get("STANDIN_SEED", "0")))
    for _ in range(6):
        cells = [full(i) for i in range(5)]
        expected = list(range(5))
        streams = [stream(generator.choice((0, NON_BLOCKING))) for _ in range(3)] + [LEGACY, PER_THREAD]
        last: list[Any] = [None] * len(cells)
        for _ in range(40):
            source, target = generator.sample(range(len(cells)), 2)
            where = generator.choice(streams)
            for mark in (last[source], last[target]):
                if mark is not None:
                    ok(driver.cuStreamWaitEvent(where, mark, 0))
            copy_async(cells[target], cells[source], where)
            last[source] = last[target] = event()
            ok(driver.cuEventRecord(last[source], where))
            expected[target] = expected[source]
        assert [int(download(cell)[0]) for cell in cells] == expected


def case_many_threads() -> None:
    context = ok(driver.cuCtxGetCurrent())
    failures: list[BaseException] = []

    def one(number: int) -> None:
        try:
            ok(driver.cuCtxSetCurrent(context))
            for i in range(20):
                where = stream()
                value = number * 1000 + i
                a, b = (int(ok(driver.cuMemAllocAsync(8 * WORDS, where))) for _ in range(2))
                host = filled(value)
                ok(driver.cuMemcpyHtoDAsync(a, address_of(host), host.nbytes, where))
                copy_async(b, a, where)
                back = filled(0)
                ok(driver.cuMemcpyDtoHAsync(address_of(back), b, back.nbytes, where))
                assert (back == value).all()
                ok(driver.cuMemFreeAsync(a, where))
                ok(driver.cuMemFreeAsync(b, where))
                ok(driver.cuStreamDestroy(where))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    ok(driver.cuCtxSynchronize())
    assert ok(driver.cuMemGetInfo())[0] == ok(driver.cuMemGetInfo())[1]


def case_cuda_core() -> None:
    from cuda.core import Device, EventOptions, LegacyPinnedMemoryResource

    for number in (2, 3):
        device = Device(number)
        device.set_current()
        where, other = device.create_stream(), device.create_stream()
        a, b = (device.allocate(8 * WORDS, stream=where) for _ in range(2))
        source, target = (LegacyPinnedMemoryResource().allocate(8 * WORDS) for _ in range(2))
        given, taken = (
            np.frombuffer((ctypes.c_char * x.size).from_address(int(x.handle)), np.int64)
            for x in (source, target)
        )
        given[:] = np.arange(WORDS)
        first = where.record(options=EventOptions(timing_enabled=True))
        a.copy_from(source, stream=where)
        b.copy_from(a, stream=where)
        last = where.record(options=EventOptions(timing_enabled=True))
        other.wait(last)
        b.copy_to(target, stream=other)
        other.sync()
        assert (given == taken).all()
        assert last - first >= 0
        assert last.is_done
        a.close(stream=other)
        b.close(stream=other)
