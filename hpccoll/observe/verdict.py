"""What the traces of a communicator's ranks say: who is stuck, in what, and because of whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hpccoll.observe import form
from hpccoll.observe.clocks import Clocks
from hpccoll.observe.link import lost_links
from hpccoll.observe.reading import Call, RankTrace
from hpccoll.observe.skew import Skew, find_skew
from hpccoll.runtime.fingerprint import EXCHANGING
from hpccoll.topology.notation import format_ranks


@dataclass(frozen=True)
class Finding:
    """One thing that was found: `kind`, the ranks at fault, and words.

    `kind`: missing, absent, dead, left, slow, mismatch, refused, link, stuck, failed, skew.
    `wrong`: something is stuck or has failed; else it is a remark.
    """

    kind: str
    ranks: tuple[int, ...]
    text: str
    wrong: bool = True


@dataclass(frozen=True)
class _Stuck:
    """Ranks that wait in one call, or have given it up: the lowest that any rank waits in."""

    sequence: int
    calls: dict[int, Call]
    waited_ns: int


class Job:
    """The ranks of one communicator, as far as there are traces.

    `now_ns`: when they were read, in ns since the epoch.  `stuck_after_s`: a live rank that waits for a
    shorter time is at work.
    """

    def __init__(self, traces: Sequence[RankTrace], now_ns: int, stuck_after_s: float) -> None:
        self.ranks = {one.rank: one for one in traces}
        self.size = traces[0].size
        self.name = traces[0].name or traces[0].communicator
        self.clocks = Clocks(traces)
        self.now_ns = now_ns
        self._stuck_after_ns = int(stuck_after_s * 1e9)

    @cached_property
    def processes(self) -> dict[int, str]:
        """alive, gone or unknown, by rank."""
        return {rank: one.process() for rank, one in self.ranks.items()}

    @property
    def _all_gone(self) -> bool:
        return all(state == "gone" for state in self.processes.values())

    @cached_property
    def skew(self) -> Skew | None:
        return find_skew(self.ranks, self.clocks)

    def findings(self) -> list[Finding]:
        """All that is to be said, the gravest first."""
        found = self._differing()
        told = {rank for one in found for rank in one.ranks}
        stuck = self._stuck()
        if stuck is not None and not found:
            found += self._culprits(stuck)
            told = {rank for one in found for rank in one.ranks}
        found += self._killed(told | set(stuck.calls if stuck is not None else ()))
        found += self._ended_by_errors() if not found else []
        skew = self.skew
        if skew is not None and not any(one.kind == "slow" for one in found):
            found.append(Finding("skew", (skew.rank,), f"{skew}.", wrong=False))
        return found

    # --- calls that differ ----------------------------------------------------------------------

    def _differing(self) -> list[Finding]:
        """The last call in which the ranks called different things, or one was refused."""
        by_call: dict[int, dict[int, Call]] = defaultdict(dict)
        for rank, trace in self.ranks.items():
            for call in trace.calls.values():
                if call.called is not None and not call.called.form & EXCHANGING:
                    by_call[call.sequence][rank] = call
        for sequence in sorted(by_call, reverse=True):
            calls = by_call[sequence]
            if any(call.state in (form.AGREED, form.MOVING, form.DONE) for call in calls.values()):
                continue
            if any(call.called is not None and call.called.refused for call in calls.values()):
                return [self._refused(sequence, calls)]
            fields = _differences(calls)
            if fields:
                return [self._mismatch(sequence, calls, fields)]
        return []

    def _refused(self, sequence: int, calls: Mapping[int, Call]) -> Finding:
        ranks = tuple(rank for rank, call in calls.items() if call.called is not None and call.called.refused)
        words = "; ".join(f"rank {rank}{_at(calls[rank])}: {calls[rank].error}" for rank in ranks[:4])
        text = f"Call #{sequence} was refused for its arguments on {format_ranks(ranks)}. {words}."
        return Finding("refused", ranks, text)

    def _mismatch(self, sequence: int, calls: Mapping[int, Call], fields: Mapping[str, str]) -> Finding:
        sides = _grouped({rank: f"{_what(call)}{_at(call)}" for rank, call in calls.items()})
        fewest = min(sides.values(), key=len)
        ranks = tuple(fewest) if 2 * len(fewest) < len(calls) else tuple(calls)
        said = "; ".join(f"{format_ranks(who)}: {what}" for what, who in sides.items())
        different = "; ".join(f"{name} ({values})" for name, values in fields.items())
        text = f"The ranks call different things in call #{sequence}: {said}. They differ in {different}."
        return Finding("mismatch", ranks, text + self._divergence(ranks, sequence))

    # --- calls that do not end ------------------------------------------------------------------

    def _stuck(self) -> _Stuck | None:
        waiting: dict[int, tuple[Call, int]] = {}
        for rank, trace in self.ranks.items():
            for call in trace.calls.values():
                waited = self._waited_ns(rank, call)
                if waited is not None:
                    waiting[rank] = call, waited
                    break
        if not waiting:
            return None
        first = min(call.sequence for call, _ in waiting.values())
        calls = {rank: call for rank, (call, _) in waiting.items() if call.sequence == first}
        longest = max(waited for call, waited in waiting.values() if call.sequence == first)
        return _Stuck(first, calls, longest)

    def _waited_ns(self, rank: int, call: Call) -> int | None:
        """How long a rank has been in a call that does not end; None where it ended, or is young."""
        if call.state == form.FAILED:
            return call.ended_ns - call.entered_ns
        if not call.waits:
            return None
        waited = self.now_ns - self.clocks.of(self.ranks[rank], call.entered_ns)
        return waited if waited >= self._stuck_after_ns or self.processes[rank] == "gone" else None

    def _culprits(self, stuck: _Stuck) -> list[Finding]:
        """Because of whom a call does not end."""
        behind = [rank for rank in range(self.size) if self._last(rank) < stuck.sequence]
        gone = [rank for rank, state in self.processes.items() if state == "gone"]
        died = [
            rank for rank in stuck.calls if rank in gone and stuck.calls[rank].waits and not self._all_gone
        ]
        head = self._who_waits(stuck, {*died, *behind})
        if died or behind:
            causes = [self._inside_when_killed(rank, stuck) for rank in died]
            causes += [self._behind(rank, stuck) for rank in behind[:8]]
            gravest = [one for one in causes if one.kind == "dead"] or causes
            first = gravest[0]
            others = [Finding(one.kind, one.ranks, one.text) for one in causes if one is not first]
            return [Finding(first.kind, first.ranks, f"{head} {first.text}"), *others]
        links = lost_links(self.ranks, stuck.calls)
        if links is not None:
            return [Finding("link", links.ranks, f"{head} {links.text}")]
        where = "; ".join(f"rank {rank}: {_doing(call)}" for rank, call in list(stuck.calls.items())[:8])
        if self._all_gone:
            text = f"All processes are gone, and ended in this call: which first is not known. {where}."
            return [Finding("dead", tuple(gone), f"{head} {text}")]
        return [Finding("stuck", tuple(stuck.calls), f"{head} All ranks have come to it. {where}.")]

    def _who_waits(self, stuck: _Stuck, culprits: set[int]) -> str:
        calls = {rank: call for rank, call in stuck.calls.items() if rank not in culprits} or stuck.calls
        sides = _grouped({rank: f"{_what(call)}{_at(call)}" for rank, call in calls.items()})
        what, who = max(sides.items(), key=lambda one: len(one[1]))
        if all(call.state == form.FAILED for call in calls.values()):
            have = f"gave up after {stuck.waited_ns / 1e9:.1f} s in"
        elif all(self.processes[rank] == "gone" for rank in calls):
            have = "ended in"  # nobody knows when
        else:
            have = f"{'has' if len(who) == 1 else 'have'} waited {stuck.waited_ns / 1e9:.1f} s in"
        return f"Call #{stuck.sequence} does not end: {format_ranks(who)} {have} {what}."

    def _inside_when_killed(self, rank: int, stuck: _Stuck) -> Finding:
        trace, call = self.ranks[rank], stuck.calls[rank]
        who = f"The process of rank {rank} ({trace.pid} on {trace.host})"
        text = f"{who} is gone: it ended in this call{_at(call)}."
        return Finding("dead", (rank,), text)

    def _behind(self, rank: int, stuck: _Stuck) -> Finding:
        """Why a rank has not come to a call."""
        trace = self.ranks.get(rank)
        if trace is None:
            text = (
                f"There is no trace of rank {rank}: it ended well before the others, its host's files are "
                "elsewhere, or it never used this communicator."
            )
            return Finding("absent", (rank,), text)
        process = self.processes[rank]
        did = f"Rank {rank} has not made call #{stuck.sequence}: {self._last_words(trace)}"
        who = f"process {trace.pid} on {trace.host}"
        more = self._divergence((rank,), stuck.sequence)
        if trace.state == form.LEFT:
            return Finding("left", (rank,), f"{did}; then its program came to its end ({who}).{more}")
        if process == "gone" and self._all_gone:
            return Finding("missing", (rank,), f"{did}; its process is gone, as all are ({who}).{more}")
        if process == "gone":
            return Finding("dead", (rank,), f"{did}; its process is gone ({who}).{more}")
        if trace.error:
            return Finding("failed", (rank,), f"{did}; its communicator is broken: {trace.error}.")
        if self.skew is not None and self.skew.rank == rank:
            return Finding(
                "slow", (rank,), f"{did}; its {who} is {_at_work(process)}. It is slow: {self.skew}."
            )
        return Finding("missing", (rank,), f"{did}; its {who} is {_at_work(process)}.{more}")

    def _last_words(self, trace: RankTrace) -> str:
        call = trace.last
        if call is None:
            return "it has made no call"
        if call.state == form.FAILED or call.waits:
            return f"it is in {_what(call)} #{call.sequence}{_at(call)}"
        words = f"its last call was {_what(call)} #{call.sequence}{_at(call)}"
        if self.processes[trace.rank] == "gone":
            return words
        ago = (self.now_ns - self.clocks.of(trace, call.ended_ns)) / 1e9
        return f"{words}, over for {ago:.1f} s"

    def _last(self, rank: int) -> int:
        return max(self.ranks[rank].calls, default=-1) if rank in self.ranks else -1

    def _divergence(self, ranks: Sequence[int], until: int) -> str:
        """Where a rank began to call from elsewhere than the others, if they called from the same before."""
        own = next((self.ranks[rank] for rank in ranks if rank in self.ranks), None)
        other = next((one for rank, one in self.ranks.items() if rank not in ranks), None)
        if own is None or other is None:
            return ""
        common = [one for one in sorted(set(own.calls) & set(other.calls)) if one <= until]
        places = [(one, own.calls[one].place, other.calls[one].place) for one in common]
        sequence, mine, theirs = next((one for one in places if one[1] != one[2]), (-1, None, None))
        if mine is None or theirs is None or sequence == common[0]:
            return ""
        return (
            f" Up to call #{sequence - 1} rank {own.rank} called from the same lines as rank {other.rank}; "
            f"call #{sequence} is at {theirs} there and at {mine} here: did it leave one out?"
        )

    # --- what else ------------------------------------------------------------------------------

    def _killed(self, told: set[int]) -> list[Finding]:
        """Processes that are gone without having come to their end, and were in no call."""
        gone = [
            rank
            for rank, state in self.processes.items()
            if state == "gone" and self.ranks[rank].state == form.AT_WORK and rank not in told
        ]
        if not gone:
            return []
        words = self._last_words(self.ranks[gone[0]])
        text = (
            f"The processes of {format_ranks(gone)} are gone, and were in no call. Rank {gone[0]}: {words}."
        )
        return [Finding("dead", tuple(gone), text)]

    def _ended_by_errors(self) -> list[Finding]:
        broken = {rank: one.error for rank, one in self.ranks.items() if one.error}
        if not broken:
            return []
        said = "; ".join(f"{format_ranks(who)}: {what}" for what, who in _grouped(broken).items())
        return [Finding("failed", tuple(broken), f"The communicator was given up: {said}.")]


def judge(traces: Sequence[RankTrace], now_ns: int, stuck_after_s: float) -> list[tuple[Job, list[Finding]]]:
    """Every communicator with what was found, in the order in which they were made."""
    jobs: dict[str, list[RankTrace]] = defaultdict(list)
    for trace in traces:
        jobs[trace.communicator].append(trace)
    all_jobs = [Job(ranks, now_ns, stuck_after_s) for ranks in jobs.values()]
    return [(job, job.findings()) for job in all_jobs]


def _differences(calls: Mapping[int, Call]) -> dict[str, str]:
    """Which fields the ranks have different values of, and who has which."""
    fields = {rank: call.called.fields() for rank, call in calls.items() if call.called is not None}
    found = {}
    for name in next(iter(fields.values()), {}):
        values = _grouped({rank: one[name] for rank, one in fields.items()})
        if len(values) > 1:
            found[name] = ", ".join(f"{value} on {format_ranks(who)}" for value, who in values.items())
    return found


def _grouped(words: Mapping[int, str]) -> dict[str, list[int]]:
    """Ranks by what is said of them."""
    by_words: dict[str, list[int]] = defaultdict(list)
    for rank, one in sorted(words.items()):
        by_words[one].append(rank)
    return by_words


def _what(call: Call) -> str:
    """What is called, without the number."""
    if call.called is None or call.collective == "barrier":
        return call.collective
    fields = call.called.fields()
    words = [f"{fields['count']} x {fields['dtype']}"] if fields["dtype"] else []
    words += [fields["operator"]] if "reduce" in call.collective or "scan" in call.collective else []
    words += [f"root {fields['root']}"] if call.collective in ROOTED else []
    return fields["collective"] + (f" ({', '.join(words)})" if words else "")


ROOTED = ("broadcast", "reduce", "gather", "scatter")


def _at(call: Call) -> str:
    return "" if call.place is None else f" at {call.place}"


def _doing(call: Call) -> str:
    """What a rank waits for in a call."""
    words = [form.STATES[call.state]]
    if call.step >= 0:
        words.append(f"step {call.step + 1} of {call.steps} of plan {call.plan}")
    if call.chunk >= 0 and call.chunks > 1:
        words.append(f"chunk {call.chunk + 1} of {call.chunks}")
    if call.bytes_total:
        words.append(f"{call.bytes_done} of {call.bytes_total} bytes moved")
    if call.peer >= 0:
        words.append(f"waiting for rank {call.peer}")
    elif call.family:
        words.append(f"waiting in its group {call.family}")
    return ", ".join(words)


_at_work: Callable[[str], str] = {"alive": "alive", "unknown": "on another machine than this"}.__getitem__
