"""What one rank does in a schedule of nemesis.py: `nemesis_rank.py DIRECTORY`, and writes down.

Every call's input follows from the schedule's seed, the call and the rank: each knows what must come out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll
from tests.support.launch import until

LINKS = ("link cut", "link cut one way", "link comes back")
LONGEST_CUT_S = 30.0
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Call:
    """One call: a collective, elements of each rank (or block) and a root."""

    collective: str
    count: int
    root: int


def calls(seed: int, number: int, ranks: int) -> list[Call]:
    """The calls of a schedule."""
    random = np.random.default_rng([seed, 1])
    return [
        Call(
            str(random.choice(list(RUN))),
            int(random.choice([1, 7, 500, 5_000, 60_000])),
            int(random.integers(ranks)),
        )
        for _ in range(number)
    ]


def given(seed: int, number: int, rank: int, count: int) -> Array:
    """What a rank gives to a call."""
    return np.random.default_rng([seed, 2, number, rank]).integers(-1000, 1000, count).astype(np.float64)


def _allreduce(comm: Any, mine: Array, every: list[Array], call: Call) -> tuple[Array, Array]:
    out = np.empty_like(mine)
    comm.Allreduce(mine, out)
    return out, sum(every)  # type: ignore[return-value]


def _started(comm: Any, mine: Array, every: list[Array], call: Call) -> tuple[Array, Array]:
    out = np.empty_like(mine)
    comm.Iallreduce(mine, out, MPI.MAX).Wait()
    return out, np.max(every, axis=0)


def _reduce(comm: Any, mine: Array, every: list[Array], call: Call) -> tuple[Array, Array]:
    out = np.zeros_like(mine)
    comm.Reduce(mine, out if comm.rank == call.root else None, root=call.root)
    wanted: Any = sum(every)
    return out, wanted if comm.rank == call.root else np.zeros_like(mine)


def _bcast(comm: Any, mine: Array, every: list[Array], call: Call) -> tuple[Array, Array]:
    out = mine.copy()
    comm.Bcast(out, root=call.root)
    return out, every[call.root]


def _allgather(comm: Any, mine: Array, every: list[Array], call: Call) -> tuple[Array, Array]:
    out = np.empty(mine.size * comm.size)
    comm.Allgather(mine, out)
    return out, np.concatenate(every)


def _alltoall(comm: Any, mine: Array, every: list[Array], call: Call) -> tuple[Array, Array]:
    blocks = [np.tile(one, comm.size) + np.repeat(np.arange(comm.size), mine.size) for one in every]
    out = np.empty_like(blocks[0])
    comm.Alltoall(blocks[comm.rank], out)
    return out, np.concatenate([one.reshape(comm.size, -1)[comm.rank] for one in blocks])


def _reduce_scatter(comm: Any, mine: Array, every: list[Array], call: Call) -> tuple[Array, Array]:
    out = np.empty_like(mine)
    comm.Reduce_scatter_block(np.tile(mine, comm.size), out)
    return out, sum(every)  # type: ignore[return-value]


def _barrier(comm: Any, mine: Array, every: list[Array], call: Call) -> tuple[Array, Array]:
    comm.Barrier()
    return mine, mine


RUN: dict[str, Callable[[Any, Array, list[Array], Call], tuple[Array, Array]]] = {
    "allreduce": _allreduce,
    "started allreduce": _started,
    "reduce": _reduce,
    "broadcast": _bcast,
    "allgather": _allgather,
    "alltoall": _alltoall,
    "reduce_scatter": _reduce_scatter,
    "barrier": _barrier,
}


class Rank:
    """This rank in a schedule."""

    def __init__(self, directory: Path) -> None:
        self.schedule: dict[str, Any] = json.loads((directory / "schedule.json").read_text())
        settings = {"timeout_s": self.schedule["timeout_s"], "checksums": self.schedule["checksums"]}
        self.comm = hpccoll.Communicator(MPI.COMM_WORLD, **settings)
        self.mine = self.comm.rank == self.schedule["rank"]
        self._directory = directory
        self._file = os.open(directory / f"{self.comm.rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, **what: Any) -> None:
        """A line for the checker; nothing of it is lost when this process is killed."""
        os.write(self._file, json.dumps(what | {"at": time.monotonic()}).encode() + b"\n")

    def run(self) -> None:
        """All calls, and the fault."""
        seed = self.schedule["seed"]
        for number, call in enumerate(calls(seed, self.schedule["calls"], self.comm.size)):
            strikes = self.mine and number == self.schedule["call"]
            if strikes:
                call = self.struck(call)
            every = [given(seed, number, rank, call.count) for rank in range(self.comm.size)]
            if not self.goes_on(number, call, every):
                break
        self.note(end=True)

    def goes_on(self, number: int, call: Call, every: list[Array]) -> bool:
        """Make a call; whether there is sense in another one."""
        try:
            out, wanted = RUN[call.collective](self.comm, every[self.comm.rank].copy(), every, call)
        except (hpccoll.MismatchError, hpccoll.UsageError) as error:
            self.note(call=number, error=type(error).__name__, text=str(error))
            return True
        except hpccoll.HpccollError as error:
            self.note(call=number, error=type(error).__name__, text=str(error), suspects=error.suspects)
            try:
                self.comm.Barrier()
                self.note(call=number + 1, right=True)
            except hpccoll.AbortedError:
                pass
            return False
        self.note(call=number, right=bool(np.array_equal(out, wanted)))
        return True

    def struck(self, call: Call) -> Call:
        """Meet the fault, now or in a moment; the call that this rank makes then."""
        fault, delay_s = self.schedule["fault"], self.schedule["delay_s"]
        if fault in ("SIGKILL", "SIGSTOP", "stop and go on"):

            def strike(*_: object) -> None:
                self.note(struck=True, process=os.getpid())
                if fault == "stop and go on":
                    seconds = self.schedule["timeout_s"] / 2
                    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGKILL if fault == "SIGKILL" else signal.SIGSTOP)

            signal.signal(signal.SIGALRM, strike)
            signal.setitimer(signal.ITIMER_REAL, delay_s)
            return call
        self.note(struck=True)
        if fault in LINKS:
            until((self._directory / "cut").exists, LONGEST_CUT_S, 1e-4)
        elif fault == "late":
            time.sleep(self.schedule["timeout_s"] / 2)
        elif fault == "raise":
            raise ArithmeticError("the matrix is singular")
        elif fault == "exit":
            sys.exit(0)
        elif fault == "another count":
            return Call(call.collective, call.count + 1, call.root)
        elif fault == "another root":
            return Call(call.collective, call.count, (call.root + 1) % self.comm.size)
        elif fault == "another collective":
            names = list(RUN)
            return Call(names[(names.index(call.collective) + 2) % len(names)], call.count, call.root)
        return call


if __name__ == "__main__":
    Rank(Path(sys.argv[1])).run()
