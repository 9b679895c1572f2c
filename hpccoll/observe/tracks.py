"""What a job's ranks did, as slices of time on tracks: a process for each rank, a track for each kind.

    program         what the program did: parts that it named, calls that it waited in, waits for started ones
    computation     the time between these, under the name of the innermost part it is in
    progress        started calls, from their start to their end, which the progress worker moves on
    buckets         buckets of gradients under way; inside, what of that the program has waited for
    level FAMILY    operations of plans on one level of the machine, each of one chunk
    device          calls on a device, between two of its events

Slices of one track that overlap without one being inside the other are on several rows, so that each row is a
proper nesting.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from hpccoll.observe import form
from hpccoll.observe.clocks import JobClocks
from hpccoll.observe.reading import Call, Event, RankTrace
from hpccoll.plans.program import CODE, CODES
from hpccoll.runtime.fingerprint import CLOSING

PROGRAM, COMPUTATION, PROGRESS, BUCKETS, LEVEL, DEVICE = (
    "program",
    "computation",
    "progress",
    "buckets",
    "level",
    "device",
)
ORDER = (PROGRAM, COMPUTATION, PROGRESS, BUCKETS, LEVEL, DEVICE)
SHORTEST_NS = 1000  # of a computation that is shown
NAMED_BYTES = 1 << 10


@dataclass
class Slice:
    """Something that lasted, in ns of the job's clock.  `inside`: parts of it, which it encloses."""

    track: str
    name: str
    kind: str
    begin_ns: int
    end_ns: int
    details: dict[str, Any] = field(default_factory=dict)
    inside: list[Slice] = field(default_factory=list)


class Row(NamedTuple):
    """A row of a process: its track, its number among those of the track, and the slices, the outer first."""

    track: str
    lane: int
    slices: list[Slice]


class Message(NamedTuple):
    """From the send of one rank to the receive of another."""

    send: Slice
    receive: Slice


@dataclass
class Process:
    """A rank of the job."""

    rank: int
    host: str
    pid: int
    slices: list[Slice]

    @cached_property
    def rows(self) -> list[Row]:
        """Its rows, in the order in which they are shown."""
        by_track: dict[str, list[Slice]] = defaultdict(list)
        for one in self.slices:
            by_track[one.track].append(one)
        names = sorted(by_track, key=lambda name: (ORDER.index(name.split(" ")[0].rstrip(",")), name))
        return [row for name in names for row in _laid_out(name, by_track[name])]


@dataclass
class Job:
    """A job's timeline.  `lost_calls`, `lost_events`: those that the rings had no room for.

    `disorder_ns`: how much earlier than it was sent any message has arrived by these clocks, which is never
    more than their errors where these are right; 0 where none has.
    """

    name: str
    processes: list[Process]
    messages: list[Message]
    clocks: JobClocks
    wall_ns: int
    lost_calls: int
    lost_events: int

    @cached_property
    def begin_ns(self) -> int:
        """The first moment."""
        return min((one.begin_ns for process in self.processes for one in process.slices), default=0)

    @property
    def disorder_ns(self) -> int:
        return max((one.send.begin_ns - one.receive.end_ns for one in self.messages), default=0)


def job_of(traces: Sequence[RankTrace]) -> Job:
    """The timeline of all that some ranks, of one or several communicators, have recorded."""
    clocks = JobClocks(traces)
    by_process: dict[tuple[str, str, int, int], list[RankTrace]] = defaultdict(list)
    for one in traces:
        by_process[one.process_key].append(one)
    ends: dict[tuple[Any, ...], tuple[list[Slice], list[Slice]]] = defaultdict(lambda: ([], []))
    processes = []
    for own in by_process.values():
        slices = [one for trace in own for one in _slices(trace, clocks, ends)]
        first = own[0]
        rank = first.world_rank if first.world_rank >= 0 else first.rank
        slices += _computation(slices)
        _expose(slices)
        processes.append(Process(rank, first.host, first.pid, slices))
    processes.sort(key=lambda one: (one.rank, one.host, one.pid))
    messages = [
        Message(send, receive)
        for sends, receives in ends.values()
        for send, receive in zip(sends, receives, strict=False)
    ]
    first = min(traces, key=lambda one: one.wall_ns)
    wall_ns = first.wall_ns - clocks.of(first, first.monotonic_ns)
    lost = sum(one.lost for one in traces), sum(one.lost_events for one in traces)
    return Job(first.program or first.name, processes, messages, clocks, wall_ns, *lost)


# --- one rank -----------------------------------------------------------------------------------------


