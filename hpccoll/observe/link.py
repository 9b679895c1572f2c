"""Links between nodes that lose messages, from who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpccoll.observe.reading import Call, RankTrace


@dataclass(frozen=True)
class LostLinks:
    """The ranks at both ends, and words."""

    ranks: tuple[int, ...]
    text: str


def lost_links(ranks: Mapping[int, RankTrace], stuck: Mapping[int, Call]) -> LostLinks | None:
    """The links that must have lost a message, where all ranks have come to a call and it does not end.

    Two signs: a rank waits for another one that is through with the call; or ranks wait in a circle.
    """
    awaited = {rank: call.peer for rank, call in stuck.items() if call.peer in ranks and call.peer != rank}
    lost = [(rank, peer) for rank, peer in awaited.items() if peer not in stuck]
    how = "has sent all it had to send"
    if not lost:
        lost, how = _circle(awaited), "waits, too"
    lost = [(rank, peer) for rank, peer in lost if _far(ranks[rank], ranks[peer])]
    if not lost:
        return None
    words = [
        f"rank {rank} on {_node(ranks[rank])} waits for a message from rank {peer} on {_node(ranks[peer])}, "
        f"which {how}"
        for rank, peer in lost[:4]
    ]
    nodes = sorted({_node(ranks[one]) for pair in lost for one in pair})
    text = f"{'; '.join(words)}: the link between {' and '.join(nodes)} does not bring messages."
    return LostLinks(tuple(sorted({one for pair in lost for one in pair})), text[0].upper() + text[1:])


def _circle(awaited: Mapping[int, int]) -> list[tuple[int, int]]:
    """Ranks that wait for each other, as pairs of one and who it waits for."""
    for begin in awaited:
        path = [begin]
        while path[-1] in awaited and awaited[path[-1]] not in path:
            path.append(awaited[path[-1]])
        if awaited.get(path[-1]) in path:
            circle = path[path.index(awaited[path[-1]]) :]
            return [(one, awaited[one]) for one in circle]
    return []


def _far(one: RankTrace, other: RankTrace) -> bool:
    return one.node != other.node


def _node(trace: RankTrace) -> str:
    return f"node {trace.node} ({trace.host})"
