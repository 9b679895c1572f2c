"""One verdict on a test from what each of its ranks reported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.support.record import Event

__all__ = ["BAD", "Case", "Trial", "Verdict", "together"]

BAD = ("failed", "error")


@dataclass(frozen=True)
class Case:
    """A collected test; `ranks` are the counts at which it runs, () = without MPI."""

    id: str
    file: str
    ranks: tuple[int, ...]
    timeout_s: float | None

    @staticmethod
    def from_event(fields: Event) -> Case:
        """From an entry of a `collected` event."""
        return Case(fields["id"], fields["file"], tuple(fields["ranks"]), fields["timeout_s"])


@dataclass(frozen=True)
class Verdict:
    """What a test came to at `ranks` ranks (0 = without MPI).

    `outcome` is one of pytest's words. `text` tells of a bad one, `reason` of a skip; `seconds` are those of
    the slowest rank.
    """

    id: str
    ranks: int
    outcome: str
    seconds: float = 0.0
    text: str = ""
    reason: str = ""

    @property
    def name(self) -> str:
        """The node id with the number of ranks."""
        return (
            f"{self.id} [{self.ranks} ranks]"
            if self.ranks > 1
            else f"{self.id} [1 rank]"
            if self.ranks
            else self.id
        )


class Trial:
    """The reports of all ranks on one test."""

    def __init__(self, case: Case, ranks: int) -> None:
        self.case = case
        self.ranks = ranks
        self.finished = False
        self._reports: list[list[Event]] = [[] for _ in range(max(ranks, 1))]

    def add(self, rank: int, event: Event) -> None:
        """Take a `report` or `finish` event of a rank.

        A rank writes `finish` when it has seen that all others have ended the test, so one is enough.
        """
        if event["event"] == "finish":
            self.finished = True
        else:
            self._reports[rank].append(event)

    @property
    def settled(self) -> bool:
        """Whether every rank has told all and all went on together."""
        return self.finished and not self.lost

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks whose outcome is missing."""
        return tuple(
            rank
            for rank, reports in enumerate(self._reports)
            if not any(r["when"] == "teardown" for r in reports)
        )

    def verdict(self, remarks: Sequence[str] | None = None) -> Verdict:
        """Settle it; `remarks`, one a rank, tell what is known of ranks that left no outcome."""
        outcomes = [_outcome(reports) for reports in self._reports]
        seconds = max(sum(r["seconds"] for r in reports) for reports in self._reports)
        reason = next((r["reason"] for reports in self._reports for r in reports if r["reason"]), "")
        texts = [
            self._lost_text(rank, remarks) if outcome == "lost" else _text(self._reports[rank])
            for rank, outcome in enumerate(outcomes)
        ]
        bad = {"failed" if outcome == "lost" else outcome for outcome in outcomes} & set(BAD)
        if not bad and not self.finished:
            bad = {"failed"}
            texts = [remarks[rank] if remarks else "" for rank in range(len(outcomes))]
        elif not bad and len(set(outcomes)) > 1:
            bad = {"failed"}
            texts = [f"the ranks disagree; here: {outcome}" for outcome in outcomes]
        if not bad:
            return Verdict(self.case.id, self.ranks, outcomes[0], seconds, reason=reason)
        outcome = "failed" if "failed" in bad else "error"
        return Verdict(self.case.id, self.ranks, outcome, seconds, together(texts, self.ranks))

    def _lost_text(self, rank: int, remarks: Sequence[str] | None) -> str:
        reports = self._reports[rank]
        stage = reports[-1]["when"] if reports else "start"
        head = f"no outcome: this process ended, or was ended, after the {stage} of the test"
        return "\n".join(filter(None, [_text(reports), head, remarks[rank] if remarks else ""]))


def _outcome(reports: Sequence[Event]) -> str:
    if not any(r["when"] == "teardown" for r in reports):
        return "lost"
    for report in reports:
        if report["outcome"] == "failed":
            return "failed" if report["when"] == "call" else "error"
    return next((r["outcome"] for r in reports if r["outcome"] != "passed"), "passed")


def _text(reports: Iterable[Event]) -> str:
    return "\n".join(r["text"] for r in reports if r["text"])


def together(texts: Sequence[str], ranks: int) -> str:
    """The text of each rank, once for all that say the same; without heading where there are no ranks."""
    by_text: dict[str, list[str]] = {}
    for rank, text in enumerate(texts):
        if text.strip():
            by_text.setdefault(text.rstrip(), []).append(str(rank))
    if not ranks:
        return "\n".join(by_text)
    return "\n\n".join(f"rank {', '.join(who)} of {ranks}:\n{text}" for text, who in by_text.items())
