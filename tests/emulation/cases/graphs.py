"""Graphs: captured, built by hand, launched."""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.emulation.cases import (
    GLOBAL,
    POISON,
    WORDS,
    call_host,
    copy_async,
    download,
    driver,
    event,
    fails,
    filled,
    full,
    host_function,
    ok,
    stream,
    upload,
)


def instantiated(graph: Any) -> Any:
    return ok(driver.cuGraphInstantiate(graph, 0))


def case_capture_and_launch() -> None:
    source, target, where = full(4), full(0), stream()
    ok(driver.cuStreamBeginCapture(where, GLOBAL))
    copy_async(target, source, where)
    graph = ok(driver.cuStreamEndCapture(where))
    ok(driver.cuStreamSynchronize(where))
    assert (download(target) == 0).all()
    runner = instantiated(graph)
    ok(driver.cuGraphDestroy(graph))
    for value in (4, 5):
        upload(source, filled(value))
        ok(driver.cuGraphLaunch(runner, where))
        ok(driver.cuStreamSynchronize(where))
        assert (download(target) == value).all()
    ok(driver.cuGraphExecDestroy(runner))


def case_memory_of_a_graph() -> None:
    """It is there while the graph runs, at every launch, and is neither kept nor given back by others."""
    source, target, where = full(4), full(0), stream()
    ok(driver.cuStreamBeginCapture(where, GLOBAL))
    memory = ok(driver.cuMemAllocAsync(8 * WORDS, where))
    copy_async(memory, source, where)
    copy_async(target, memory, where)
    ok(driver.cuMemFreeAsync(memory, where))
    fails(driver.cuMemcpyDtoDAsync(target, memory, 8 * WORDS, where), "INVALID_VALUE")
    runner = instantiated(ok(driver.cuStreamEndCapture(where)))
    for value in (4, 5):
        upload(source, filled(value))
        ok(driver.cuGraphLaunch(runner, where))
        ok(driver.cuStreamSynchronize(where))
        assert (download(target) == value).all()
    fails(driver.cuMemFreeAsync(memory, where), "NOT_SUPPORTED")
    ok(driver.cuGraphExecDestroy(runner))


def case_memory_of_a_graph_is_new_at_every_launch() -> None:
    target, where = full(0), stream()
    ok(driver.cuStreamBeginCapture(where, GLOBAL))
    memory = ok(driver.cuMemAllocAsync(8 * WORDS, where))
    copy_async(target, memory, where)
    ok(driver.cuMemsetD8Async(memory, 7, 8 * WORDS, where))
    ok(driver.cuMemFreeAsync(memory, where))
    runner = instantiated(ok(driver.cuStreamEndCapture(where)))
    for _ in range(2):
        ok(driver.cuGraphLaunch(runner, where))
        ok(driver.cuStreamSynchronize(where))
        assert (download(target) == POISON).all()


def case_launch_is_in_stream_order() -> None:
    first, source, target, last, where = full(4), full(0), full(0), full(0), stream()
    ok(driver.cuStreamBeginCapture(where, GLOBAL))
    copy_async(target, source, where)
    runner = instantiated(ok(driver.cuStreamEndCapture(where)))
    copy_async(source, first, where)
    ok(driver.cuGraphLaunch(runner, where))
    copy_async(last, target, where)
    ok(driver.cuStreamSynchronize(where))
    assert (download(last) == 4).all()


def case_launches_of_a_graph_do_not_overlap() -> None:
    one, other, running, most = stream(), stream(), [0], [0]

    def enter() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.01)
        running[0] -= 1

    ok(driver.cuStreamBeginCapture(one, GLOBAL))
    ok(call_host(one, enter))
    runner = instantiated(ok(driver.cuStreamEndCapture(one)))
    for where in (one, other, one):
        ok(driver.cuGraphLaunch(runner, where))
    ok(driver.cuCtxSynchronize())
    assert most == [1]