def _slices(
    trace: RankTrace, clocks: JobClocks, ends: dict[tuple[Any, ...], tuple[list[Slice], list[Slice]]]
) -> Iterator[Slice]:
    last_ns = _last_moment(trace)
    main = _main_thread(trace)
    label = trace.name or trace.communicator
    for call in trace.calls.values():
        if call.called is None or not call.called.form & CLOSING:
            yield _of_call(trace, call, clocks, last_ns, _program(call.thread, main), label)
    steps: dict[str, tuple[str, list[list[Any]]]] = {}
    # In the order in which they began, so that the messages of a pair of ranks are in their order.
    for event in sorted(trace.events, key=lambda one: one.begin_ns):
        if 0 <= event.kind < len(CODES):
            one = _of_operation(trace, event, clocks, steps)
            if event.kind in (CODE["send"], CODE["receive"]):
                sends = event.kind == CODE["send"]
                pair = (trace.rank, event.peer) if sends else (event.peer, trace.rank)
                key = (trace.communicator, event.sequence, event.step, pair)
                ends[key][0 if sends else 1].append(one)
            yield one
        elif event.kind in _EVENTS:
            track, kind, words = _EVENTS[event.kind]
            track = _program(event.thread, main) if track == PROGRAM else track
            called = trace.calls.get(event.sequence) if event.kind == form.WAITED else None
            what = str(called) if called is not None else event.text or f"#{event.sequence}"
            yield _at(trace, clocks, event, track, words.format(what), kind, {"communicator": label})


# Of events that are no operations: track, kind, and words for the name.
_EVENTS = {
    form.SPAN: (PROGRAM, "part", "{}"),
    form.WAITED: (PROGRAM, "wait", "wait for {}"),
    form.STEP_WAITED: (PROGRAM, "wait", "{}"),
    form.BUCKET: (BUCKETS, "bucket", "{}"),
    form.ENQUEUED: (PROGRAM, "enqueue", "enqueue {}"),
    form.ON_DEVICE: (DEVICE, "device", "{}"),
}


def _at(
    trace: RankTrace,
    clocks: JobClocks,
    event: Event,
    track: str,
    name: str,
    kind: str,
    details: dict[str, Any],
) -> Slice:
    begin_ns, end_ns = clocks.of(trace, event.begin_ns), clocks.of(trace, event.end_ns)
    found = Slice(track, name, kind, begin_ns, max(begin_ns, end_ns), details)
    if event.kind in (form.STEP_WAITED, form.BUCKET):
        found.details["step"] = event.sequence
    if event.kind == form.ON_DEVICE:
        found.details["clock_error_us"] = event.step
    if event.nbytes:
        found.details["bytes"] = event.nbytes
    return found


def _of_call(
    trace: RankTrace, call: Call, clocks: JobClocks, last_ns: int, program: str, label: str
) -> Slice:
    over = call.state in (form.DONE, form.FAILED, form.REFUSED)
    end_ns = max(call.ended_ns if over else last_ns, call.entered_ns)
    begin, end = clocks.of(trace, call.entered_ns), clocks.of(trace, end_ns)
    details: dict[str, Any] = {"communicator": label, "sequence": call.sequence}
    name = call.collective
    if call.called is not None:
        fields = call.called.fields()
        name = fields["collective"]
        details |= {"dtype": fields["dtype"], "count": call.called.count, "operator": fields["operator"]}
    details |= {"plan": call.plan, "line": str(call.place) if call.place else "", "error": call.error}
    if not over:
        details["state"] = f"not over: {form.STATES[call.state]}"
    track = PROGRESS if call.how == form.STARTED else program
    found = Slice(
        track, name, "started" if track == PROGRESS else "call", begin, max(begin, end),
        {name: value for name, value in details.items() if value not in ("", None)},
    )  # fmt: skip
    agreed = clocks.of(trace, call.agreed_ns) if call.agreed_ns else 0
    if begin < agreed < end:
        found.inside = [
            Slice(track, "agree", "phase", begin, agreed),
            Slice(track, "move", "phase", agreed, end),
        ]
    return found


def _of_operation(
    trace: RankTrace, event: Event, clocks: JobClocks, known: dict[str, tuple[str, list[list[Any]]]]
) -> Slice:
    if event.text not in known:
        known[event.text] = _read_steps(event.text)
    plan, steps = known[event.text]
    family, chunk = ("", -1)
    if 0 <= event.step < len(steps):
        _, family, chunk = steps[event.step]
    name = CODES[event.kind]
    details = {"sequence": event.sequence, "plan": plan, "step": event.step, "chunk": chunk}
    if name in ("send", "receive"):
        details["peer"] = event.peer
        name += f" {'to' if name == 'send' else 'from'} {event.peer}"
    name += f" [{chunk}]" if chunk >= 0 else ""
    track = f"{LEVEL} {family}" if family else LEVEL
    return _at(trace, clocks, event, track, name, "operation", details)


