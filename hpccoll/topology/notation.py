"""How a layout is written: ``"3+1"``, ``"4x8"``, ``"cyclic:2+2"``, ``"nodes:0,0,1,0"``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain, groupby

from hpccoll.errors import UsageError

MAX_RANKS = 1 << 22  # a slip such as "99999x99999" shall be an error, not an exhausted memory

ACCEPTED = (
    'accepted are "3+1" (ranks 0-2 on the first node, rank 3 on the second), "4x8" (4 nodes of 8), '
    '"cyclic:2+2" (ranks dealt to the nodes in turn) and "nodes:0,0,1,0" (the node of each rank)'
)

_TERM = re.compile(r"(?:([0-9]{1,9})\s*x\s*)?([0-9]{1,9})")
_LABEL = re.compile(r"[0-9]{1,9}")


def parse_nodes(text: str) -> tuple[int, ...]:
    """The node label of each rank that a text stands for; equal labels share a node.

    The grammar is that of `Layout.parse`, which also raises what this raises.
    """
    if not isinstance(text, str):
        raise UsageError(f"layout must be a text, not {type(text).__name__}: {ACCEPTED}")
    form, colon, rest = text.strip().lower().partition(":")
    if not colon:
        return _deal_in_blocks(_parse_counts(text, form))
    if form.rstrip() == "cyclic":
        return _deal_in_turn(_parse_counts(text, rest))
    if form.rstrip() == "nodes":
        return _parse_labels(text, rest)
    raise _error(text, f'"{_shortened(form)}:" is not a known form')


def format_nodes(node_of: tuple[int, ...], counts: Sequence[int]) -> str:
    """The shortest text that `parse_nodes` turns back into `node_of` (`counts`: ranks on each node)."""
    if node_of == _deal_in_blocks(counts):
        return _format_counts(counts)
    if node_of == _deal_in_turn(counts):
        return "cyclic:" + _format_counts(counts)
    return "nodes:" + ",".join(map(str, node_of))


def format_ranks(ranks: Iterable[int], limit: int = 16) -> str:
    """Ranks as a person writes them: "rank 3", "ranks 0-2, 5"; at most `limit` runs, then how many more."""
    ordered = sorted(ranks)
    # Rank minus place is constant along a run of consecutive ranks.
    grouped = groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])
    runs = [[rank for _, rank in run] for _, run in grouped]
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs[:limit]]
    rest = sum(map(len, runs[limit:]))
    word = "rank" if len(ordered) == 1 else "ranks"
    return f"{word} {', '.join(shown)}" + (f" and {rest} more" if rest else "")


def _parse_counts(text: str, rest: str) -> list[int]:
    counts: list[int] = []
    size = 0
    for term in map(str.strip, rest.split("+")):
        match = _TERM.fullmatch(term)
        if match is None:
            raise _error(text, f'"{_shortened(term)}" is not a number of ranks')
        nodes, count = int(match[1] or 1), int(match[2])
        if nodes == 0 or count == 0:
            raise _error(text, f'"{term}" makes a node without ranks or no node at all')
        size += nodes * count
        _check_size(text, size)
        counts += [count] * nodes
    return counts


def _parse_labels(text: str, rest: str) -> tuple[int, ...]:
    labels = [label.strip() for label in rest.split(",")]
    _check_size(text, len(labels))
    for label in labels:
        if _LABEL.fullmatch(label) is None:
            raise _error(text, f'"{_shortened(label)}" is not the number of a node')
    return tuple(map(int, labels))


def _check_size(text: str, size: int) -> None:
    if size > MAX_RANKS:
        raise _error(text, f"it has more than {MAX_RANKS} ranks")


def _deal_in_blocks(counts: Sequence[int]) -> tuple[int, ...]:
    return tuple(chain.from_iterable([node] * count for node, count in enumerate(counts)))


def _deal_in_turn(counts: Sequence[int]) -> tuple[int, ...]:
    dealt: list[int] = []
    with_room = list(range(len(counts)))
    turn = 0
    while with_room:
        dealt += with_room
        turn += 1
        with_room = [node for node in with_room if counts[node] > turn]
    return tuple(dealt)


def _format_counts(counts: Sequence[int]) -> str:
    terms: list[str] = []
    for count, run in groupby(counts):
        times = len(list(run))
        terms += [f"{times}x{count}"] if times >= 3 else [str(count)] * times
    return "+".join(terms)


def _error(text: str, reason: str) -> UsageError:
    return UsageError(f'layout "{_shortened(text)}": {reason}; {ACCEPTED}')


def _shortened(text: str, limit: int = 100) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


def sides_of(words: Iterable[str]) -> dict[str, list[int]]:
    """Which ranks say the same, in the order in which it is first said; `words` are in rank order."""
    sides: dict[str, list[int]] = {}
    for rank, text in enumerate(words):
        sides.setdefault(text, []).append(rank)
    return sides
