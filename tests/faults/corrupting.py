"""A program in which bits are flipped on their way: `corrupting.py SEED CASES checked|unchecked DIRECTORY`.

A bit is flipped in the memory that carries it, after it was written there and before it is read:

    slot       a member's slot of the staging segment, read to be combined or copied out
    result     what leaves the staging segment for the caller's memory
    message    a message of MPI's between two ranks (its own copy of it, as it is given to MPI)
    word       the checksum that follows a message
    call       what a rank calls, in its slot of the control segment
    payload    elements that travel with the call, in the control segment
    verdict    what the leader of a node publishes, and the elements that it brings from the others

Each case has a communicator of its own: a first call that goes well tells how many such reads there are on
which rank, and one of them is chosen.  Each rank writes how each case ended to DIRECTORY/<rank>.json.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll
from hpccoll.runtime.control import HEAD_BYTES, Control
from hpccoll.transports.mpi import MpiNetwork
from hpccoll.transports.slots import Slots
from hpccoll.transports.streams import Stream
from tests.support.oracle import COLLECTIVES, RAGGED, Attempt, Job, Ragged

TIMEOUT_S = 20.0
MOST_CALLS = 4  # after which all ranks must have learnt it
WAYS = ("slot", "result", "message", "word", "call", "payload", "verdict")
UNCHECKED = (
    "slot",
    "result",
)  # what are elements only, which without checksums are no error but a wrong result
FORMS = ("blocking", "started", "persistent")
SMALL: dict[str, Any] = {"small_bytes": 4096}
LONG: dict[str, Any] = {"small_bytes": 64, "staging_bytes": 8192, "segment_bytes": 4096, "chunk_bytes": 4096}
Array = np.ndarray[Any, Any]


class Flips:
    """Counts the reads of each kind on this rank, and flips a bit before one of them."""

    def __init__(self) -> None:
        self.seen = dict.fromkeys(WAYS, 0)
        self.way, self.number, self.bit = "", -1, 0
        self.struck_at = 0.0

    def arm(self, way: str, number: int, bit: int) -> None:
        self.seen = dict.fromkeys(WAYS, 0)
        self.way, self.number, self.bit = way, number, bit

    def pass_by(self, way: str, memory: Array) -> None:
        """Some bytes are about to be read."""
        if memory.size == 0:
            return
        if way == self.way and self.seen[way] == self.number:
            at = self.bit % (8 * memory.nbytes)
            memory.view(np.uint8)[at // 8] ^= 1 << at % 8
            self.struck_at = time.monotonic()
            self.way = ""
        self.seen[way] += 1


FLIPS = Flips()


def watch() -> None:
    """From now on all that is read passes FLIPS."""
    given, write, send = Slots.given, Stream.write, MpiNetwork.send
    deviating, payload, problem, result = Control.deviating, Control.payload, Control.problem, Control.result

    def slot_given(self: Slots, *place: Any) -> Array:
        found = given(self, *place)
        FLIPS.pass_by("slot", found)
        return found

    def stream_write(self: Stream, start: int, values: Array) -> None:
        if values.base is not None and values.base.nbytes > values.nbytes:  # a view of the segment
            FLIPS.pass_by("result", values)
        write(self, start, values)

    def network_send(self: MpiNetwork, peer: int, data: Array, channel: int) -> Any:
        message = data.copy()
        is_word = data.dtype == np.uint32 and data.size == 1
        FLIPS.pass_by("word" if is_word else "message", message)
        return send(self, peer, message, channel)

    def control_deviating(self: Control, sequence: int, fingerprint: bytes) -> Any:
        start = self._slot(sequence, FLIPS.bit % len(self.members))
        FLIPS.pass_by("call", self._memory[start : start + len(fingerprint)])
        return deviating(self, sequence, fingerprint)

    def control_payload(
        self: Control, sequence: int, member: int, count: int, dtype: Any, **how: Any
    ) -> Array:
        start = self._slot(sequence, member) + HEAD_BYTES
        FLIPS.pass_by("payload", self._memory[start : start + count * dtype.itemsize])
        return payload(self, sequence, member, count, dtype, **how)

    def control_problem(self: Control, sequence: int) -> bytes:
        start = self._result(sequence)
        FLIPS.pass_by("verdict", self._memory[start : start + 4])
        return problem(self, sequence)

    def control_result(self: Control, sequence: int, count: int, dtype: Any) -> Array:
        start = self._result(sequence) + HEAD_BYTES
        FLIPS.pass_by("verdict", self._memory[start : start + count * dtype.itemsize])
        return result(self, sequence, count, dtype)

    Slots.given, Stream.write, MpiNetwork.send = slot_given, stream_write, network_send  # type: ignore[method-assign]
    Control.deviating, Control.payload = control_deviating, control_payload  # type: ignore[method-assign]
    Control.problem, Control.result = control_problem, control_result  # type: ignore[method-assign]


def jobs(size: int, chance: random.Random, ragged: bool) -> Iterator[Job | Ragged]:
    """Calls of every collective, for ever."""
    while True:
        for collective in COLLECTIVES:
            yield Job(collective, chance.choice([3, 40, 2000, 20_000]), root=chance.randrange(size))
        for collective in RAGGED if ragged else ():
            blocks = size ** (2 if collective.startswith("alltoall") else 1)
            yield Ragged(collective, tuple(chance.randrange(300) for _ in range(blocks)))


def made(comm: hpccoll.Communicator, job: Job | Ragged, form: str) -> Callable[[int], None]:
    """A call that can be made again and again with new elements; raises what it raises, and checks."""
    attempt = Attempt(comm, job)
    request = attempt.prepare() if form == "persistent" else None

    def call(salt: int) -> None:
        attempt.renew(salt)
        if request is not None:
            request.Start()
            request.Wait()
        elif form == "started":
            attempt.start().Wait()
        else:
            attempt.call()
        attempt.check()

    return call


@contextmanager
def plan(comm: hpccoll.Communicator, name: str) -> Iterator[None]:
    if name:
        with comm.forced(name):
            yield
    else:
        yield


def one_case(
    seed: str, way: str, checked: bool, world: MPI.Intracomm, job: Job | Ragged
) -> dict[str, Any] | None:
    """What came of a flip, as this rank saw it; None where this call reads nothing of the kind."""
    chance = random.Random(seed)
    form = chance.choice(FORMS)
    settings = SMALL if way in ("payload", "verdict") else LONG
    settings |= {"checksums": True} if checked else {"native": False}
    comm = hpccoll.Communicator(world, timeout_s=TIMEOUT_S, **settings)
    name = chance.choice(["", *comm.algorithms(job.plans)])
    with plan(comm, name):
        call = made(comm, job, form)
        FLIPS.arm("", -1, 0)
        call(0)
        counts: list[int] = world.allgather(FLIPS.seen[way])
        culprits = [rank for rank, count in enumerate(counts) if count]
        if not culprits:
            comm.close()
            return None
        culprit = chance.choice(culprits)
        number, bit = chance.randrange(counts[culprit]), chance.getrandbits(40)
        if world.rank == culprit:
            FLIPS.arm(way, number, bit)
        case = {"job": str(job), "form": form, "way": way, "plan": name, "culprit": culprit, "kind": ""}
        wrong = ""
        for salt in range(1, 1 + MOST_CALLS):
            try:
                call(salt)
            except hpccoll.IntegrityError as error:
                case |= ended(error)
                break
            except hpccoll.HpccollError as error:
                case |= {"kind": type(error).__name__, "text": str(error)}
                break
            except AssertionError as error:
                wrong = str(error)  # a wrong result
        case |= {"at": time.monotonic(), "struck": FLIPS.struck_at, "wrong": wrong, "nodes": nodes(comm)}
    case["later"] = later(comm)
    world.Barrier()
    comm.close()
    return case


def ended(error: hpccoll.IntegrityError) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "collective": error.collective,
        "sequence": error.sequence,
        "level": error.level,
        "chunk": error.chunk,
        "peer": error.peer,
        "finder": error.finder,
        "rank": error.rank,
    }


def nodes(comm: hpccoll.Communicator) -> list[list[int]]:
    return [list(node) for node in comm.machine.layout.nodes]


def later(comm: hpccoll.Communicator) -> str:
    """What a later call on the communicator raises, and from what."""
    try:
        comm.Allreduce(np.ones(3), np.empty(3))
    except hpccoll.HpccollError as error:
        return f"{type(error).__name__} from {type(error.__cause__).__name__}"
    return ""


def main(seed: str, wanted: int, checked: bool, directory: Path) -> None:
    world = MPI.COMM_WORLD
    watch()
    ways = WAYS if checked else UNCHECKED
    all_jobs = jobs(world.size, random.Random(seed), ragged=checked)
    found: list[dict[str, Any]] = []
    for number in range(10 * wanted):
        way = ways[(number + number // len(ways)) % len(ways)]
        case = one_case(f"{seed} {number}", way, checked, world, next(all_jobs))
        if case is not None:
            found.append(case)
        if len(found) == wanted:
            break
    report = directory / f"{world.rank}.json"
    report.with_suffix(".part").write_text(json.dumps(found))
    report.with_suffix(".part").rename(report)
    world.Barrier()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "checked", Path(sys.argv[4]))
