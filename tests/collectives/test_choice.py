"""Which plan a call takes: named, forced, explained, and the same on all ranks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.plans.select import NEAR
from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import BLOCKED, COLLECTIVES, Job, perform


def plan_of(comm: Any, job: Job) -> str:
    """The name of the plan by which a call was made."""
    before = comm.tally()
    perform(comm, job)
    ((_, name),) = comm.tally() - before
    return str(name)


@on_layouts(1, 2, 3, 4)
def test_a_forced_plan_is_the_one_taken(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    for collective in COLLECTIVES:
        names = comm.algorithms(collective)
        assert {"flat", "one_shot"} < set(names)
        for name in names:
            with comm.forced(name):
                assert plan_of(comm, Job(collective, 11)) == name


@pytest.mark.ranks(4)
def test_the_plans_of_a_layout(communicator: Make) -> None:
    for layout, two_level in (
        ("", []),
        ("2+2", ["scatter_rail_gather", "reduce_ring_broadcast"]),
        ("3+1", ["reduce_ring_broadcast"]),
        ("1+1+1+1", []),
    ):
        comm = communicator(layout=layout)
        flat = ["flat", "one_shot", "ring", "tree", "recursive_doubling", "fold"]
        assert sorted(comm.algorithms("allreduce")) == sorted(flat + two_level)
        assert comm.algorithms("barrier") == ("one_shot",)


@layouts({"": (2,), "2+1": (3,)})
def test_a_started_call_takes_the_plan_of_its_block(communicator: Make, layout: str) -> None:
    """Also where it is planned after the block, or in another one, since an earlier call is under way."""
    comm = communicator(layout=layout)
    values = np.full(30_000, comm.rank + 1.0)
    sums = [np.empty_like(values) for _ in range(3)]
    comm.Barrier()
    if comm.rank == 1:
        time.sleep(0.2)
    before = comm.tally()
    requests = [comm.Iallreduce(values, sums[0])]
    with comm.forced("ring"):
        requests.append(comm.Iallreduce(values, sums[1]))
    with comm.forced("tree"):
        requests.append(comm.Iallreduce(values, sums[2]))
        for request in requests:
            request.Wait()
    made = comm.tally() - before
    assert (made["allreduce", "ring"], made["allreduce", "tree"], made.total()) == (1, 1, 3)
    for one in sums:
        assert (one == comm.size * (comm.size + 1) / 2).all()
    assert plan_of(comm, Job("allreduce", 30_000)) not in ("ring", "tree")


@layouts({"": (2,), "2+1": (3,)})
def test_forced_ends_with_its_block_also_after_an_error(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    job = Job("allreduce", 11)
    chosen = plan_of(comm, job)
    with comm.forced("ring"):
        with comm.forced("tree"):
            assert plan_of(comm, job) == "tree"
        with pytest.raises(ValueError, match="root is -1"), comm.forced("chain"):
            comm.Bcast(np.zeros(3), root=-1)
        assert plan_of(comm, job) == "ring"
    assert plan_of(comm, job) == chosen


@layouts({"": (2,), "2+1": (3,)})
def test_a_plan_that_cannot_do_a_call_is_not_taken(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    with comm.forced("one_shot"):
        assert plan_of(comm, Job("allreduce", 100_000)) != "one_shot"
        assert plan_of(comm, Job("allreduce", 10)) == "one_shot"
    with comm.forced("flat"):
        # NaN under MAX: MPI's answer depends on where the NaN is.
        name = plan_of(comm, Job("allreduce", 5000, np.dtype("f8"), "MAX"))
    assert (name == "flat") == (comm.node_count == 1)


@on_layouts(1, 2, 3, 4, 5)
def test_explain_names_the_plan_that_is_taken(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    for collective in COLLECTIVES:
        for count in (1, 300, 3000, 60_000):
            blocks = comm.size if collective in BLOCKED else 1
            explanation = comm.explain(collective, 8 * count * blocks, dtype="i8", root=comm.size - 1)
            found = plan_of(comm, Job(collective, count, root=comm.size - 1))
            assert found == explanation.plan, f"{collective} of {count}"
            # What is taken need not have the lowest price: one node's own call, fewer bytes between nodes.
            first, *others = (candidate.time_s for candidate in explanation.candidates)
            assert others == sorted(others)
            assert comm.node_count == 1 or all(first <= NEAR * other for other in others)
            text = str(explanation)
            assert text.splitlines()[1].startswith(f"-> {explanation.plan}")
            assert f"{collective} of {8 * count * blocks} bytes" in text


@layouts({"1+1": (2,), "2+2": (4,), "3+1": (4,)})
def test_every_rank_chooses_alike(world: MPI.Intracomm, communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    chosen = [
        comm.explain(collective, 1 << power, root=root).plan
        for collective in COLLECTIVES
        for power in range(2, 27, 3)
        for root in range(comm.size)
    ]
    assert world.allgather(chosen) == [chosen] * comm.size
    assert len(set(chosen)) > 2


@layouts({"": (2,), "2+1": (3,)})
@pytest.mark.parametrize(
    ("algorithm", "wanted"),
    [
        ("ring", {"allreduce": "ring", "allgather": "ring", "reduce_scatter": "ring"}),
        ("allreduce:tree,broadcast:chain", {"allreduce": "tree", "broadcast": "chain"}),
        (" reduce:binomial , flat", {"allreduce": "flat", "broadcast": "flat"}),
    ],
)
def test_the_option(world: MPI.Intracomm, layout: str, algorithm: str, wanted: dict[str, str]) -> None:
    comm = hpccoll.Communicator(world, layout=layout, algorithm=algorithm)
    for collective, name in wanted.items():
        assert plan_of(comm, Job(collective, 11)) == name
        assert plan_of(comm, Job(collective, 5000)) == name
    with comm.forced("recursive_doubling"):
        assert plan_of(comm, Job("allreduce", 11)) == "recursive_doubling"
    comm.close()
