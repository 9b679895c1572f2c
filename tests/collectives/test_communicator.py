"""Our communicators stand where mpi4py's stood: what they make, how they end, what they leave alone."""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import resource
import sys
import time

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.support.launch import run_program, run_ranks
from tests.support.layouts import layouts

OURS = (
    hpccoll.Communicator,
    hpccoll.CartCommunicator,
    hpccoll.GraphCommunicator,
    hpccoll.DistgraphCommunicator,
)
ADDED = {
    "algorithms", "annotate", "close", "config", "device", "device_path", "dump_trace", "empty", "explain",
    "forced", "full", "is_uniform", "last_error", "local_rank", "local_size", "machine", "message_path",
    "metrics", "node", "node_count", "tally", "zeros",
}  # fmt: skip
# These take the CUDA stream of device arrays besides.
ON_STREAMS = frozenset(
    {"Allgather", "Allreduce", "Alltoall", "Bcast", "Gather", "Reduce", "Reduce_scatter_block", "Scatter"}
)


def works(comm: hpccoll.Communicator) -> bool:
    """All ranks' ranks add up."""
    total = np.empty(3)
    comm.Allreduce(np.full(3, comm.rank + 1.0), total)
    return bool((total == comm.size * (comm.size + 1) / 2).all())


@pytest.mark.parametrize("kind", OURS)
def test_no_public_name_of_mpi4py_changes_its_meaning(kind):
    base = next(one for one in kind.__mro__ if one.__module__ == MPI.__name__)
    theirs = {name for name in dir(base) if not name.startswith("_")}
    ours = {name for one in kind.__mro__ if "hpccoll" in one.__module__ for name in vars(one)}
    assert {name for name in ours if not name.startswith("_")} - theirs == ADDED
    for name in sorted(theirs & ours):
        signature = inspect.signature(getattr(kind, name))
        added = {"stream"} if name.removesuffix("_init") in ON_STREAMS else set()
        for parameter in added:
            assert signature.parameters[parameter].kind is inspect.Parameter.KEYWORD_ONLY
        takes = list(signature.parameters)
        if "args" not in takes:
            doc = (getattr(base, name).__doc__ or "").splitlines()[0]
            for parameter in set(takes[1:]) - added:
                assert f"{parameter}:" in doc, f"{kind.__name__}.{name} has {parameter}, mpi4py: {doc}"


@pytest.mark.ranks(1, 2, 4)
def test_what_makes_communicators_makes_ours_with_the_same_options(world):
    comm = hpccoll.Communicator(world, timeout_s=17)
    group = comm.Get_group()
    edges = [(comm.rank + 1) % comm.size]
    made = {
        "Dup": comm.Dup(),
        "Clone": comm.Clone(),
        "Split": comm.Split(0, -comm.rank),
        "Split_type": comm.Split_type(MPI.COMM_TYPE_SHARED),
        "Create": comm.Create(group),
        "Create_group": comm.Create_group(group),
        "Create_cart": comm.Create_cart([comm.size]),
        "Create_graph": comm.Create_graph(list(range(1, comm.size + 1)), [0] * comm.size),
        "Create_dist_graph": comm.Create_dist_graph([comm.rank], [1], edges),
        "Create_dist_graph_adjacent": comm.Create_dist_graph_adjacent(edges, edges),
    }
    made["Sub"] = made["Create_cart"].Sub([True])
    later, request = comm.Idup()
    request.Wait()
    made["Idup"] = later
    for name, one in made.items():
        assert isinstance(one, OURS), name
        assert one.config.timeout_s == 17, name
        assert works(one), name
        one.Free()
    group.Free()
    comm.close()


@pytest.mark.ranks(2, 3)
def test_ranks_without_a_colour_get_the_null_communicator(world):
    comm = hpccoll.Communicator(world)
    part = comm.Split(0 if comm.rank == 0 else MPI.UNDEFINED)
    assert (part == MPI.COMM_NULL) == (comm.rank != 0)
    if part != MPI.COMM_NULL:
        assert works(part)
        part.Free()
    comm.close()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", ["", "2+2", "3+1"])
def test_roots_and_buffers_of_a_part_are_in_its_own_numbering(world, layout):
    comm = hpccoll.Communicator(world, layout=layout)
    part = comm.Split(comm.rank % 2)
    found = np.empty((2, 1))
    part.Allgather(np.array([float(comm.rank)]), found)
    assert found.tolist() == [[comm.rank % 2], [comm.rank % 2 + 2]]
    value = np.array([comm.rank])
    part.Bcast(value, root=1)
    assert value == comm.rank % 2 + 2
    with pytest.raises(ValueError, match="root is 2"):
        part.Bcast(value, root=2)
    assert works(part)
    part.Free()
    comm.close()


@pytest.mark.ranks(2)
def test_it_is_the_communicator_it_was_made_from(world):
    comm = hpccoll.Communicator(world)
    assert comm == MPI.COMM_WORLD
    again = pickle.loads(pickle.dumps(comm))
    assert again == MPI.COMM_WORLD
    assert works(again)
    again.close()
    comm.close()


@pytest.mark.ranks(2)
def test_the_private_duplicate_is_made_once_and_at_first_use(world, monkeypatch):
    made = []
    from hpccoll.runtime import context

    def counted(comm, deadline, duplicate=context.duplicate):
        made.append(comm)
        return duplicate(comm, deadline)

    monkeypatch.setattr(context, "duplicate", counted)
    comm = hpccoll.Communicator(world)
    assert not made
    for _ in range(5):
        assert works(comm)
        comm.Barrier()
    assert len(made) == 1
    comm.close()


