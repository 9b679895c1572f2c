"""What a communicator knows about the machine: the ranks of every node, the levels, and who said so.

`discover` lets all ranks come to one answer.  Its sources, the first that speaks decides::

    the layout text (HPCCOLL_LAYOUT)       virtual nodes; each must lie within one real node
    identity + shared memory probe         what ranks can in fact do together
    MPI_Comm_split_type(SHARED)            only compared: several MPI and launcher versions return groups
                                           of one, or group ranks that share no memory
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from mpi4py import MPI

from hpccoll.errors import TopologyError
from hpccoll.topology.agreement import call_roll, gather, gather_numbers
from hpccoll.topology.fabric import with_domains
from hpccoll.topology.hosts import HostFacts
from hpccoll.topology.identity import Verdict, agree_on_nodes
from hpccoll.topology.launch import launch_warning
from hpccoll.topology.layout import Layout
from hpccoll.topology.notation import format_ranks
from hpccoll.topology.records import OUTSIDE, Record, check_layouts, own_record

__all__ = ["Level", "Machine", "Source", "discover", "launch_warning"]

_PURPOSE = "topology discovery"


@dataclass(frozen=True)
class Level:
    """A tier of the machine.

    Attributes:
        name: "node", "NVLink" or "network".
        family: the groups of `Layout.groups` in which ranks meet on it.
        carrier: what carries the bytes, in words.

    """

    name: str
    family: str
    carrier: str


@dataclass(frozen=True)
class Source:
    """One answer to "who shares a node".

    Attributes:
        name: "layout text", "identity and probe" or "MPI_Comm_split_type".
        layout: its answer; None: it was not asked.
        decides: whether this answer is the machine's layout.
        text: why, and whether it agrees, in words.

    """

    name: str
    layout: Layout | None
    decides: bool
    text: str


@dataclass(frozen=True)
class Machine:
    """Where the ranks of one communicator are; equal on all of them but for `rank`.

    Attributes:
        rank: this rank, in the communicator.
        layout: the node of every rank, and its NVLink domain where a fabric joins GPUs of several hosts, or
            parts those of one; virtual nodes have none.
        hosts: facts about each node, seen by its first rank.
        levels: innermost first.
        sources: who said what about the nodes; exactly one decides.
        shares_memory: the ranks of every node have proved that they see the same shared memory directory.
        world_ranks: the rank in MPI.COMM_WORLD of every rank; -1 for one that is not in it.
        thread_level: of MPI: "SINGLE", "FUNNELED", "SERIALIZED" or "MULTIPLE".
        mpi_library: what MPI calls itself.
        native: every rank uses the C extension.
        cores: for every rank, how many cores the ranks of its host may use altogether.

    """

    rank: int
    layout: Layout
    hosts: tuple[HostFacts, ...]
    levels: tuple[Level, ...]
    sources: tuple[Source, ...]
    shares_memory: bool
    world_ranks: tuple[int, ...]
    thread_level: str
    mpi_library: str
    native: bool
    cores: tuple[int, ...]

    @property
    def node(self) -> int:
        """The node of this rank."""
        return self.layout.node(self.rank)

    @property
    def node_count(self) -> int:
        """How many nodes there are."""
        return self.layout.node_count

    @property
    def local_rank(self) -> int:
        """The place of this rank among those of its node."""
        return self.layout.local_rank(self.rank)

    @property
    def local_size(self) -> int:
        """How many ranks this rank's node holds."""
        return self.layout.local_size(self.rank)

    @property
    def hosts_layout(self) -> Layout:
        """The ranks of each host, virtual nodes or not."""
        real = next((one.layout for one in self.sources if one.name == "identity and probe"), None)
        return real or self.layout

    @property
    def host_size(self) -> int:
        """How many ranks of this communicator share this rank's host and its cores, virtual nodes or not."""
        return self.hosts_layout.local_size(self.rank)

    @property
    def is_uniform(self) -> bool:
        """All nodes hold equally many ranks."""
        return self.layout.is_uniform


def discover(comm: MPI.Intracomm, *, layout: str | None, shm_directory: str, deadline: float) -> Machine:
    """Find out where all ranks of a communicator are.

    Collective over `comm`; every rank gets the same answer or the same error.  Ranks wait in non-blocking
    calls that are tested until `deadline`, but for MPI_Comm_split_type, which has no such form and is
    called when everybody is known to be there.

    Args:
        comm: a private duplicate on which nothing else is going on; unusable after a timeout.
        layout: virtual nodes of MPI.COMM_WORLD's ranks, in the notation of `Layout.parse`; None or "": the
            real ones.  The same on every rank.
        shm_directory: where shared memory segments are made.
        deadline: on the clock of `time.monotonic`, seconds.

    Raises:
        UsageError: `layout` is wrong on some rank, differs between ranks, or has not the size of
            MPI.COMM_WORLD.
        TopologyError: `layout` puts ranks on one node that do not share memory.
        CollectiveTimeoutError: not all ranks arrived, or one stopped, before `deadline`.

    """
    call_roll(comm, deadline, _PURPOSE)
    world_ranks = _world_ranks(comm)
    stated, own = own_record(layout, shm_directory, MPI.COMM_WORLD.size, world_ranks)
    gathered = gather(comm, own.to_bytes(), deadline, f"{_PURPOSE}: exchange of facts")
    records = [Record.from_bytes(found) for found in gathered]
    check_layouts(records)
    facts = [record.host_facts() for record in records]
    verdict = agree_on_nodes(comm, facts, shm_directory, deadline)
    if stated is not None:
        chosen = stated.restrict(world_ranks)
        sources = _sources_of_virtual_nodes(chosen, verdict)
    else:
        chosen = with_domains(verdict.layout, [record.fabric for record in records])
        whole_world = all(record.world_size == comm.size for record in records)
        sources = _sources_of_real_nodes(comm, verdict, whole_world, deadline)
    library = _library_name()
    if comm.rank == 0:
        _warn(launch_warning(os.environ, MPI.COMM_WORLD.size, library))
    return Machine(
        rank=comm.rank,
        layout=chosen,
        hosts=tuple(facts[chosen.leader(node)] for node in range(chosen.node_count)),
        levels=_levels(chosen, verdict, facts, library),
        sources=sources,
        shares_memory=verdict.shares_memory,
        world_ranks=world_ranks,
        thread_level=_thread_level(),
        mpi_library=library,
        native=all(record.native for record in records),
        cores=_cores(verdict.layout, [int(record.cores, 16) for record in records]),
    )