def _read_steps(text: str) -> tuple[str, list[list[Any]]]:
    try:
        plan, steps = json.loads(text)
        return str(plan), [[str(kind), str(family), int(chunk)] for kind, family, chunk in steps]
    except (ValueError, TypeError):  # it had no room, or the file is damaged
        return "", []


def _last_moment(trace: RankTrace) -> int:
    """The last thing that a rank has noted."""
    times = [max(one.entered_ns, one.agreed_ns, one.ended_ns) for one in trace.calls.values()]
    ends = [one.end_ns for one in trace.events]
    return max([trace.state_ns, *times, *ends])


def _main_thread(trace: RankTrace) -> int:
    """The thread that has made most of the calls."""
    counts: dict[int, int] = defaultdict(int)
    for call in trace.calls.values():
        counts[call.thread] += 1
    return max(counts, key=counts.__getitem__, default=0)


def _program(thread: int, main: int) -> str:
    return PROGRAM if thread == main else f"{PROGRAM}, thread {thread:x}"


def _computation(slices: Iterable[Slice]) -> list[Slice]:
    """The time of the program's thread between its calls and waits, in pieces by the parts it is in."""
    own = [one for one in slices if one.track == PROGRAM]
    busy = sorted((one.begin_ns, one.end_ns) for one in own if one.kind != "part")
    parts = sorted((one for one in own if one.kind == "part"), key=lambda one: (one.begin_ns, -one.end_ns))
    if not own:
        return []
    edges = sorted({time for one in parts for time in (one.begin_ns, one.end_ns)})
    found: list[Slice] = []
    at = min(one.begin_ns for one in own)
    last = max(one.end_ns for one in own)
    for begin, end in [*busy, (last, last)]:
        if begin - at >= SHORTEST_NS:
            found += _pieces(at, begin, edges, parts)
        at = max(at, end)
    return found


def _expose(slices: Iterable[Slice]) -> None:
    """Put into each bucket what of it the program has waited for."""
    waits: dict[tuple[str, int], Slice] = {}
    for one in slices:
        if one.kind == "wait" and "step" in one.details:
            waits[one.details["communicator"], one.details["step"]] = one
    for one in slices:
        if one.kind == "bucket":
            wait = waits.get((one.details["communicator"], one.details["step"]))
            begin = max(one.begin_ns, wait.begin_ns) if wait is not None else one.end_ns
            if begin < one.end_ns:
                one.inside = [Slice(BUCKETS, "exposed", "exposed", begin, one.end_ns)]


def _pieces(begin: int, end: int, edges: Sequence[int], parts: Sequence[Slice]) -> Iterator[Slice]:
    cuts = [begin, *(one for one in edges if begin < one < end), end]
    for first, last in pairwise(cuts):
        if last - first >= SHORTEST_NS:
            around = [one.name for one in parts if one.begin_ns <= first and last <= one.end_ns]
            yield Slice(COMPUTATION, around[-1] if around else "between calls", "computation", first, last)


# --- rows ---------------------------------------------------------------------------------------------


def _laid_out(track: str, slices: Sequence[Slice]) -> Iterator[Row]:
    """The rows of a track.  The program's slices may enclose each other; others get rows of their own."""
    nests = track.startswith(PROGRAM)
    units = slices if not nests else [one for whole in slices for one in _flat(whole)]
    lanes: list[_Lane] = []
    for one in sorted(units, key=lambda one: (one.begin_ns, -one.end_ns)):
        lane = next((lane for lane in lanes if lane.has_room(one, nests)), None)
        if lane is None:
            lane = _Lane()
            lanes.append(lane)
        lane.slices += [one] if nests else _flat(one)
        lane.ends.append(one.end_ns)
    for number, lane in enumerate(lanes):
        yield Row(track, number, lane.slices)


@dataclass
class _Lane:
    """A row that is being made; `ends`: of slices that are not over, the innermost last."""

    slices: list[Slice] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def has_room(self, one: Slice, nests: bool) -> bool:
        while self.ends and self.ends[-1] <= one.begin_ns:
            self.ends.pop()
        return not self.ends or (nests and one.end_ns <= self.ends[-1])


def _flat(one: Slice) -> list[Slice]:
    return [one, *(part for inner in one.inside for part in _flat(inner))]
