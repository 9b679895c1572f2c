"""Arrays on another device than the communicator's: right, in the order of their streams, nothing changed."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import cupy
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.arrays.device import LEGACY_STREAM
from tests.collectives.conftest import Make
from tests.gpu.memory import (
    DeviceAttempt,
    Mirror,
    captured,
    current_device,
    device_count,
    device_plans,
    make_stream,
    mirror,
    perform,
    using,
)
from tests.support.launch import run_ranks
from tests.support.layouts import layouts
from tests.support.oracle import COLLECTIVES, Job, every_place, every_root, in_line
from tests.support.oracle.ragged import Ragged
from tests.support.places import PLACES

PATHS = ("nccl", "host")
A_LONG_TIME = 1 << 22


class There(NamedTuple):
    """Where the arrays of this rank are: of all but rank 0, not on the communicator's device (`home`)."""

    home: int
    device: int
    stream: int


@pytest.fixture
def there(device: int) -> There:
    if device_count() < 2:
        pytest.skip("real hardware with one device")
    ordinal = (device + 1) % device_count() if MPI.COMM_WORLD.rank else device
    with using(ordinal):
        return There(device, ordinal, make_stream())


@pytest.fixture(params=PATHS)
def at_home(
    communicator: Make, there: There, stream: int, layout: str, request: pytest.FixtureRequest
) -> Generator[hpccoll.Communicator, None, None]:
    """A communicator that has found its device."""
    comm = communicator(layout=layout, device_path=request.param)
    perform(comm, Job("allreduce", 1), stream)
    yield comm
    assert current_device() == there.home


@layouts({"": (2,), "2+2": (4,)})
@pytest.mark.parametrize("current", ["home", "there"])
def test_every_collective(at_home: hpccoll.Communicator, layout: str, there: There, current: str) -> None:
    for collective in COLLECTIVES:
        for job in every_root(every_place([Job(collective, 7), Job(collective, 1003)]), at_home.size):
            with using(there.device):
                attempt = DeviceAttempt(at_home, job, in_line, there.stream)
            with using(there.device if current == "there" else there.home):
                now = current_device()
                attempt.call()
                assert current_device() == now
            attempt.check()


@layouts({"2+2": (4,)})
def test_every_plan(at_home: hpccoll.Communicator, layout: str, there: There) -> None:
    for collective in COLLECTIVES:
        for name in device_plans(at_home, collective):
            with at_home.forced(name), using(there.device):
                perform(at_home, Job(collective, 1003), there.stream)


@layouts({"": (2,)})
@pytest.mark.parametrize("place", PLACES)
def test_arrays_of_any_strides(at_home: hpccoll.Communicator, layout: str, there: There, place: str) -> None:
    for collective in ("allreduce", "reduce", "scan"):
        for job in every_place([Job(collective, 24)]):
            with using(there.device):
                attempt = DeviceAttempt(at_home, job, PLACES[place], there.stream)
            attempt.call()  # with the communicator's device current
            attempt.check()


@layouts({"": (2, 3)})
def test_blocks_of_different_lengths(at_home: hpccoll.Communicator, layout: str, there: There) -> None:
    counts = tuple(range(at_home.size))
    for collective in ("gather", "scatter", "allgather"):
        for order in ("packed", "gaps"):
            with using(there.device):
                perform(at_home, Ragged(collective, counts, order=order, root=0), there.stream)


@layouts({"": (2, 4)})
def test_in_the_order_of_their_streams(at_home: hpccoll.Communicator, layout: str, there: There) -> None:
    """The call reads what a stream has yet to bring, and the stream goes on behind the call."""
    for stream in (there.stream, LEGACY_STREAM):
        with using(there.device):
            given, taken = (mirror(np.zeros(A_LONG_TIME), stream) for _ in "ab")
            given.view[:] = at_home.rank + 1
            given.upload_later()
        at_home.Allreduce(given, taken)
        with using(there.device):
            assert (taken.download() == sum(range(1, at_home.size + 1))).all()


@layouts({"": (2, 4)})
def test_started_calls(at_home: hpccoll.Communicator, layout: str, there: There) -> None:
    total = sum(range(1, at_home.size + 1))
    with using(there.device):
        given, taken, again = (mirror(np.zeros(1000), there.stream) for _ in "abc")
        given.view[:] = at_home.rank + 1
        given.upload_later()
    at_home.Iallreduce(given, taken).Wait()
    request = at_home.Iallreduce(given, again)
    request.block_stream()
    with using(there.device):
        assert (again.download() == total).all()
        request.Wait()
        other = make_stream()
        assert (taken.download(other) == total).all()  # complete for all streams


@layouts({"": (2, 4)})
def test_one_of_two_arrays(at_home: hpccoll.Communicator, layout: str, there: There, stream: int) -> None:
    total = sum(range(1, at_home.size + 1))
    here, result = (mirror(np.full(9, at_home.rank + 1.0), stream) for _ in "ab")
    with using(there.device):
        far, far_result = (mirror(np.full(9, at_home.rank + 1.0), there.stream) for _ in "ab")
    at_home.Allreduce(here, far_result)
    at_home.Allreduce(far, result)
    with using(there.device):
        assert (far_result.download() == total).all()
    assert (result.download() == total).all()


