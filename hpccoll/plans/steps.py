"""Steps and plans: the whole of one collective, for every rank, as data.

A step is one action of the groups of one family, each group on regions of its own.  What a step's
kind does to a member's elements (its region is `regions[group][member]` where the kind has a region
for each member, else `regions[group][0]`):

    kind            before                          after
    ALLREDUCE       all members: the region         all members: combined over the members
    REDUCE          all members: the region         the root: combined;  others: undefined
    BROADCAST       the root: the region            all members: the root's
    REDUCE_SCATTER  all members: all regions        each member: its own region, combined
    ALLGATHER       each member: its own region     all members: all regions
    GATHER          each member: its own region     the root: all regions
    SCATTER         the root: all regions           each member: its own region
    ALLTOALL        member i: regions (i, j)        member j: regions (i, j)
    SCAN            all members: the first region   each member: in the second region, combined over the
                                                    members up to and with it
    EXSCAN          all members: the first region   each member but the first: in the second region,
                                                    combined over the members before it
    PREPEND         all members: two regions        each on its own: in the second region, the first one
                                                    combined with it; where it has no second, the first

ALLTOALL has a region for every pair of members, row after row: `regions[group][i * n + j]`; SCAN, EXSCAN and
PREPEND have two, of equal length.

`algorithm` says how: NATIVE leaves it to the group's transport (shared memory, NCCL, MPI's own
collective), any other name is lowered to send, receive and combine operations (ring.py, tree.py,
recursive_doubling.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from hpccoll.plans.collective import Collective
from hpccoll.plans.pairs import Made
from hpccoll.plans.spans import Region, length
from hpccoll.topology.layout import Layout

NATIVE = "native"
# What sums may travel as between nodes, and the bytes of an element.
WIRE_DTYPES = {"bfloat16": 2, "float16": 2}


class Kind(Enum):
    """What the members of a group do together."""

    ALLREDUCE = "allreduce"
    REDUCE = "reduce"
    BROADCAST = "broadcast"
    REDUCE_SCATTER = "reduce_scatter"
    ALLGATHER = "allgather"
    GATHER = "gather"
    SCATTER = "scatter"
    ALLTOALL = "alltoall"
    SCAN = "scan"
    EXSCAN = "exscan"
    PREPEND = "prepend"

    @property
    def by_member(self) -> bool:
        """Every member has a region of its own."""
        return self in (Kind.REDUCE_SCATTER, Kind.ALLGATHER, Kind.GATHER, Kind.SCATTER)

    def region_count(self, members: int) -> int:
        """How many regions a group of so many members has."""
        if self is Kind.ALLTOALL:
            return members * members
        if self.scans:
            return 2
        return members if self.by_member else 1

    @property
    def reduces(self) -> bool:
        return self in (Kind.ALLREDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER) or self.scans

    @property
    def scans(self) -> bool:
        return self in (Kind.SCAN, Kind.EXSCAN, Kind.PREPEND)


class Order(IntEnum):
    """In which order a plan combines the operands of an element."""

    ANY = 0
    """Some order, the same for all ranks."""
    RANKS = 1
    """In rank order, in any groups: what an operator asks for that does not commute."""
    FOLD = 2
    """In rank order one after the other, ((x0 x1) x2) ...: bits do not depend on layout, plan or chunks."""


@dataclass(frozen=True)
class Step:
    """One action of every group of a family; ranks in no group do nothing."""

    kind: Kind
    family: str
    groups: tuple[tuple[int, ...], ...]
    regions: tuple[Sequence[Region], ...]
    roots: tuple[int, ...] = ()  # index of the root among the members, a number for each group
    algorithm: str = NATIVE
    after: tuple[int, ...] = ()  # indices of the steps that hand over elements to this one
    chunk: int = 0

    def elements(self, group: int) -> int:
        """Elements of the index space that one group acts on."""
        regions = self.regions[group]
        if isinstance(regions, Made):
            return regions.elements
        return sum(map(length, regions[:1] if self.kind.scans else regions))

    def group_of(self, rank: int) -> int | None:
        """Index of the group that a rank is a member of."""
        for index, members in enumerate(self.groups):
            if rank in members:
                return index
        return None


@dataclass(frozen=True)
class Plan:
    """An immutable list of steps.  `segment` is the longest message of a lowered step, in elements.

    `wire`: the dtype in which elements travel between nodes, where it is not their own.
    """

    name: str
    collective: Collective
    layout: Layout
    steps: tuple[Step, ...]
    segment: int
    chunks: int = 1
    order: Order = Order.ANY
    wire: str = ""

    def wire_itemsize(self, itemsize: int) -> int:
        """Bytes of an element between nodes; `itemsize`: of its own dtype."""
        return WIRE_DTYPES[self.wire] if self.wire else itemsize
