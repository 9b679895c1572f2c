"""A program in which one rank meets a fault: `faulty.py FAULT RANK DIRECTORY`.

Each rank that gets that far writes how it ended to DIRECTORY/<rank>.json.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll
from hpccoll.calls import Call
from hpccoll.runtime.executor import Execution
from hpccoll.runtime.movement import Movement
from hpccoll.runtime.planning import Planned
from tests.support.control_groups import join

TIMEOUT_S = float(os.environ.get("FAULTY_TIMEOUT_S", "2"))
AT = 10  # the call at which it happens
CALLS = 20
LATER_S = 0.5  # so much later the others come to a call that is not waited for


def now() -> float:
    """Seconds, the same on all ranks of a host."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def continued_after(seconds: float) -> None:
    """Have this process continued by another one."""
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])


def strike(fault: str) -> None:
    """Let this rank meet the fault."""
    name, _, detail = fault.partition(":")
    if name == "signal":
        os.kill(os.getpid(), signal.Signals[detail])
    elif name == "stop":
        if detail:
            continued_after(float(detail))
        os.kill(os.getpid(), signal.SIGSTOP)
    elif name == "segfault":
        ctypes.string_at(0)
    elif name == "raise":
        raise ArithmeticError("the matrix is singular")
    elif name == "exit":
        sys.exit(0)
    elif name == "late":
        time.sleep(float(detail))
    elif name == "out-of-memory":
        join(Path(os.environ["FAULTY_GROUP"]))
        np.ones(1 << 27)  # a GiB, of which the kernel lets it have less
    elif name == "hold-the-GIL":
        ctypes.PyDLL(None).usleep(int(1e6 * float(detail)))
    else:
        raise ValueError(fault)


def work(comm: hpccoll.Communicator, fault: str, culprit: int, directory: Path) -> None:
    short, long = np.ones(4), np.ones(50_000)
    during = fault.startswith("during-")
    for number in range(CALLS if not during else 10**9):
        if number == AT and fault.startswith("unfinished"):
            leave_unfinished(comm, comm.rank == culprit, int(fault.partition(":")[2]), directory)
        elif number == AT and comm.rank == culprit:
            if during:
                strike_soon(signal.Signals[fault.removeprefix("during-")], directory)
            else:
                noted(directory)
                if fault == "differs":
                    comm.Bcast(long)
                else:
                    strike(fault)
        comm.Allreduce(MPI.IN_PLACE, long)
        comm.Bcast(short, root=number % comm.size)
        request = comm.Iallreduce(MPI.IN_PLACE, short)
        request.Wait()
        short[:], long[:] = 1, 1


def leave_unfinished(comm: hpccoll.Communicator, mine: bool, count: int, directory: Path) -> None:
    """One rank starts a call and ends its program, before the others have come."""
    values = np.ones(count)
    if not mine:
        time.sleep(LATER_S)
    request = comm.Iallreduce(MPI.IN_PLACE, values)
    if mine:
        noted(directory)
        sys.exit(0)
    request.Wait()


def strike_soon(number: signal.Signals, directory: Path) -> None:
    """A signal that comes in the midst of some call."""

    def handle(*_: object) -> None:
        noted(directory)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.1)


def noted(directory: Path) -> None:
    (directory / "struck").write_text(str(now()))


def strike_at_step(fault: str, culprit: bool, directory: Path) -> None:
    """`at:SIGNAL:FAMILY:CHUNK`: from call AT on, when this rank begins an operation of these."""
    _, name, family, chunk = fault.split(":")
    start = Execution._start

    def starts(self: Execution, index: int) -> None:
        operation = self._operations[index]
        plan_step = PLAN[-1].plan.steps[operation.step]
        if culprit and len(PLAN) > AT and (plan_step.family, plan_step.chunk) == (family, int(chunk)):
            noted(directory)
            os.kill(os.getpid(), signal.Signals[name])
        start(self, index)

    move = Movement.move

    def moves(self: Movement, call: Call, planned: Planned, *rest: Any) -> Any:
        PLAN.append(planned)
        return move(self, call, planned, *rest)

    Execution._start, Movement.move = starts, moves  # type: ignore[method-assign]


PLAN: list[Planned] = []  # of the calls that have moved elements, in their order


def in_steps(comm: hpccoll.Communicator) -> None:
    """Calls of several chunks on two levels."""
    values = np.ones(60_000)
    for _ in range(CALLS):
        comm.Allreduce(MPI.IN_PLACE, values)
        values[:] = 1


def main(fault: str, culprit: int, directory: Path) -> None:
    at_step = fault.startswith("at:")
    settings: dict[str, Any] = {"native": False, "chunk_bytes": 100_000} if at_step else {}
    comm = hpccoll.Communicator(MPI.COMM_WORLD, timeout_s=TIMEOUT_S, **settings)
    ended = {"kind": "", "text": "", "suspects": ()}
    try:
        if at_step:
            strike_at_step(fault, comm.rank == culprit, directory)
            with comm.forced("reduce_ring_broadcast"):
                in_steps(comm)
        else:
            work(comm, fault, culprit, directory)
    except hpccoll.HpccollError as error:
        ended = {"kind": type(error).__name__, "text": str(error), "suspects": error.suspects}
        raise
    finally:
        report = directory / f"{comm.rank}.json"
        report.with_suffix(".part").write_text(json.dumps(ended | {"at": now()}))
        report.with_suffix(".part").rename(report)
        if ended["kind"] and fault.startswith("stop:"):
            time.sleep(float(fault.removeprefix("stop:")))  # or the job would end before that rank goes on
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
