"""Memory of `comm.empty(..., device=...)`: from NCCL's allocator, registered, and let go."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
import pytest
from cuda.bindings import driver

import hpccoll
from hpccoll.arrays.device import Home
from hpccoll.memory import device as memory
from hpccoll.memory.finalizers import let_go_rest
from hpccoll.transports import nccl
from tests.collectives.conftest import Make
from tests.gpu.memory import Mirror, captured, checked, device_plans, mirror, perform, synchronize
from tests.support.layouts import layouts
from tests.support.oracle import Job


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done with memory, in order."""
    done: list[str] = []
    register = nccl.NcclGroup.register

    def registered(group: Any, address: int, nbytes: int, *, window: bool) -> Callable[[], object]:
        kind = "window" if window else "buffer"
        undo = register(group, address, nbytes, window=window)
        done.append(f"{kind} of {len(group.members)}")
        return lambda: (done.append(f"no {kind} of {len(group.members)}"), undo())

    monkeypatch.setattr(nccl.NcclGroup, "register", registered)
    monkeypatch.setattr(nccl, "free", lambda address, free=nccl.free: (done.append("free"), free(address)))
    return done


@layouts({"": (1, 2, 3), "2+2": (4,)})
def test_collectives_on_it(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    send, receive = comm.full(1000, comm.rank + 1, "f8", device="cuda"), comm.empty(1000, device=comm.device)
    assert isinstance(send, cupy.ndarray)
    assert (send.shape, send.dtype, send.device.id) == ((1000,), np.float64, comm.device)
    for name in device_plans(comm, "allreduce"):
        with comm.forced(name):
            receive[...] = -1
            comm.Allreduce(send[:500], receive[500:])
            assert (receive[500:].get() == sum(range(1, comm.size + 1))).all()
            assert (receive[:500].get() == -1).all()
    perform(comm, Job("allgather", 9), stream)


@layouts({"": (1, 2)})
def test_arrays_of_any_shape(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    for shape in ((), 0, 7, (2, 0), (2, 3, 4)):
        for dtype in ("f4", "c16", "?", "i2"):
            array = comm.zeros(shape, dtype, device="cuda")
            assert array.shape == np.zeros(shape).shape
            assert (array.get() == np.zeros(shape, dtype)).all()


@layouts({"": (2, 3), "2+2": (4,)})
def test_what_nccl_knows_of_it(communicator: Make, layout: str, stream: int, log: list[str]) -> None:
    comm = hpccoll.Communicator(communicator(layout=layout), layout=layout)
    array = comm.empty(1000, device="cuda")
    assert log == [f"window of {comm.size}"]
    log.clear()
    uneven = comm.empty(10_000 * (1 + comm.rank), device="cuda")
    assert log == [f"buffer of {comm.size}"]
    log.clear()
    if comm.node_count > 1:
        with comm.forced("scatter_rail_gather"):
            comm.Allreduce(array, array.copy())
        assert log == ["buffer of 2"] * 4  # two communicators, two arrays
        log.clear()
        more = comm.empty(8, device="cuda")
        assert log == ["window of 4", "buffer of 2", "buffer of 2"]
        log.clear()
        del more
    del uneven
    gc.collect()
    assert log == []  # not before all ranks are here
    comm.empty(1, device="cuda")
    groups = [comm.size, *([2, 2] if comm.node_count > 1 else ())]
    gone = [f"no buffer of {size}" for size in groups] + ["free"]
    if comm.node_count > 1:
        gone += ["no window of 4", "no buffer of 2", "no buffer of 2", "free"]
    assert log[: len(gone)] == gone
    comm.close()
    assert array.shape == (1000,)


@layouts({"": (2,)})
def test_arrays_outlive_the_communicator(
    communicator: Make, layout: str, stream: int, log: list[str]
) -> None:
    comm = hpccoll.Communicator(communicator(layout=layout))
    array = comm.full(5, 3.0, device="cuda")
    view = array[2:]
    comm.close()
    assert log == ["window of 2", "no window of 2"]
    del array
    gc.collect()
    assert (view.get() == 3).all()
    del view
    gc.collect()
    assert log[2:] == ["free"]


@pytest.mark.parametrize("found_by", ["the collector", "its last name"])
@layouts({"": (2,)})
def test_gone_in_the_midst_of_a_capture(
    communicator: Make, layout: str, stream: int, log: list[str], found_by: str
) -> None:
    """A wait for the device would end the capture with an error."""
    comm = hpccoll.Communicator(communicator(layout=layout))
    array = comm.full(5, 3.0, device="cuda")
    comm.close()
    log.clear()
    if found_by == "the collector":
        around: list[Any] = [array]
        around.append(around)
        del array, around
        with captured(stream):
            gc.collect()
    else:
        own = cupy.cuda.Stream(non_blocking=True)
        with own, captured(own.ptr):
            del array
    assert log == []
    let_go_rest()
    assert log == ["free"]


@layouts({"": (2,)})
def test_what_was_left_waits_for_the_end_of_a_capture(
    communicator: Make, layout: str, stream: int, log: list[str]
) -> None:
    """A captured call, on a stream that no library of arrays knows, does not let go of it."""
    gone = hpccoll.Communicator(communicator(layout=layout))
    around: list[Any] = [gone.full(5, 3.0, device="cuda")]
    around.append(around)
    array = gone.full(5, 3.0, device="cuda")
    gone.close()
    comm = communicator(layout=layout)
    send, receive = Mirror(np.ones((100, 2))[:, 0], stream), mirror(np.zeros(100), stream)
    comm.Allreduce(send, receive)
    log.clear()
    del around
    gc.collect()
    with captured(stream) as graph:
        comm.Allreduce(send, receive)
        del array
    assert log == []
    graph.launch(stream)
    assert (receive.download() == comm.size).all()
    comm.Allreduce(send, receive)
    assert log == ["free"] * 2


@layouts({"": (1,)})
def test_copies_gone_while_their_stream_is_captured(layout: str, stream: int, device: int) -> None:
    def in_use() -> int:
        pool = checked(driver.cuDeviceGetMemPool(device))
        used = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
        return int(checked(driver.cuMemPoolGetAttribute(pool, used)))

    synchronize(stream)
    before = in_use()
    copy = memory.empty(1000, np.dtype("f8"), Home(device, stream, None))
    with captured(stream):
        del copy
        let_go_rest()
    synchronize(stream)
    assert in_use() >= before + 8000
    memory.empty(1, np.dtype("f8"), Home(device, stream, None))  # lets go of it, and goes
    synchronize(stream)
    assert in_use() == before


@layouts({"": (2, 3)})
def test_what_cannot_be_had(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    last = comm.size - 1
    comm.empty(1, device="cuda")
    wrongs: tuple[tuple[dict[str, Any], str], ...] = (
        ({"device": -1}, "device is -1: must be"),
        ({"device": 99}, "device is 99: must be an ordinal below"),
        ({"device": True}, "device is True: must be"),
        ({"shape": (1 << 70, 0)}, "integer of the machine"),
        ({"device": "gpu"}, "device is 'gpu': must be"),
        ({"device": comm.device + 1}, f"device is {last + 1}: that of the communicator is {last}"),
        ({"device": "cuda", "dtype": "M8[s]"}, "CuPy has no arrays of dtype datetime64"),
        ({"device": "cuda", "dtype": object}, "Python objects"),
        ({"device": "cuda", "shape": -1}, "negative"),
        ({"device": None}, "memory: device on ranks? 0"),
    )
    for wrong, words in wrongs:
        options = {"shape": 1, "device": "cuda"} | (wrong if comm.rank == last else {})
        with pytest.raises((hpccoll.UsageError, hpccoll.MismatchError), match=words):
            comm.empty(**options)
    with pytest.raises(hpccoll.ResourceError, match=rf"no memory on a device: rank {last}: "):
        comm.empty(1 << 50 if comm.rank == last else 1, "u1", device="cuda")
    array = comm.zeros(3, device="cuda")
    comm.Allreduce(array.copy(), array)


@layouts({"": (2,)})
def test_over_the_host_too(communicator: Make, layout: str, stream: int, log: list[str]) -> None:
    comm = communicator(layout=layout, device_path="host")
    array = comm.full(5, float(comm.rank), device="cuda")
    result = comm.empty(5, device="cuda")
    comm.Allreduce(array, result)
    assert (result.get() == 1).all()
    assert log == []


@layouts({"2+2": (4,)})
def test_between_nodes_by_mpi(communicator: Make, layout: str, stream: int, log: list[str]) -> None:
    """NCCL has no communicator of all ranks then."""
    comm = hpccoll.Communicator(communicator(layout=layout), layout=layout, internode="mpi")
    array, result = comm.full(9, 1.0, device="cuda"), comm.empty(9, device="cuda")
    comm.Allreduce(array, result)
    assert (result.get() == 4).all()
    assert log == ["buffer of 2", "buffer of 2"]
    comm.close()


@layouts({"": (2,)})
def test_filled_on_a_device_that_is_not_current(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    comm.empty(1, device="cuda")
    with cupy.cuda.Device((comm.device + 1) % cupy.cuda.runtime.getDeviceCount()):
        array = comm.full(3, [1, 2, 3], "f8", device=np.int64(comm.device))
    assert (array.get() == [1, 2, 3]).all()
    assert not comm.zeros((2, 2), "c8", device="cuda").get().any()
