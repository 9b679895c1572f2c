"""Which device, which path: agreed by all ranks, from what all of them see."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import unique_id
from tests.collectives.conftest import Make
from tests.gpu.memory import device_count, mirror
from tests.support.launch import run_ranks
from tests.support.layouts import layouts


@layouts({"": (1, 2, 4), "2+2": (4,), "3+1": (4,)})
def test_the_device_of_a_rank(
    world: MPI.Intracomm, communicator: Make, layout: str, own_devices: None
) -> None:
    comm = communicator(layout=layout)
    assert comm.device == world.rank % device_count()
    with hpccoll.Communicator(world.Split(world.rank)) as alone:
        assert alone.device == comm.device


@layouts({"": (2,), "2+2": (4,)})
def test_communicators_of_nccl_are_made_when_they_are_needed(
    world: MPI.Intracomm, layout: str, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpccoll.transports import nccl

    made, ids = [], []
    init, fresh = nccl.NcclGroup.__init__, nccl.fresh_id
    monkeypatch.setattr(
        nccl.NcclGroup, "__init__", lambda self, *args: (made.append(args[1]), init(self, *args))[1]
    )
    monkeypatch.setattr(nccl, "fresh_id", lambda: (ids.append(fresh()), ids[-1])[1])
    with hpccoll.Communicator(world, layout=layout) as comm:
        comm.Allreduce(np.ones(3), np.zeros(3))
        assert (comm.device_path, made) == ("", [])
        send, receive = mirror(np.ones(8), stream), mirror(np.zeros(8), stream)
        comm.Allreduce(send, receive)
        comm.Allreduce(send, receive, MPI.PROD)
        assert made == [tuple(range(comm.size))]
        if comm.node_count > 1:
            with comm.forced("scatter_rail_gather"):
                comm.Allreduce(send, receive)
            assert [len(group) for group in made] == [4, 2, 2]
        receive.download()
    assert len(set(ids)) == len(ids) == sum(group[0] == world.rank for group in made)


@pytest.mark.ranks(2, 4)
def test_a_failure_to_get_an_id_is_told_to_all(
    world: MPI.Intracomm, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpccoll.transports import nccl

    def no_id() -> bytes:
        raise RuntimeError("no network for NCCL")

    comm = hpccoll.Communicator(world)
    with monkeypatch.context() as broken:
        broken.setattr(nccl, "fresh_id", no_id)
        with pytest.raises(hpccoll.ResourceError, match="rank 0: RuntimeError: no network for NCCL"):
            comm.Allreduce(mirror(np.ones(3), stream), mirror(np.zeros(3), stream))
    receive = mirror(np.zeros(3), stream)
    comm.Allreduce(mirror(np.ones(3), stream), receive)
    assert (receive.download() == comm.size).all()
    comm.close()
    assert len(nccl.fresh_id()) == unique_id.ID_BYTES


@pytest.mark.ranks(4)
@pytest.mark.parametrize("who", [0, 3])
def test_without_nccl_on_one_rank_all_go_over_the_host(
    world: MPI.Intracomm, stream: int, who: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpccoll.transports import nccl

    if world.rank == who:
        monkeypatch.setattr(nccl, "available", lambda: "ImportError: no nccl4py")
    with hpccoll.Communicator(world, layout="3+1") as comm:
        receive = mirror(np.zeros(3), stream)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            comm.Allreduce(mirror(np.full(3, comm.rank + 1.0), stream), receive)
        assert (receive.download() == 10).all()
        assert comm.device_path == f"host: rank {who} cannot load NCCL (ImportError: no nccl4py)"
        assert [str(one.message) for one in told if "over the host" in str(one.message)] == (
            [f"collectives on device arrays go over the host: {comm.device_path[6:]}"]
            if comm.rank == 0
            else []
        )
    strict = hpccoll.Communicator(world, device_path="nccl")
    with pytest.raises(hpccoll.ResourceError, match=f"NCCL cannot be used: rank {who} cannot load NCCL"):
        strict.Allreduce(mirror(np.zeros(3), stream), receive)
    strict.close()


@layouts({"": (2,), "2+1": (3,)})
def test_with_checksums_all_go_over_the_host(world: MPI.Intracomm, layout: str, stream: int) -> None:
    """NCCL would move elements that nobody compares."""
    with hpccoll.Communicator(world, layout=layout, checksums=True) as comm:
        for count in (3, 50_000):
            receive = mirror(np.zeros(count), stream)
            comm.Allreduce(mirror(np.full(count, comm.rank + 1.0), stream), receive)
            assert (receive.download() == sum(range(1, comm.size + 1))).all()
            comm.Iallreduce(mirror(np.ones(count), stream), receive).Wait()
            assert (receive.download() == comm.size).all()
        assert comm.device_path == "host: checksums are asked for, and what NCCL moves cannot be checked"


@layouts({"": (2, 4), "3+1": (4,)})
def test_arrays_on_the_host_and_on_devices_in_one_call(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    arrays = [np.ones(10), np.zeros(10)]
    if comm.rank == 0:
        arrays = [mirror(array, stream) for array in arrays]
    others = "rank 1" if comm.size == 2 else "ranks 1-3"
    with pytest.raises(hpccoll.MismatchError, match=rf"memory: device on rank 0, host on {others}"):
        comm.Allreduce(*arrays)
    with pytest.raises(hpccoll.UsageError):
        comm.Allreduce(mirror(np.ones(10), stream), np.zeros(10))
    receive = mirror(np.zeros(10), stream)
    comm.Allreduce(mirror(np.ones(10), stream), receive)
    assert (receive.download() == comm.size).all()


@pytest.mark.ranks(4)
def test_made_and_closed_many_times(world: MPI.Intracomm, stream: int) -> None:
    receive, send = mirror(np.zeros(8), stream), mirror(np.ones(8), stream)
    for _ in range(20):
        with hpccoll.Communicator(world, layout="3+1") as comm, comm.forced("reduce_ring_broadcast"):
            comm.Allreduce(send, receive)
            assert (receive.download() == 4).all()
        gc.collect()


@pytest.mark.ranks(2)
def test_different_calls_on_devices(communicator: Make, stream: int) -> None:
    comm = communicator()
    send, receive = mirror(np.ones(10), stream), mirror(np.zeros(10), stream)
    with pytest.raises(hpccoll.MismatchError, match="count: 10 on rank 0, 9 on rank 1"):
        comm.Allreduce([send, 10 - comm.rank], [receive, 10 - comm.rank])
    with pytest.raises(hpccoll.UsageError, match="root is 7"):
        comm.Bcast(send, root=7)
    with pytest.raises(hpccoll.UsageError, match="read-only"):
        comm.Allreduce(send, ReadOnly(receive))
    comm.Allreduce(send, receive)
    assert (receive.download() == 2).all()


class ReadOnly:
    """An array that says that it must not be written."""

    def __init__(self, one: object) -> None:
        self._one = one

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        interface = dict(self._one.__cuda_array_interface__)  # type: ignore[attr-defined]
        interface["data"] = (interface["data"][0], True)  # type: ignore[index]
        return interface


PROGRAM = """
import os, sys
ranks = [name for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ]
@visible@
import numpy as np
from mpi4py import MPI
import hpccoll
from tests.gpu.memory import make_stream, mirror, use_device
comm = hpccoll.Communicator(MPI.COMM_WORLD, @path@)
ordinal = @device@
use_device(ordinal)
stream = make_stream()
receive = mirror(np.zeros(1), stream)
try:
    comm.Allreduce(mirror(np.full(1, comm.rank + 1.0), stream), receive)
    text = f"device {ordinal}, {receive.download()[0]}, {comm.device_path}"