@layouts({"": (2,)})
def test_persistent_calls_say_that_they_cannot(
    at_home: hpccoll.Communicator, layout: str, there: There, stream: int
) -> None:
    def make(array: Mirror) -> None:
        at_home.Allreduce_init(MPI.IN_PLACE, array)

    with using(there.device):
        array = mirror(np.ones(3), there.stream)
    with pytest.raises(hpccoll.UsageError, match=r"rank 1.*device 2: the communicator's device is 1"):
        make(array)
    perform(at_home, Job("allreduce", 5), stream)


@layouts({"": (2,)})
def test_a_given_stream(at_home: hpccoll.Communicator, layout: str, there: There, stream: int) -> None:
    """Of either device: the call is behind it, and it behind the call."""
    total = sum(range(1, at_home.size + 1))
    for device, given in ((there.device, None), (there.home, stream)):
        with using(device):
            other = make_stream() if given is None else given
        with using(there.device):
            send, receive = (mirror(np.zeros(A_LONG_TIME), there.stream) for _ in "ab")
            send.view[:] = at_home.rank + 1
            send.upload_later()
        at_home.Allreduce(send, receive, stream=other)
        with using(there.device):
            assert (receive.download(other) == total).all()


@layouts({"": (2,)})
def test_a_stream_of_another_device_is_current(
    at_home: hpccoll.Communicator, layout: str, there: There, device: int
) -> None:
    with cupy.cuda.Device(there.device):
        far, far_result = cupy.full(10, at_home.rank + 1.0), cupy.zeros(10)
        far_stream = cupy.cuda.Stream(non_blocking=True)
    near, near_result = cupy.full(10, at_home.rank + 1.0), cupy.zeros(10)
    cupy.cuda.Device(there.device).synchronize()
    cupy.cuda.Device(device).synchronize()
    with cupy.cuda.Stream(non_blocking=True) as current:
        at_home.Allreduce(far, far_result)
        current.synchronize()
    with cupy.cuda.Device(there.device), far_stream:
        at_home.Allreduce(near, near_result)
        far_stream.synchronize()
    with cupy.cuda.Device(there.device):
        assert (far_result.get() == sum(range(1, at_home.size + 1))).all()
    assert (near_result.get() == sum(range(1, at_home.size + 1))).all()


@layouts({"": (2,)})
def test_an_empty_array_is_anywhere(
    at_home: hpccoll.Communicator, layout: str, there: There, stream: int
) -> None:
    with using(there.device):
        give = mirror(np.zeros(0 if at_home.rank else 10), there.stream)
    every = mirror(np.full(10, 7.0), stream)
    at_home.Allgatherv(give, [every, [10, 0]])
    assert (every.download() == 0).all()


@layouts({"": (2,)})
def test_a_refused_capture_goes_on(communicator: Make, layout: str, there: There, stream: int) -> None:
    comm = communicator(layout=layout)
    perform(comm, Job("allreduce", 1), stream)
    with using(there.device):
        send, receive = mirror(np.ones(8, "g"), there.stream), mirror(np.zeros(8, "g"), there.stream)
        comm.Allreduce(send, receive)
        with captured(there.stream), pytest.raises(hpccoll.UsageError, match="over the host"):
            comm.Allreduce(send, receive)
        comm.Allreduce(send, receive)
        assert (receive.download() == comm.size).all()


def test_no_context_on_other_devices() -> None:
    code = """
import sys
import numpy as np
from cuda.bindings import driver
from mpi4py import MPI
import hpccoll
from tests.gpu.memory import checked, device_count, make_stream, mirror, use_device, using

rank = MPI.COMM_WORLD.rank
use_device(rank)
stream = make_stream()
with hpccoll.Communicator(MPI.COMM_WORLD) as comm:
    assert comm.device == rank
    array = mirror(np.ones(1000), stream)
    comm.Barrier()
    comm.Allreduce(MPI.IN_PLACE, array)
    comm.Iallreduce(MPI.IN_PLACE, array).Wait()
    comm.Sendrecv(array, 1 - rank, recvbuf=mirror(np.ones(1000), stream), source=1 - rank)
    active = [checked(driver.cuDevicePrimaryCtxGetState(n))[1] for n in range(device_count())]
    ours = " ".join(str(number) for number, on in enumerate(active) if on)
    sys.stdout.write(f"active {ours} on rank {rank}\\n")
"""
    if device_count() < 2:
        pytest.skip("real hardware with one device")
    result = run_ranks(2, ["-c", code], timeout_s=60)
    assert result.returncode == 0, result.stderr
    for rank in range(2):
        assert f"active {rank} on rank {rank}" in result.stdout
