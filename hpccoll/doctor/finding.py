"""The words of `hpccoll doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hpccoll.topology.hardware.document import Survey
from hpccoll.topology.hardware.model import Host
from hpccoll.topology.hardware.words import known

FINE, NOTE, WRONG, UNKNOWN, ABSENT = "fine", "note", "wrong", "unknown", "absent"


@dataclass(frozen=True)
class Finding:
    """What a check found at one place.

    Attributes:
        word: WRONG; NOTE: it may be meant so; UNKNOWN: it could not be looked at; ABSENT: there is nothing to
            look at; FINE.
        text: in words, with the place.
        evidence: what was read or measured, and where.
        cure: what to do, with the line to change.

    """

    word: str
    text: str
    evidence: str = ""
    cure: str = ""


@dataclass(frozen=True)
class Verdict:
    """What one check found everywhere; its word is the gravest of its findings'."""

    check: str
    findings: tuple[Finding, ...]

    @property
    def word(self) -> str:
        """WRONG, NOTE, UNKNOWN, FINE or ABSENT, the first that any finding has."""
        words = {one.word for one in self.findings}
        return next((word for word in (WRONG, NOTE, UNKNOWN, FINE) if word in words), ABSENT)

    def said(self, word: str) -> list[Finding]:
        """The findings of a word."""
        return [one for one in self.findings if one.word == word]


OfHost = Callable[[Host, Survey], Iterable[Finding]]
OfSurvey = Callable[[Survey], Iterable[Finding]]


def on_hosts(check: OfHost) -> OfSurvey:
    """A check of each host; what several hosts have alike is said once."""

    def run(survey: Survey) -> Iterator[Finding]:
        where: dict[Finding, list[str]] = {}
        for number, host in enumerate(survey.hosts):
            for one in check(host, survey):
                where.setdefault(one, []).append(host.name or f"host {number}")
        for one, names in where.items():
            if one.word == ABSENT or len(survey.hosts) == 1:
                yield one
            else:
                yield Finding(
                    one.word, f"{_names(names, len(survey.hosts))}: {one.text}", one.evidence, one.cure
                )

    return run


def judge(check: str, findings: Iterable[Finding], fine: str) -> Verdict:
    """The verdict of a check; `fine`: what it says where it has found nothing."""
    found = tuple(findings)
    return Verdict(check, found or (Finding(FINE, fine),))


def unknown(host: Host, what: str, consequence: str) -> Finding:
    """That a fact could not be read; it is not taken for fine."""
    return Finding(UNKNOWN, consequence, f"{what}: {known(host.why(what))}")


def _names(names: Sequence[str], of: int) -> str:
    if len(names) == of and of > 1:
        return f"all {of} hosts"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