@layouts({"": (2, 4), "1+1": (2,), "2+2": (4,)})
def test_the_users_messages_are_not_met(world, layout):
    comm = hpccoll.Communicator(world, layout=layout)
    received = np.zeros(1, np.int64)
    request = world.Irecv(received, MPI.ANY_SOURCE, MPI.ANY_TAG)
    for length in (3, 100_000):
        for _ in range(25):
            comm.Allreduce(np.ones(length), np.empty(length))
    world.Send(np.array([42]), world.rank, 7)
    status = MPI.Status()
    request.Wait(status)
    assert (received[0], status.tag) == (42, 7)
    comm.close()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("length", [4, 1 << 20])
@pytest.mark.parametrize("layout", ["", "1+1"])
def test_a_users_long_message_moves_on_while_its_sender_waits_in_a_collective(world, layout, length):
    comm = hpccoll.Communicator(world, layout=layout, timeout_s=20)
    long = np.full(1 << 22, 5.0)
    total = np.empty(length)
    if world.rank == 0:
        request = world.Isend(long, 1)
        comm.Allreduce(np.ones(length), total)
        request.Wait()
    else:
        time.sleep(0.2)
        received = np.empty_like(long)
        world.Recv(received, 0)
        comm.Allreduce(np.ones(length), total)
        assert (received == 5).all()
    assert (total == 2).all()
    comm.close()


@pytest.mark.ranks(1, 2)
def test_what_is_no_intracommunicator_is_refused(world):
    if world.size == 2:
        local = world.Split(world.rank)
        inter = local.Create_intercomm(0, world, 1 - world.rank)
        with pytest.raises(TypeError, match="intercommunicator"):
            hpccoll.Communicator(inter)
        inter.Free()
        local.Free()
    freed = world.Dup()
    freed.Free()
    for null in (MPI.COMM_NULL, freed):
        with pytest.raises(ValueError, match="COMM_NULL"):
            hpccoll.Communicator(null)
    for other in (None, 3, "world", MPI.SUM):
        with pytest.raises(TypeError):
            hpccoll.Communicator(other)


@pytest.mark.ranks(2)
def test_after_close_and_free_calls_are_refused(world):
    comm = hpccoll.Communicator(world)
    assert works(comm)
    comm.close()
    comm.close()
    with pytest.raises(hpccoll.UsageError, match="closed"):
        comm.Barrier()
    part = hpccoll.Communicator(world).Split(0)
    assert works(part)
    part.Free()
    with pytest.raises(hpccoll.UsageError):
        part.Barrier()
    with hpccoll.Communicator(world) as comm:
        assert works(comm)
    with pytest.raises(hpccoll.UsageError):
        comm.Barrier()


@pytest.mark.ranks(2)
def test_garbage_collection_at_different_times_does_no_harm(world):
    comm = hpccoll.Communicator(world)
    part = comm.Split(0)
    assert works(part)
    if world.rank == 0:
        del part
        gc.collect()
    for _ in range(10):
        assert works(comm)
    comm.close()


@pytest.mark.ranks(2)
@pytest.mark.timeout(240)
def test_fifteen_hundred_open_communicators(world):
    there = set(os.listdir("/dev/shm"))  # of other programs, or left by what was killed
    comms = [hpccoll.Communicator(world) for _ in range(1500)]
    before = len(os.listdir("/proc/self/fd"))
    for comm in comms:
        assert works(comm)
    assert len(os.listdir("/proc/self/fd")) <= before + 20
    assert [name for name in set(os.listdir("/dev/shm")) - there if name.startswith("hpccoll-")] == []
    for comm in comms:
        comm.close()


@pytest.mark.ranks(2)
def test_more_open_communicators_between_nodes_than_there_are_descriptors_for(world):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(4 * opened, 400), limits[1]))
    try:
        comms = [hpccoll.Communicator(world, layout="1+1", recorder="off") for _ in range(500)]
        for comm in comms:
            assert works(comm)
        for comm in comms:
            comm.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.ranks(2)
def test_a_forked_child_is_told_that_it_cannot_use_it(world):
    comm = hpccoll.Communicator(world)
    assert works(comm)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            comm.Barrier()
        except hpccoll.UsageError as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert works(comm)
    comm.close()


SCRIPT = """
import numpy as np, sys
from mpi4py import MPI
import hpccoll
comm = hpccoll.Communicator(MPI.COMM_WORLD)
for length in (3, 100000):
    comm.Allreduce(np.ones(length), np.empty(length))
{end}
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_program_that_does_not_close_ends_by_itself(tmp_path, ranks):
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(end=""))
    result = run_ranks(ranks, [str(script)], timeout_s=30)
    assert result.returncode == 0, result.stderr
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("hpccoll-")]


def test_an_uncaught_error_is_an_exit_status(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(end="raise RuntimeError('end')"))
    result = run_program([sys.executable, str(script)], timeout_s=30)
    assert result.returncode != 0
    assert "RuntimeError: end" in result.stderr


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("restricted", [False, True])
def test_the_cores_of_a_process_are_left_alone(world, restricted):
    """Whatever a launcher or container has bound it to, before and after; nothing binds."""
    before = os.sched_getaffinity(0)
    try:
        if restricted:
            os.sched_setaffinity(0, {min(before)})
        mine = os.sched_getaffinity(0)
        comm = hpccoll.Communicator(world)
        assert works(comm)
        request = comm.Iallreduce(np.ones(1 << 16), np.empty(1 << 16))
        request.Wait()
        comm.close()
        assert os.sched_getaffinity(0) == mine
    finally:
        os.sched_setaffinity(0, before)
