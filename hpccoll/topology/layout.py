"""Which rank sits on which node, and the named groups of ranks that follow from it.

A `Layout` is plain data: it is known before any message is sent, it is the same on every rank, and
plans, tests and the command line build it from a text such as ``"3+1"``.  Ranks of a node need not be
consecutive and nodes need not be equally large.

The groups, for ``cyclic:2+2`` (ranks 0 and 2 on node 0, ranks 1 and 3 on node 1)::

    WORLD    (0 1 2 3)        everybody
    NODE     (0 2) (1 3)      those that share memory
    NVLINK   (0 2) (1 3)      those on one NVLink fabric; the nodes where no fabric is known
    LEADERS  (0 1)            the first rank of each NVLink domain
    RAIL     (0 1) (2 3)      the same place in every domain; only where all domains are equally large
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from operator import index

from hpccoll.errors import UsageError
from hpccoll.topology import notation

FAMILIES = ("WORLD", "NODE", "NVLINK", "LEADERS", "RAIL")

Groups = tuple[tuple[int, ...], ...]


class Membership(Enum):
    """What a group is to one rank."""

    NOT_EXISTING = "not existing"
    NOT_MEMBER = "not a member"
    MEMBER = "member"


@dataclass(frozen=True)
class Layout:
    """The node, and where known the NVLink domain, of every rank.

    Attributes:
        node_of: node index of each rank.  Nodes are numbered in order of their lowest rank.
        domain_of: NVLink domain of each rank, numbered the same way; None: each node is one domain.

    Raises:
        UsageError: no rank, indices that are not numbered in that order, or unequal lengths.

    """

    node_of: tuple[int, ...]
    domain_of: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _check_numbering("node_of", self.node_of)
        if self.domain_of is not None:
            _check_numbering("domain_of", self.domain_of)
            if len(self.domain_of) != len(self.node_of):
                raise UsageError(
                    f"domain_of has {len(self.domain_of)} entries and node_of has {len(self.node_of)}: "
                    "both need one per rank"
                )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Plans are looked up by layout in every call; a tuple hashes anew each time, in O(size).
        return hash((self.node_of, self.domain_of or ()))

    def __reduce__(self) -> tuple[type[Layout], tuple[tuple[int, ...], tuple[int, ...] | None]]:
        return Layout, (self.node_of, self.domain_of)  # without the cached groups

    @staticmethod
    def parse(text: str) -> Layout:
        """The layout that a text describes.

        Args:
            text: node sizes joined by ``+``, each either a count or ``nodes x count``: ``"3+1"``,
                ``"4x8"``, ``"7+3x8"``; the same after ``cyclic:``, where ranks are dealt to the nodes in
                turn while a node has room; or ``nodes:`` and a node number for each rank.  Blanks and
                upper case are tolerated.

        Raises:
            UsageError: any other text, an empty node, or more than `notation.MAX_RANKS` ranks.

        """
        return Layout.from_keys(notation.parse_nodes(text))

    @staticmethod
    def from_keys(keys: Sequence[Hashable], domains: Sequence[Hashable] | None = None) -> Layout:
        """The layout in which ranks with equal keys share a node (and with equal `domains` an NVLink domain).

        Args:
            keys: one identity of the node per rank; nodes are numbered by first appearance.
            domains: one identity of the NVLink domain per rank; unset: the node.

        """
        return Layout(_number(keys), None if domains is None else _number(domains))

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.node_of)

    @property
    def node_count(self) -> int:
        """How many nodes there are."""
        return len(self.nodes)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Ranks on each node."""
        return tuple(map(len, self.nodes))

    @cached_property
    def is_uniform(self) -> bool:
        """All nodes hold equally many ranks."""
        return len(set(self.counts)) == 1

    @cached_property
    def is_contiguous(self) -> bool:
        """Each node holds consecutive ranks."""
        return all(node[-1] - node[0] + 1 == len(node) for node in self.nodes)

    @cached_property
    def nodes(self) -> Groups:
        """The ranks of each node, ascending."""
        return _collect(self.node_of)

    @cached_property
    def domains(self) -> Groups:
        """The ranks of each NVLink domain, ascending: the nodes where no fabric is known."""
        return self.nodes if self.domain_of is None else _collect(self.domain_of)

    @cached_property
    def by_node(self) -> Layout:
        """The nodes alone, for arrays on hosts: what no two nodes share joins none of them."""
        return self if self.domain_of is None else Layout(self.node_of)

    @cached_property
    def by_domain(self) -> Layout:
        """The NVLink domains in the place of nodes, for arrays on devices."""
        return self if self.domain_of is None else Layout(self.domain_of)

    def node(self, rank: int) -> int:
        """The node of `rank`."""
        return self.node_of[self._checked(rank)]

    def local_rank(self, rank: int) -> int:
        """The place of `rank` among the ranks of its node."""
        return self._local_ranks[self._checked(rank)]

    def local_size(self, rank: int) -> int:
        """How many ranks the node of `rank` holds."""
        return self.counts[self.node(rank)]

    def leader(self, node: int) -> int:
        """The lowest rank of a node."""
        if not 0 <= node < self.node_count:
            raise UsageError(
                f"node {node} does not exist: layout {self} has nodes 0 to {self.node_count - 1}"
            )
        return self.nodes[node][0]

    def groups(self, name: str) -> Groups:
        """The disjoint groups of a family, each a tuple of world ranks in the order of the group.

        NODE and NVLINK groups come in order of their lowest rank, members ascending.  LEADERS is one group,
        in domain order.  RAIL group j is the j-th rank of every domain, in domain order.

        Args:
            name: one of `FAMILIES`.

        Returns:
            The groups; () when the family does not exist (RAIL on domains of unequal sizes).

        Raises:
            UsageError: an unknown name.

        """
        try:
            return self._families[name]
        except KeyError:
            raise UsageError(f"group {name!r} is not one of {', '.join(FAMILIES)}") from None

    def group_index(self, name: str, rank: int) -> int | None:
        """Which group of a family `rank` is in; None where it is in none."""
        self.groups(name)
        found = self._group_indices[name][self._checked(rank)]
        return None if found < 0 else found

    def group(self, name: str, rank: int) -> tuple[int, ...]:
        """The group of a family that `rank` is in; () where it is in none."""
        found = self.group_index(name, rank)
        return () if found is None else self._families[name][found]

    def membership(self, name: str, rank: int) -> Membership:
        """Whether the family exists and has `rank` in one of its groups."""
        found = self.group_index(name, rank)
        if not self._families[name]:
            return Membership.NOT_EXISTING
        return Membership.NOT_MEMBER if found is None else Membership.MEMBER

    def restrict(self, ranks: Sequence[int]) -> Layout:
        """The layout of a sub-communicator.

        Args:
            ranks: its members as ranks of this layout, in its own order; entry i becomes rank i.

        Raises:
            UsageError: no member, one named twice, or one that is not a rank of this layout.

        """
        members = [self._checked(rank) for rank in ranks]
        if not members:
            raise UsageError("a layout cannot be restricted to no rank at all")
        if len(set(members)) != len(members):
            twice = Counter(members).most_common(1)[0][0]
            raise UsageError(f"a layout cannot be restricted to ranks that name rank {twice} twice")
        domains = None if self.domain_of is None else [self.domain_of[rank] for rank in members]
        return Layout.from_keys([self.node_of[rank] for rank in members], domains)

    def __str__(self) -> str:
        """The shortest text that `parse` turns into these nodes; the domains are not part of it."""
        return self._text

    def shortened(self) -> str:
        """The text, cut where it is long."""
        return self._text if len(self._text) <= 200 else self._text[:200] + "..."

    def describe(self) -> str:
        """The nodes in words: "1 node of 4 ranks", "2 nodes (3+1)"."""
        if self.node_count == 1:
            return f"1 node of {self.size} {'rank' if self.size == 1 else 'ranks'}"
        return f"{self.node_count} nodes ({self.shortened()})"

    @cached_property
    def _text(self) -> str:
        return notation.format_nodes(self.node_of, self.counts)

    @cached_property
    def _families(self) -> dict[str, Groups]:
        domains = self.domains
        equal = len(set(map(len, domains))) == 1
        return {
            "WORLD": (tuple(range(self.size)),),
            "NODE": self.nodes,
            "NVLINK": domains,
            "LEADERS": (tuple(domain[0] for domain in domains),),
            "RAIL": tuple(zip(*domains, strict=True)) if equal else (),
        }

    @cached_property
    def _group_indices(self) -> dict[str, list[int]]:
        return {name: _places(self.size, groups) for name, groups in self._families.items()}

    @cached_property
    def _local_ranks(self) -> list[int]:
        local = [0] * self.size
        for node in self.nodes:
            for place, rank in enumerate(node):
                local[rank] = place
        return local

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise UsageError(f"rank {rank} is outside of layout {self}, which has ranks 0 to {self.size - 1}")
        return index(rank)


def _check_numbering(what: str, indices: tuple[int, ...]) -> None:
    if not isinstance(indices, tuple):
        raise UsageError(f"{what} must be a tuple of integers, not {type(indices).__name__}")
    if not indices:
        raise UsageError(f"{what} is empty: a layout has at least one rank")
    following = 0
    for rank, found in enumerate(indices):
        if not 0 <= found <= following:
            raise UsageError(
                f"{what} has {found} at rank {rank}: indices are numbered in order of their lowest rank, "
                f"so it must be between 0 and {following}"
            )
        following = max(following, found + 1)


def _number(keys: Iterable[Hashable]) -> tuple[int, ...]:
    seen: dict[Hashable, int] = {}
    return tuple(seen.setdefault(key, len(seen)) for key in keys)


def _collect(index_of: tuple[int, ...]) -> Groups:
    members: list[list[int]] = [[] for _ in range(max(index_of) + 1)]
    for rank, found in enumerate(index_of):
        members[found].append(rank)
    return tuple(map(tuple, members))


def _places(size: int, groups: Groups) -> list[int]:
    places = [-1] * size
    for place, group in enumerate(groups):
        for rank in group:
            places[rank] = place
    return places
