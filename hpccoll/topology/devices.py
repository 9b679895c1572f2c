"""Which GPU each rank takes: by its place among the ranks of its node in the world.

Never by the rank itself, which is wrong on unequal nodes and for ranks dealt in turn, and never by the
rank in a part of the world, where every part has its own rank 0.  Pure: it knows layouts and names, but no
driver.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from hpccoll.errors import UsageError
from hpccoll.topology.layout import Layout

__all__ = ["choose_devices", "choose_visible_devices", "shared_devices"]


def choose_devices(
    layout: Layout, devices_per_node: int | Sequence[int], ranks: Sequence[int] | None = None
) -> tuple[int | None, ...]:
    """The device ordinal of each rank where every rank of a node sees all of the node's devices.

    The ranks of a node take its devices in turn; with more ranks than devices they share.

    Args:
        layout: of the world, also when `ranks` are only some of it.
        devices_per_node: one number for all nodes, or one for each.
        ranks: world ranks to answer for, such as those of a sub-communicator in its order.  Unset: all.

    Returns:
        One ordinal for each of `ranks`; None on a node without devices.

    Raises:
        UsageError: a negative number, not one number per node, or a rank that is not in the world.

    """
    counts = _per_node(layout, devices_per_node)
    chosen = [
        layout.local_rank(rank) % counts[layout.node(rank)] if counts[layout.node(rank)] else None
        for rank in range(layout.size)
    ]
    return tuple(
        chosen[_world_rank(layout, rank)] for rank in (range(layout.size) if ranks is None else ranks)
    )


def choose_visible_devices(layout: Layout, visible: Sequence[Sequence[Hashable]]) -> tuple[int | None, ...]:
    """The device ordinal of each rank from what each of them sees.

    Launchers hide devices: each task may see one card, which it then knows as number 0.  Ranks that see the
    fewest devices choose first, then in rank order; each takes the first of those that the fewest others
    of its node have.  Where all see all, that is in turn.

    Args:
        layout: of the world.
        visible: for each rank the identities (UUID or PCI address) of its devices in the order of their
            ordinals.

    Returns:
        One ordinal for each rank, an index into its own `visible`; None where it sees no device.

    Raises:
        UsageError: not one list per rank, or a device twice in one list.

    """
    if len(visible) != layout.size:
        raise UsageError(
            f"visible has {len(visible)} lists of devices: must be one for each of {layout.size} ranks"
        )
    users: Counter[tuple[int, Hashable]] = Counter()
    chosen: list[int | None] = [None] * layout.size
    for rank in sorted(range(layout.size), key=lambda rank: len(visible[rank])):
        seen, node = visible[rank], layout.node(rank)
        if len(set(seen)) != len(seen):
            raise UsageError(f"rank {rank} sees a device twice: {', '.join(map(str, seen))}")
        if seen:
            best = min(range(len(seen)), key=lambda place: users[node, seen[place]])
            users[node, seen[best]] += 1
            chosen[rank] = best
    return tuple(chosen)


def shared_devices(
    layout: Layout, identities: Sequence[Hashable | None]
) -> tuple[tuple[Hashable, tuple[int, ...]], ...]:
    """The devices that more than one rank has chosen, each with its ranks.

    `identities`: the UUID or PCI address of the device of each rank, None where it has none.  Equal PCI
    addresses on two nodes are two devices.  Raises: UsageError when it is not one per rank.
    """
    if len(identities) != layout.size:
        raise UsageError(
            f"identities has {len(identities)} entries: must be one for each of {layout.size} ranks"
        )
    users: defaultdict[tuple[int, Hashable], list[int]] = defaultdict(list)
    for rank, identity in enumerate(identities):
        if identity is not None:
            users[layout.node(rank), identity].append(rank)
    return tuple((identity, tuple(ranks)) for (_, identity), ranks in users.items() if len(ranks) > 1)


def _per_node(layout: Layout, devices_per_node: int | Sequence[int]) -> Sequence[int]:
    counts = [devices_per_node] * layout.node_count if isinstance(devices_per_node, int) else devices_per_node
    if len(counts) != layout.node_count:
        raise UsageError(
            f"devices_per_node has {len(counts)} numbers: must be one for each of {layout.node_count} nodes"
        )
    if min(counts) < 0:
        raise UsageError(f"devices_per_node is {devices_per_node!r}: must not be negative")
    return counts


def _world_rank(layout: Layout, rank: int) -> int:
    if not 0 <= rank < layout.size:
        raise UsageError(f"rank {rank} is not in the world of {layout.size} ranks")
    return rank