def case_capture_over_streams() -> None:
    source, left, right, target = full(4), full(0), full(0), full(0)
    where, other, fork, join = stream(), stream(), event(), event()
    ok(driver.cuStreamBeginCapture(where, GLOBAL))
    copy_async(left, source, where)
    ok(driver.cuEventRecord(fork, where))
    ok(driver.cuStreamWaitEvent(other, fork, 0))
    status = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    assert ok(driver.cuStreamIsCapturing(other)) == status
    copy_async(right, left, other)
    copy_async(target, source, where)
    ok(driver.cuEventRecord(join, other))
    ok(driver.cuStreamWaitEvent(where, join, 0))
    copy_async(target, right, where)
    info = ok(driver.cuStreamGetCaptureInfo(where))
    assert info[0] == status
    graph = ok(driver.cuStreamEndCapture(where))
    assert ok(driver.cuGraphGetNodes(graph))[1] == 4
    assert ok(driver.cuGraphGetNodes(graph, 4))[1] == 4
    runner = instantiated(graph)
    ok(driver.cuGraphLaunch(runner, where))
    copy_async(source, target, where)
    ok(driver.cuStreamSynchronize(where))
    assert (download(target) == 4).all()


def case_branches_run_side_by_side() -> None:
    where, other, fork, join = stream(), stream(), event(), event()
    meet = threading.Barrier(2)
    ok(driver.cuStreamBeginCapture(where, GLOBAL))
    ok(driver.cuEventRecord(fork, where))
    ok(driver.cuStreamWaitEvent(other, fork, 0))
    for each in (where, other):
        ok(call_host(each, lambda: meet.wait(20)))
    ok(driver.cuEventRecord(join, other))
    ok(driver.cuStreamWaitEvent(where, join, 0))
    runner = instantiated(ok(driver.cuStreamEndCapture(where)))
    for _ in range(3):
        ok(driver.cuGraphLaunch(runner, where))
    ok(driver.cuStreamSynchronize(where))
    assert not meet.broken


def case_graph_by_hand() -> None:
    seen: list[int] = []
    graph = ok(driver.cuGraphCreate(0))
    nodes = []
    for i in range(3):
        parameters = driver.CUDA_HOST_NODE_PARAMS()
        parameters.fn = host_function(lambda i=i: seen.append(i))
        nodes.append(ok(driver.cuGraphAddHostNode(graph, [], 0, parameters)))
    ok(driver.cuGraphAddDependencies(graph, [nodes[2], nodes[0]], [nodes[0], nodes[1]], 2))
    where = stream()
    ok(driver.cuGraphLaunch(instantiated(graph), where))
    ok(driver.cuStreamSynchronize(where))
    assert seen == [2, 0, 1]
    ok(driver.cuGraphAddDependencies(graph, [nodes[1]], [nodes[2]], 1))
    fails(driver.cuGraphInstantiate(graph, 0), "INVALID_VALUE")


def case_launch_into_capture() -> None:
    source, middle, target, where = full(4), full(0), full(0), stream()
    ok(driver.cuStreamBeginCapture(where, GLOBAL))
    copy_async(middle, source, where)
    inner = instantiated(ok(driver.cuStreamEndCapture(where)))
    ok(driver.cuStreamBeginCapture(where, GLOBAL))
    ok(driver.cuGraphLaunch(inner, where))
    copy_async(target, middle, where)
    ok(driver.cuGraphLaunch(instantiated(ok(driver.cuStreamEndCapture(where))), where))
    ok(driver.cuStreamSynchronize(where))
    assert (download(target) == 4).all()


def case_objects_of_a_graph() -> None:
    seen: list[int] = []
    destroy = host_function(lambda: seen.append(1))
    graph = ok(driver.cuGraphCreate(0))
    held = ok(driver.cuUserObjectCreate(0, destroy, 1, 1))
    ok(driver.cuGraphRetainUserObject(graph, held, 1, 1))
    runner = instantiated(graph)
    ok(driver.cuGraphDestroy(graph))
    assert not seen
    ok(driver.cuGraphExecDestroy(runner))
    assert seen == [1]