def _cores(hosts: Layout, masks: Sequence[int]) -> tuple[int, ...]:
    """For every rank, the size of the union of what the ranks of its host may use."""
    together = [reduce(or_, (masks[rank] for rank in ranks)).bit_count() for ranks in hosts.nodes]
    return tuple(together[node] for node in hosts.node_of)


def _world_ranks(comm: MPI.Intracomm) -> tuple[int, ...]:
    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    try:
        found = MPI.Group.Translate_ranks(group, list(range(comm.size)), world)
    finally:
        group.Free()
        world.Free()
    return tuple(OUTSIDE if rank == MPI.UNDEFINED else rank for rank in found)


def _sources_of_virtual_nodes(chosen: Layout, verdict: Verdict) -> tuple[Source, ...]:
    for node in chosen.nodes:
        real = {verdict.layout.node(rank) for rank in node}
        if len(real) > 1:
            raise TopologyError(
                f"layout {chosen.shortened()} puts {format_ranks(node)} on one node, but they share no "
                f"memory: the real nodes are {verdict.layout.describe()}; "
                "give a layout whose nodes lie within them, or none",
                suspects=node,
            )
    return (
        Source("layout text", chosen, True, "virtual nodes, as asked for; each lies within one real node"),
        Source("identity and probe", verdict.layout, False, verdict.text),
        Source("MPI_Comm_split_type", None, False, "not asked: the nodes are virtual"),
    )


def _sources_of_real_nodes(
    comm: MPI.Intracomm, verdict: Verdict, whole_world: bool, deadline: float
) -> tuple[Source, ...]:
    sources = [
        Source("layout text", None, False, "not given"),
        Source("identity and probe", verdict.layout, True, verdict.text),
    ]
    if not whole_world:
        # Splitting takes a communicator id of MPI, of which there are few; the world is enough.
        asked = Source("MPI_Comm_split_type", None, False, "not asked: not all of MPI.COMM_WORLD")
        return (*sources, asked)
    split = _split_by_mpi(comm, deadline)
    if split == verdict.layout:
        return (*sources, Source("MPI_Comm_split_type", split, False, "agrees"))
    text = (
        f"identity and shared memory probe find {verdict.layout.describe()}, "
        f"MPI_Comm_split_type(MPI_COMM_TYPE_SHARED) finds {split.describe()}; the former is used"
    )
    if comm.rank == 0:
        _warn(f"two sources differ about who shares a node: {text}")
    return (*sources, Source("MPI_Comm_split_type", split, False, "differs, and is not used"))


def _split_by_mpi(comm: MPI.Intracomm, deadline: float) -> Layout:
    part = comm.Split_type(MPI.COMM_TYPE_SHARED)
    group, whole = part.Get_group(), comm.Get_group()
    try:
        (first,) = MPI.Group.Translate_ranks(group, [0], whole)
    finally:
        group.Free()
        whole.Free()
        part.Free()
    return Layout.from_keys(gather_numbers(comm, first, deadline, f"{_PURPOSE}: comparison with MPI"))


def _levels(layout: Layout, verdict: Verdict, facts: Sequence[HostFacts], library: str) -> tuple[Level, ...]:
    messages = f"messages of {library}"
    if max(layout.counts) == 1:
        inner = "nothing to carry: one rank a node"
    elif verdict.shares_memory:
        directories = sorted({fact.shm_directory for fact in facts})
        inner = "shared memory in " + ", ".join(directories[:3]) + (", ..." if directories[3:] else "")
    else:
        inner = f"{messages}, since there is no shared memory"
    levels = [Level("node", "NODE", inner)]
    if layout.domain_of is not None:
        levels.append(Level("NVLink", "NVLINK", "NCCL on the NVLink fabric: arrays on devices"))
    if layout.node_count > 1:
        levels.append(Level("network", "RAIL" if layout.by_node.groups("RAIL") else "LEADERS", messages))
    return tuple(levels)


def _library_name() -> str:
    line = MPI.Get_library_version().rstrip("\0").strip().partition("\n")[0]
    return " ".join(line.partition(",")[0].replace("Version:", "").split())


def _thread_level() -> str:
    names = {
        MPI.THREAD_SINGLE: "SINGLE",
        MPI.THREAD_FUNNELED: "FUNNELED",
        MPI.THREAD_SERIALIZED: "SERIALIZED",
        MPI.THREAD_MULTIPLE: "MULTIPLE",
    }
    return names[MPI.Query_thread()]


def _warn(message: str | None) -> None:
    if message is not None:
        warnings.warn(message, RuntimeWarning, stacklevel=4)
