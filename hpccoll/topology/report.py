"""A machine as text for people and as a dictionary for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpccoll.topology.layout import FAMILIES, Layout, Membership
from hpccoll.topology.machine import Machine
from hpccoll.topology.notation import format_ranks

_MAX_NODES = 64
_MAX_GROUPS = 8
_MAX_MEMBERS = 16


def format_tree(machine: Machine, *, ranks: bool = False) -> str:
    """The nodes as a tree, then groups, levels and sources.

    ::

        4 ranks: 2 nodes (3+1)
        ├── node 0  vm  ranks 0-2
        └── node 1  vm  rank 3

    Args:
        machine: what to show.
        ranks: a line for every rank, instead of at most 64 nodes with their ranks summed up.

    """
    sections = [
        _tree(machine, ranks),
        _groups(machine),
        *_domains(machine),
        _levels(machine),
        _sources(machine),
        _software(machine),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections)


def machine_as_dict(machine: Machine) -> dict[str, Any]:
    """All of a machine in what JSON knows; the same on every rank.

    Keys: size, layout, node_count, counts, is_uniform, is_contiguous, nodes (index, host, ranks), ranks
    (rank, world_rank, node, local_rank, groups: the index of its group by family, null for none), groups
    (by family: lists of ranks), device_groups (those between NVLink domains), levels, sources, shares_memory,
    mpi, native.
    """
    layout = machine.layout.by_node
    return {
        "size": layout.size,
        "layout": str(layout),
        "node_count": layout.node_count,
        "counts": list(layout.counts),
        "is_uniform": layout.is_uniform,
        "is_contiguous": layout.is_contiguous,
        "nodes": [
            {"node": node, "host": _host_as_dict(machine, node), "ranks": list(ranks)}
            for node, ranks in enumerate(layout.nodes)
        ],
        "ranks": [_rank_as_dict(machine, rank) for rank in range(layout.size)],
        "groups": {
            name: [list(group) for group in _layout_of(machine, name).groups(name)] for name in FAMILIES
        },
        "device_groups": {
            name: [list(group) for group in machine.layout.by_domain.groups(name)]
            for name in ("LEADERS", "RAIL")
        },
        "levels": [vars(level) for level in machine.levels],
        "sources": [
            {**vars(source), "layout": None if source.layout is None else str(source.layout)}
            for source in machine.sources
        ],
        "shares_memory": machine.shares_memory,
        "mpi": {"library": machine.mpi_library, "thread_level": machine.thread_level},
        "native": machine.native,
    }


def _host_as_dict(machine: Machine, node: int) -> dict[str, Any]:
    facts = machine.hosts[node]
    return {**vars(facts), "notes": list(facts.notes)}


def _layout_of(machine: Machine, family: str) -> Layout:
    """Where groups of a family are as arrays on hosts meet in them; NVLINK is for those on devices alone."""
    return machine.layout if family == "NVLINK" else machine.layout.by_node


def _rank_as_dict(machine: Machine, rank: int) -> dict[str, Any]:
    layout, world_rank = machine.layout, machine.world_ranks[rank]
    return {
        "rank": rank,
        "world_rank": None if world_rank < 0 else world_rank,
        "node": layout.node(rank),
        "local_rank": layout.local_rank(rank),
        "groups": {name: _layout_of(machine, name).group_index(name, rank) for name in FAMILIES},
    }


def _tree(machine: Machine, ranks: bool) -> list[str]:
    layout = machine.layout
    size = f"{layout.size} {'rank' if layout.size == 1 else 'ranks'}"
    lines = [size if layout.node_count == 1 else f"{size}: {layout.describe()}"]
    shown = layout.node_count if ranks else min(layout.node_count, _MAX_NODES)
    for node in range(shown):
        last = node == layout.node_count - 1
        members = layout.nodes[node]
        lines.append(
            f"{'└──' if last else '├──'} node {node}  {_host(machine, node)}  {format_ranks(members)}"
        )
        if ranks:
            lines += _rank_lines(machine, members, "    " if last else "│   ")
    if shown < layout.node_count:
        lines.append(f"└── ... {layout.node_count - shown} more nodes")
    return lines


def _rank_lines(machine: Machine, members: tuple[int, ...], indent: str) -> Iterator[str]:
    renumbered = machine.world_ranks != tuple(range(machine.layout.size))
    for rank in members:
        branch = "└──" if rank == members[-1] else "├──"
        world_rank = machine.world_ranks[rank]
        known = f"world rank {world_rank}" if world_rank >= 0 else "not in MPI.COMM_WORLD"
        roles = [f"local rank {machine.layout.local_rank(rank)}"] + [known] * renumbered
        if machine.layout.by_node.membership("LEADERS", rank) is Membership.MEMBER:
            roles.append("leader")
        rail = machine.layout.by_node.group_index("RAIL", rank)
        if rail is not None and machine.node_count > 1:
            roles.append(f"rail {rail}")
        yield f"{indent}{branch} rank {rank}  {', '.join(roles)}"


def _host(machine: Machine, node: int) -> str:
    """The host name; with the boot id's beginning where another host has the same name."""
    facts = machine.hosts[node]
    namesakes = {other.boot_id for other in machine.hosts if other.host_name == facts.host_name}
    return f"{facts.host_name} (boot {facts.boot_id[:8]})" if len(namesakes) > 1 else facts.host_name


