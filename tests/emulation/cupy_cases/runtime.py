"""Devices, streams, events, memory, graphs: CuPy's runtime extension on ours."""

from __future__ import annotations

import cupy
import numpy as np
from cupy.cuda import runtime
from cupy.cuda.runtime import CUDARuntimeError

from tests.emulation.cupy_cases import LAZY, numbers, raises, same

SIZE = 1000


def case_devices() -> None:
    assert runtime.getDeviceCount() == 4
    properties = [runtime.getDeviceProperties(device) for device in range(4)]
    assert len({bytes(found["uuid"]) for found in properties}) == 4
    assert (properties[0]["warpSize"], properties[0]["maxThreadsPerBlock"]) == (32, 1024)
    assert properties[0]["totalGlobalMem"] == cupy.cuda.Device(0).mem_info[1]
    assert cupy.cuda.Device(0).compute_capability == f"{properties[0]['major']}{properties[0]['minor']}"
    for device in range(4):
        with cupy.cuda.Device(device):
            assert runtime.getDevice() == device
            assert cupy.ones(3).device.id == device
        assert runtime.deviceGetByPCIBusId(runtime.deviceGetPCIBusId(device)) == device
    assert runtime.getDevice() == 0
    assert runtime.runtimeGetVersion() == 12090


def case_errors_have_the_names_of_the_runtime() -> None:
    raises(CUDARuntimeError, "cudaErrorInvalidDevice", lambda: runtime.setDevice(9))
    raises(CUDARuntimeError, "cudaErrorInvalidValue", lambda: runtime.memcpy(1, 2, 8, 77 % 5))
    raises(CUDARuntimeError, "cudaErrorInvalidMemcpyDirection", lambda: runtime.memcpy(1, 2, 8, 77))
    raises(CUDARuntimeError, "cudaErrorNotSupported", lambda: runtime.memAdvise(0, 0, 1, 0))
    raises(CUDARuntimeError, "cudaErrorInvalidResourceHandle", lambda: runtime.eventSynchronize(0))
    assert cupy.ones(3).sum() == 3, "and nothing of them is left"


def case_memory_runs_out() -> None:
    raises(cupy.cuda.memory.OutOfMemoryError, "Out of memory allocating", lambda: cupy.empty(1 << 40, "u1"))


def case_a_copy_has_a_direction() -> None:
    host, device = numbers("f4", 4), cupy.zeros(4, "f4")
    raises(CUDARuntimeError, "InvalidValue", lambda: runtime.memcpy(host.ctypes.data, device.data.ptr, 16, 1))
    runtime.memcpy(host.ctypes.data, device.data.ptr, 16, runtime.memcpyDefault)
    assert not host.any()


def case_the_current_stream() -> None:
    assert cupy.cuda.get_current_stream().ptr == 0
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        assert cupy.cuda.get_current_stream().ptr == stream.ptr != 0
        total = (cupy.ones(SIZE) * 2).sum()
    assert cupy.cuda.get_current_stream().ptr == 0
    stream.synchronize()
    assert stream.done
    assert float(total) == 2 * SIZE


def case_an_event_orders_streams() -> None:
    data, out = cupy.zeros(SIZE), cupy.zeros(SIZE)
    runtime.deviceSynchronize()
    one, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with one:
        data.fill(3)
        data = data * data
    with other:
        other.wait_event(one.record())
        cupy.add(data, 1, out=out)
        kept = out.get()
    assert set(kept) == {10}


def case_a_missing_event_shows() -> None:
    data, out = cupy.zeros(SIZE), cupy.zeros(SIZE)
    square, identity = cupy.full((30, 30), 2, "f4"), cupy.eye(30, dtype="f4")
    result = square @ identity
    runtime.deviceSynchronize()
    one, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with one:
        data.fill(3)
        cupy.matmul(square, square, out=result)
    with other:
        cupy.add(data, 1, out=out)
        kept, product = out.get(), result.get()
    if LAZY:
        assert set(kept) == {1}
        assert product[0, 0] == 2
    one.synchronize()
    assert set(data.get()) == {3}
    assert result.get()[0, 0] == 120


def case_time_between_events() -> None:
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    cupy.ones(SIZE).sum()
    end.record()
    end.synchronize()
    assert 0 <= cupy.cuda.get_elapsed_time(start, end) < 60000


def case_pools() -> None:
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        array = cupy.zeros(SIZE)
        assert pool.used_bytes() == 8192
        del array
        again = cupy.empty(SIZE)
        assert pool.total_bytes() == 8192, "a freed block is used again"
        del again
    pool.free_all_blocks()
    assert (pool.used_bytes(), pool.total_bytes()) == (0, 0)
    assert cupy.get_default_memory_pool().total_bytes() >= 0


def case_pools_of_the_driver() -> None:
    pool = cupy.cuda.MemoryAsyncPool()
    with cupy.cuda.using_allocator(pool.malloc):
        array = cupy.ones(SIZE)
        assert float(array.sum()) == SIZE
        assert pool.used_bytes() >= 8 * SIZE
        del array
    runtime.deviceSynchronize()


def case_pinned_memory() -> None:
    memory = cupy.cuda.alloc_pinned_memory(8 * SIZE)
    host = np.frombuffer(memory, np.float64, SIZE)
    host[:] = 5
    device, stream = cupy.zeros(SIZE), cupy.cuda.Stream(non_blocking=True)
    runtime.deviceSynchronize()
    device.set(host, stream=stream)
    (device * 1).get()
    if LAZY:
        assert host[0] == 5
    stream.synchronize()
    assert set(device.get()) == {5}
    assert runtime.pointerGetAttributes(host.ctypes.data).type == 1


def case_what_a_pointer_is() -> None:
    with cupy.cuda.Device(2):
        array = cupy.zeros(3)
        found = runtime.pointerGetAttributes(array.data.ptr)
    assert (found.type, found.device, found.devicePointer, found.hostPointer) == (2, 2, array.data.ptr, 0)
    assert runtime.pointerGetAttributes(np.zeros(3).ctypes.data).type == 0


def case_from_device_to_device() -> None:
    data = numbers("f4", 100)
    array = cupy.asarray(data)
    runtime.deviceSynchronize()
    with cupy.cuda.Device(1):
        other = cupy.asarray(array)
        assert other.device.id == 1
        same(other + 1, data + 1)


def case_functions_of_the_host() -> None:
    seen = []
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.launch_host_func(seen.append, 3)
    stream.synchronize()
    assert seen == [3]


def case_a_captured_graph() -> None:
    data = cupy.zeros(SIZE)
    add = cupy.ElementwiseKernel("T by", "T out", "out += by", "add_to")
    add(1.0, data)
    stream = cupy.cuda.Stream(non_blocking=True)
    runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        add(2.0, data)
        add(3.0, data)
        graph = stream.end_capture()
        assert not stream.is_capturing()
        for _ in range(3):
            graph.launch()
        stream.synchronize()
    assert set(data.get()) == {16}


def case_views_of_others() -> None:
    array = cupy.asarray(numbers("f4", 5, 6))[:, ::2]
    assert cupy.from_dlpack(array).data.ptr == array.data.ptr
    same(cupy.from_dlpack(array), array.get())
    seen = array.__cuda_array_interface__
    assert (seen["data"][0], seen["shape"], seen["strides"]) == (array.data.ptr, (5, 3), (24, 8))
    assert array.__dlpack_device__() == (2, 0)