except hpccoll.HpccollError as error:
    text = f"{type(error).__name__}: {error}"
sys.stdout.write(f"rank {comm.rank}: {text}\\n")  # at once: the other rank's line must not come between
sys.stdout.flush()
comm.close()
"""


def program(visible: str = "", path: str = "", device: str = "comm.device") -> list[str]:
    code = PROGRAM.replace("@visible@", visible).replace("@path@", path).replace("@device@", device)
    return ["-c", code]


def test_each_rank_sees_one_device(own_devices: None) -> None:
    hide = "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ[ranks[0]]"
    result = run_ranks(2, program(hide), timeout_s=60)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split("\n"))[-2:] == [
        "rank 0: device 0, 3.0, nccl", "rank 1: device 0, 3.0, nccl",
    ]  # fmt: skip


def test_two_ranks_on_one_device() -> None:
    result = run_ranks(2, program(device="0"), timeout_s=60, env={"NCCL_MULTI_RANK_GPU_ENABLE": "0"})
    assert result.returncode == 0, result.stderr
    lines = sorted(line for line in result.stdout.split("\n") if line.startswith("rank"))
    assert [line.partition(" GPU-")[0] for line in lines] == [
        f"rank {rank}: device 0, 3.0, host: ranks 0, 1 use the same device" for rank in (0, 1)
    ]
    strict = run_ranks(
        2,
        program(path="device_path='nccl'", device="0"),
        timeout_s=60,
        env={"NCCL_MULTI_RANK_GPU_ENABLE": "0"},
    )
    assert strict.stdout.count("NCCL cannot be used: ranks 0, 1 use the same device GPU-") == 2
    shared = run_ranks(2, program(device="0"), timeout_s=60, env={"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    assert shared.stdout.count("device 0, 3.0, nccl") == 2, shared.stderr


@pytest.mark.ranks(2, 4)
def test_selftest_over_each_pair_and_level(
    world: MPI.Intracomm, device: int, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.topology.test_selftest import selftest

    for layout in ("", "2+2") if world.size == 4 else ("",):
        assert selftest("--layout", layout, "--device", "cuda", "-b", "10000") == 0
        assert ("all-to-all by flat" in capsys.readouterr().out) == (world.rank == 0)