def _groups(machine: Machine) -> list[str]:
    return ["groups"] + [f"  {name:<8} {_group_line(machine, name)}" for name in FAMILIES]


def _group_line(machine: Machine, name: str) -> str:
    groups = _layout_of(machine, name).groups(name)
    return _group_words(groups) if groups else "does not exist: the nodes are not equally large"


def _domains(machine: Machine) -> Iterator[list[str]]:
    """The groups of arrays on devices, where an NVLink fabric makes them others than the nodes."""
    layout = machine.layout
    if layout.domain_of is None:
        return
    lines = ["NVLink domains, in the place of nodes for arrays on devices"]
    for number, members in enumerate(layout.domains[:_MAX_NODES]):
        nodes = len({layout.node_of[rank] for rank in members})
        words = f"{len(members)} rank{'s' * (len(members) > 1)} on {nodes} node{'s' * (nodes > 1)}"
        lines.append(f"  domain {number}  {words}: {format_ranks(members)}")
    if len(layout.domains) > _MAX_NODES:
        lines.append(f"  ... {len(layout.domains) - _MAX_NODES} more")
    if len(layout.domains) > 1:
        rails = layout.groups("RAIL")
        between = _group_words(rails) if rails else "do not exist: the domains are not equally large"
        lines.append(f"  rails between them {between}")
    yield lines


def _group_words(groups: Sequence[tuple[int, ...]]) -> str:
    shown = [_members(group) for group in groups[:_MAX_GROUPS]]
    more = len(groups) - len(shown)
    return " ".join(shown) + (f" ... {more} more groups" if more else "")


def _members(group: tuple[int, ...]) -> str:
    if len(group) <= _MAX_MEMBERS:
        return f"({' '.join(map(str, group))})"
    return f"({' '.join(map(str, group[: _MAX_MEMBERS - 1]))} ... {group[-1]})"


def _levels(machine: Machine) -> list[str]:
    return ["levels, innermost first"] + [
        f"  {level.name:<8} {level.family:<8} {level.carrier}" for level in machine.levels
    ]


def _sources(machine: Machine) -> list[str]:
    lines = ["who shares a node, by (* decides)"]
    for source in machine.sources:
        answer = "" if source.layout is None else f"{source.layout.describe()}: "
        lines.append(f"{'*' if source.decides else ' ':>2} {source.name:<20} {answer}{source.text}")
    for node, facts in enumerate(machine.hosts[:_MAX_NODES]):
        lines += [f"   node {node}: {note}" for note in facts.notes]
    return lines


def _software(machine: Machine) -> list[str]:
    native = "used by every rank" if machine.native else "not used by every rank"
    return [
        f"MPI        {machine.mpi_library}",
        f"threads    thread level {machine.thread_level}: {_progress(machine.thread_level)}",
        f"extension  {native}",
    ]


def _progress(thread_level: str) -> str:
    """What becomes of started calls while their caller computes."""
    if "multiple" in thread_level.lower():
        return "started calls are moved on by a worker while their callers compute"
    return "no worker may call MPI; started calls move on only in Test, Wait and other calls of hpccoll"
