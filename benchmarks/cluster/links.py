"""What each rank on the hosts runs: the links measured, a prediction from them, then the calls themselves.

    mpiexec -hosts ... python -m benchmarks.cluster.links --sizes 1048576 --output FILE

All ranks measure memory and arithmetic at the same time, since in a collective they are at it together: the
constants are those of this many processes on this machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpccoll
from benchmarks.cluster.allreduce import expected, given
from hpccoll.plans.links import Links
from hpccoll.scaling.flows import simulate_plan
from hpccoll.tuning import links as tuning_links

STAGED_BYTES = 256 << 10  # a piece of our segments, as `staging_bytes` gives a rank for one of two
TURNS = 2  # pieces of a rank there
ROUNDS = 9
SMALL_ROUNDS = 100


def measure_links(world: MPI.Intracomm, comm: hpccoll.Communicator, nbytes: int) -> Links:
    """The constants of the cost model, on all ranks the same; `nbytes`: of the callers' arrays.

    Arrays that fit in the caches are copied faster than longer ones, which is a fact of the memory.
    """
    layout = comm.machine.layout
    found = tuning_links.for_model(
        tuning_links.measure(world, layout, time.monotonic() + comm.config.timeout_s)
    )
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    array, result = (np.ones(nbytes // 4, np.float32) for _ in range(2))
    copy_s = _slowest(world, lambda: np.copyto(result, array))
    staging_s = _through_segment(node, world, array, result) - copy_s
    rates = {"memory": 2 * nbytes / copy_s, "staging": 2 * nbytes / max(staging_s, copy_s / 100)}
    combine_s = _slowest(world, lambda: np.add(array, result, out=result))
    hand_over_s = _hand_over(node, world)
    node.Free()
    return Links(
        **found,
        node_latency_us=hand_over_s * 1e6,
        **{f"{name}_gbs": max(layout.counts) * rate / 1e9 for name, rate in rates.items()},
        combine_gbs=nbytes / combine_s / 1e9,
    )


def _slowest(world: MPI.Intracomm, action: Callable[[], object]) -> float:
    """The median over rounds of the slowest rank's time."""
    return statistics.median([_together(world, action) for _ in range(ROUNDS + 1)][1:])


def _together(world: MPI.Intracomm, action: Callable[[], object]) -> float:
    """The slowest rank's time, all at the same moment."""
    world.Barrier()
    begin = time.perf_counter()
    action()
    return world.allreduce(time.perf_counter() - begin, MPI.MAX)


def _through_segment(
    node: MPI.Intracomm, world: MPI.Intracomm, array: NDArray[np.float32], result: NDArray[np.float32]
) -> float:
    """Seconds of copying the array into memory that the node shares, and of what the next rank put there out.

    In pieces that go round, as in our segments: what another core has just written takes longer to read than
    what the own cache has, and what another has read takes longer to write.
    """
    window = MPI.Win.Allocate_shared(STAGED_BYTES * TURNS, 1, comm=node)
    own, following = (
        np.frombuffer(window.Shared_query(rank)[0], np.float32).reshape(TURNS, -1)
        for rank in (node.rank, (node.rank + 1) % node.size)
    )
    length = own.shape[1]
    spent_s = []
    for _ in range(ROUNDS + 1):
        spent_s.append(0.0)
        for number, start in enumerate(range(0, array.size, length)):
            part, slot = slice(start, start + length), number % TURNS
            count = array[part].size
            spent_s[-1] += _together(world, partial(np.copyto, own[slot, :count], array[part]))
            spent_s[-1] += _together(world, partial(np.copyto, result[part], following[slot, :count]))
    del own, following
    window.Free()
    return statistics.median(spent_s[1:])


def _hand_over(node: MPI.Intracomm, world: MPI.Intracomm) -> float:
    """Of a word between the ranks of a node, in our shared memory: what a one-shot call there takes."""
    with hpccoll.Communicator(node) as comm:
        word, total = np.ones(1), np.empty(1)
        times = []
        for _ in range(SMALL_ROUNDS + 1):
            begin = time.perf_counter()
            comm.Allreduce(word, total)
            times.append(time.perf_counter() - begin)
        return world.allreduce(statistics.median(times[1:]), MPI.MAX)


def rows(
    world: MPI.Intracomm, comm: hpccoll.Communicator, links: Links, nbytes: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each plan: what is predicted, and the times of the calls, checked."""
    plans = comm.explain("allreduce", nbytes).candidates
    taken = plans[0].name
    chosen = [one for one in plans if one.name == taken or one.name in options.plans]
    if comm.node_count > 1:
        chosen = [one for one in chosen if one.name != "flat"]  # MPI's own, whose algorithm is unknown
    predicted = [simulate_plan(one.made, 4, links).time_s for one in chosen]
    send, wanted = given(nbytes, world.rank, world.size), expected(nbytes, world.size)
    receive = np.empty_like(send)
    times = np.zeros((options.rounds, len(chosen)))
    wrong = np.zeros(len(chosen), int)
    for turn in range(-1, options.rounds):
        for index in np.random.default_rng(turn + 1).permutation(len(chosen)):
            with comm.forced(chosen[index].name):
                world.Barrier()
                begin = time.perf_counter()
                comm.Allreduce(send, receive)
                spent = time.perf_counter() - begin
            if turn < 0:
                wrong[index] = np.count_nonzero(receive != wanted)
            else:
                times[turn, index] = spent
    slowest, errors = np.empty_like(times), np.empty_like(wrong)
    world.Allreduce(times, slowest, MPI.MAX)
    world.Allreduce(wrong, errors)
    return [
        {
            "bytes": nbytes,
            "plan": one.plan,
            "taken": one.name == taken,
            "predicted_s": predicted[index],
            "times_s": slowest[:, index].tolist(),
            "wrong": int(errors[index]),
        }
        for index, one in enumerate(chosen)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, predict and measure; rank 0 writes all of it to --output as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=lambda text: [int(one) for one in text.split(",")], required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--plans", type=lambda text: text.split(","), default=[])
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    world = MPI.COMM_WORLD
    with hpccoll.Communicator(world) as comm:
        found = []
        for nbytes in options.sizes:
            links = measure_links(world, comm, nbytes)
            of_size = rows(world, comm, links, nbytes, options)
            constants = {name: value for name, value in asdict(links).items() if isinstance(value, float)}
            found += [{**row, "links": constants} for row in of_size]
    if world.rank == 0:
        library = MPI.Get_library_version().splitlines()[0].strip("\0 \t")
        document = {
            "library": library,
            "ranks": world.size,
            "rows": found,
        }
        options.output.write_text(json.dumps(document))


if __name__ == "__main__":
    main()
