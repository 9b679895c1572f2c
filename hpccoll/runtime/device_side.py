"""The device side of a communicator: its NCCL groups, and what the kinds of calls made so far become.

The first call of a kind (collective, dtype, operator, count, root, plan) is agreed by all ranks as on the
host, before anything is enqueued; its communicators are made then, on the calling thread, in the order of the
plan's steps.  Later calls of that kind are enqueued at once: the ranks do not wait for each other.
"""

from __future__ import annotations

import json
import socket
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.buffer import Buffer
from hpccoll.arrays.device import Home, home_of, unowned
from hpccoll.calls import Call
from hpccoll.config import Config
from hpccoll.errors import ResourceError
from hpccoll.memory import device as memory
from hpccoll.ops.kernels import conversion
from hpccoll.ops.on_device import SCALED, Travel, travel
from hpccoll.ops.table import Arithmetic
from hpccoll.plans.collective import SCANS, Collective
from hpccoll.plans.hazards import IN_PLACE
from hpccoll.plans.lower import lower
from hpccoll.plans.measured import DEVICE, DeviceFacts, Measured, call_bytes
from hpccoll.plans.on_devices import by_nccl, choose_on_device, plan_on_device
from hpccoll.plans.select import Choice
from hpccoll.plans.steps import Order, Plan
from hpccoll.runtime.between import Bridge, HopsOf
from hpccoll.runtime.device_blocks import Blocks, PlansOfBlocks
from hpccoll.runtime.device_combining import Combining
from hpccoll.runtime.device_groups import DeviceGroups
from hpccoll.runtime.device_memory import Lease, Registered
from hpccoll.runtime.device_prices import links_by, names_of
from hpccoll.runtime.device_program import CROSSING, DeviceProgram
from hpccoll.runtime.elsewhere import Elsewhere
from hpccoll.runtime.planning import Explanation, count_of, order_of
from hpccoll.runtime.streams import Device, Kept, PinnedPool, on_device
from hpccoll.runtime.tape import GIVEN, Tape
from hpccoll.topology.agreement import gather
from hpccoll.topology.devices import shared_devices
from hpccoll.topology.fabric import own_links
from hpccoll.topology.gpus import identity, name_of
from hpccoll.topology.layout import Layout
from hpccoll.topology.notation import format_ranks
from hpccoll.transports import nccl
from hpccoll.transports.base import Array
from hpccoll.transports.nccl import NcclGroup

# Below so many bytes a chunk does not fill a network, and its launch costs more than overlap gains.
CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class ByNccl:
    """A kind of call that NCCL does: its program, how elements travel, and its number (`code_of`)."""

    program: DeviceProgram | Blocks | PlansOfBlocks
    travel: Travel
    code: int = 0

    @property
    def by_mpi(self) -> bool:
        """Steps between nodes are MPI's."""
        return isinstance(self.program, DeviceProgram) and self.program.hops is not None

    def repeats(self, call: Call) -> bool:
        """Whether a call made again on the same memory is no more than its tape played again."""
        take = call.take
        if self.travel.operator == SCALED or self.program.scratch_bytes or not call.give.size:
            return False
        if self.by_mpi:
            return False
        if call.give.dtype != call.dtype:
            return False
        if not all(map(_is_the_callers, call.reads)) or (take is not None and not _is_the_callers(take)):
            return False
        return not self.overlaps(call)

    def overlaps(self, call: Call) -> bool:
        """Whether the result must go elsewhere first: elements are still to be read there, or it is askew."""
        take, kernel = call.take, self.travel.kernel
        if take is None:
            return False
        askew = kernel is not None and take.flat.ctypes.data % kernel.alignment != 0
        return askew or (call.collective not in IN_PLACE and bool(np.may_share_memory(call.give, take.flat)))


def _words(facts: DeviceFacts) -> str:
    return f"NCCL {facts.nccl}, {'; '.join(facts.names)}"


def _converts(arithmetic: Arithmetic | None) -> bool:
    return arithmetic is not None and arithmetic.operator.into is not None


def _is_the_callers(buffer: Buffer) -> bool:
    """Whether elements are where the caller has them, and not in a copy of ours, which goes with the call."""
    return type(buffer) is Buffer and buffer.owner is not None and not buffer.packed


class DeviceSide:
    """Made, collectively, with the first call on device arrays; `ordinal` is the device of one of them.

    `layout`: its NVLink domains are what nodes are for arrays on hosts.  `look`: raises when the communicator
    was given up.  `reason`: empty where NCCL is used, else why all ranks' calls go over the host.
    """

    def __init__(
        self,
        private: MPI.Intracomm,
        layout: Layout,
        config: Config,
        ordinal: int,
        measured: Measured,
        look: Callable[[], None],
    ) -> None:
        self._private = private
        self._rank, self._size = private.rank, private.size
        self._whole, self._layout = layout, layout.by_domain
        self._config = config
        self._measured = measured
        self._by_mpi = config.internode == "mpi" and self._layout.node_count > 1
        self.device = Device(ordinal)
        self.reason = self._agree_on_path()
        with self.device:
            self._network = self.device.stream()
            self.own_stream = self.device.stream()
        self.elsewhere = Elsewhere(self.device, self.own_stream)
        self.kept = Kept(self.device)
        self.pinned = PinnedPool()
        self.bridge = Bridge(self.device, self.pinned, self.kept) if self._by_mpi else None
        self.memory = Registered(private, ordinal, self._deadline)
        self._groups = DeviceGroups(private, config, self.device, self.memory, look)

    def _agree_on_path(self) -> str:
        """Raises: ResourceError on all ranks, when `device_path` asks for NCCL and it cannot be used."""
        missing = nccl.available()
        facts = {
            "host": socket.gethostname(),
            "device": identity(self.device.ordinal),
            "missing": missing,
            "version": 0 if missing else nccl.version(),
            "name": name_of(self.device.ordinal),
            "shares": not missing and nccl.may_share_devices(),
            "cupy": find_spec("cupy") is not None,
            "links": asdict(own_links()),
        }
        texts = gather(self._private, json.dumps(facts).encode(), self._deadline(), "devices of all ranks")
        found = [json.loads(text) for text in texts]
        self._has_cupy = all(fact["cupy"] for fact in found)
        self._trust(DeviceFacts.of(found[0]["version"], names_of(self._whole, found)))
        self._links, self._not_priced = links_by(found, self._whole, self._config, self._by_mpi)
        if self._config.device_path == "host":
            return "device_path is host"
        if self._config.checksums:
            return "checksums are asked for, and what NCCL moves cannot be checked"
        reason = why_not_nccl(found)
        if reason and self._config.device_path == "nccl":
            raise ResourceError(f"NCCL cannot be used: {reason}", rank=self._rank)
        if reason and self._rank == 0:
            warnings.warn(f"collectives on device arrays go over the host: {reason}", stacklevel=2)
        return reason

    def _trust(self, here: DeviceFacts) -> None:
        """Times of other devices, or of another NCCL, are not used, and that is said."""
        there = self._measured.device
        if there is not None and there != here:
            if self._rank == 0:
                warnings.warn(
                    f"times on devices in {self._measured.source} are not used: measured with "
                    f"{_words(there)}, here is {_words(here)}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self._measured = Measured()

    def _deadline(self) -> float:
        return time.monotonic() + self._config.init_timeout_s

    # --- kinds of calls -------------------------------------------------------------------------

    def learn(self, call: Call, only: str) -> ByNccl | None:
        """What a kind of call becomes; None where it goes over the host.  Collective.

        `only`: the plan asked for by name, or empty.  Raises: as `DeviceGroups.make`.
        """
        counted = call.gives is not None or call.collective != "reduce_scatter"
        how = self.travels(call.collective, call.arithmetic, call.dtype, ragged=call.ragged, counted=counted)
        if how is None:
            return None
        if call.ragged and call.arithmetic is None:
            return None if self._by_mpi else self._learn_ragged(call, how, only)
        count = call.count if call.arithmetic is not None else call.count * call.dtype.itemsize
        counts = call.gives if call.ragged else None
        plan = self._plan(Collective(call.collective, self._size, count, call.root, counts), how, only)
        if plan is None:
            return None
        for step in plan.steps:
            if self.bridge is not None and step.family in CROSSING:
                self._groups.make_inner(step.groups)
            else:
                self._groups.make(step.groups)
        program = lower(plan, self._rank, all_blocks=True)
        kind = nccl.TYPES[how.nccl]
        combining = None if how.kernel is None else Combining(how.kernel, kind, self.device.ordinal)
        hops = None
        if self.bridge is not None:
            hops = HopsOf(self.bridge, self._groups.inner, call, how)
        made = DeviceProgram(plan, program, self._groups.nccl, how.itemsize, kind, how.width, combining, hops)
        return ByNccl(made, how)

    def travels(
        self,
        collective: str,
        arithmetic: Arithmetic | None,
        dtype: np.dtype[Any],
        *,
        ragged: bool = False,
        counted: bool = True,
    ) -> Travel | None:
        """How the elements of a kind of call travel; None where they go over the host.

        `counted`: the ranks know the counts of a ragged reduce-scatter, and need not exchange them.
        """
        if self.reason or self._size == 1 or (ragged and not counted):
            return None
        ordered = arithmetic is not None and order_of(arithmetic, self._config) is not Order.ANY
        how = travel(arithmetic, dtype, scans=collective in SCANS, ordered=ordered)
        needs_cupy = how is not None and (how.kernel is not None or how.divides or _converts(arithmetic))
        return None if needs_cupy and not self._has_cupy else how

    def _learn_ragged(self, call: Call, how: Travel, only: str) -> ByNccl:
        """Blocks of different lengths that are only moved."""
        # In two levels the ranks of a node tell each other their lengths: those of the node, not of a domain.
        if self._whole.domain_of is None and only != "flat" and only in self.names(call.collective):
            alike = self._plan(Collective(call.collective, self._size, self._size, call.root), how, only)
            for step in alike.steps if alike is not None else ():
                self._groups.make(step.groups)
            return ByNccl(PlansOfBlocks(only, self._layout, self._rank, self._groups.nccl), how)
        return ByNccl(Blocks(self._world()), how)

    def _world(self) -> NcclGroup:
        """NCCL's communicator of all ranks."""
        groups = self._layout.groups("WORLD")
        self._groups.make(groups)
        return self._groups.nccl[groups[0]]

    def _plan(self, collective: Collective, how: Travel, only: str) -> Plan | None:
        """The plan to take of those that consist of NCCL's calls (`choice`).

        Where MPI goes between nodes, a plan of two levels, or None where there is none.
        """
        # A scaled sum has an operator of one communicator.
        flat = how.operator == SCALED or how.whole or collective.name in SCANS
        name = "flat" if flat else self.choice(collective, how, only).candidates[0].name
        if name == "flat" and self._by_mpi:
            alone = self._layout.node_count == self._size  # all steps are between nodes
            fitting = [other for other in self.names(collective.name) if (other == "flat") is alone]
            if flat or not fitting:
                return None
            name = fitting[0]
        return plan_on_device(name, collective, self._layout, how.itemsize, self._chunk_bytes)

    def explain(self, name: str, nbytes: int, root: int, how: Travel, only: str) -> Explanation:
        """The candidates for a collective of so many bytes, as nccl-tests counts them."""
        collective = Collective(name, self._size, count_of(name, nbytes, how.itemsize, self._size), root)
        if how.operator == SCALED or how.whole:
            only = "flat"
        choice = self.choice(collective, how, only)
        layout, source = str(self._layout), self._measured.source if self._measured.device else ""
        return Explanation(name, nbytes, layout, only, choice.candidates, choice.why, source)

    def choice(self, collective: Collective, how: Travel, only: str = "") -> Choice:
        """The plan for a call, with the others and why."""
        links, why_not = self._links, self._not_priced
        if how.kernel is not None:
            links, why_not = None, "kernels combine, which has no price"
        elif collective.ragged:
            links, why_not = None, "blocks of different lengths have no price"
        times = self._measured.times(collective.name, call_bytes(collective, how.itemsize), DEVICE)
        return choose_on_device(
            collective, self._layout, how.itemsize, chunk_bytes=self._chunk_bytes,
            links=links, why_not=why_not, times=times, only=only,
        )  # fmt: skip

    @property
    def _chunk_bytes(self) -> int:
        return max(CHUNK_BYTES, self._config.chunk_bytes)

    def names(self, collective: str) -> tuple[str, ...]:
        """The plans of a collective that consist of NCCL's calls."""
        return by_nccl(collective, self._layout)

    def allocate(self, nbytes: int) -> Lease:
        """Memory on the device that all communicators know.  Collective; see `Registered.allocate`."""
        alone = self.reason or self._by_mpi or self._size == 1
        world = None if alone else self._world()
        others = [group for group in self._groups.nccl.values() if group is not world]
        return self.memory.allocate(nbytes, world, others, by_nccl=not self.reason)

    # --- calls ----------------------------------------------------------------------------------

    def enqueue(self, kind: ByNccl, call: Call, stream: int) -> None:
        """Enqueue a call, whose arrays must stay until the stream is through.

        Raises: AbortedError, CollectiveTimeoutError when NCCL has failed, or does not go on.
        """
        program, how = kind.program, kind.travel
        give, take = call.give, call.take.flat if call.take is not None else None
        home = home_of(give if take is None else take)._replace(stream=stream)
        self.order(give, stream)
        if take is not None:
            self.order(take, stream)
        if give.dtype != call.dtype:
            call = replace(call, give=converted(give, call.dtype, home))
        output = memory.empty(take.size, take.dtype, home) if kind.overlaps(call) else take  # type: ignore[union-attr]
        scratch = (
            memory.empty(program.scratch_bytes, np.dtype(np.uint8), home) if program.scratch_bytes else None
        )
        passes_on = call.ragged and isinstance(program, DeviceProgram)  # blocks of others, perhaps
        if call.give.size or (take is not None and take.size) or passes_on:
            if how.operator == SCALED:
                self._enqueue_scaled(kind, call, output, stream)
            else:
                self._play_once(self._tape(kind, call, output, scratch), stream)
        if take is not None and output is not take:
            on_device(take.ctypes.data, output.ctypes.data, take.nbytes, stream)  # type: ignore[union-attr]
        if take is not None:
            call.take.unpack(stream)  # type: ignore[union-attr]

    def _tape(
        self,
        kind: ByNccl,
        call: Call,
        output: Array | None,
        scratch: Array | None = None,
        operator: int | None = None,
    ) -> Tape:
        """A call as what is to be enqueued, which keeps no memory of the caller's.

        `output`: where its result goes, None where there is none.  `operator`: of NCCL, by default the one
        that the kind of call has.
        """
        tape = Tape(self.device, self._network)
        if output is None and call.collective == "broadcast":
            output = call.give
        if operator is None:
            operator = nccl.OPERATORS.get(kind.travel.operator, 0)
        bases = [0 if one is None else one.ctypes.data for one in (call.give, output, scratch)]
        if isinstance(kind.program, Blocks):
            kind.program.write(tape, call, bases)
        elif isinstance(kind.program, DeviceProgram):
            kind.program.write(tape, bases, operator)
        if kind.travel.divides and output is not None and output.size:
            tape.kernel(GIVEN, partial(memory.divide, unowned(output), self._size))
        return tape

    def written(self, kind: ByNccl, call: Call) -> Tape:
        """The tape of a call of which `kind.repeats`."""
        tape = self._tape(kind, call, None if call.take is None else call.take.flat)
        tape.seal()
        return tape

    def _enqueue_scaled(self, kind: ByNccl, call: Call, output: Array | None, stream: int) -> None:
        (group,) = kind.program.groups
        factor = call.arithmetic.operator.factor  # type: ignore[union-attr]
        operator = group.scaled_sum(factor, call.dtype, nccl.TYPES[kind.travel.nccl])
        try:
            self._play_once(self._tape(kind, call, output, operator=operator), stream)
        finally:
            group.drop(operator)

    def _play_once(self, tape: Tape, stream: int) -> None:
        try:
            tape.play(stream)
        finally:
            tape.drop()

    def order(self, array: Array, stream: int) -> None:
        """What comes on `stream` finds the array as its own stream leaves it."""
        if array.size:  # an empty one may be anywhere
            self.device.behind(stream, home_of(array).stream)

    def look(self, kind: ByNccl) -> None:
        """Raises AbortedError when NCCL has failed."""
        for group in kind.program.groups:
            group.state()

    def look_at_all(self) -> None:
        """As `look`, for all kinds."""
        for group in list(self._groups.nccl.values()):
            group.state()

    # --- end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the communicators, in the order in which they were made.  Collective."""
        self.memory.close()
        self._groups.close()

    def abort(self) -> None:
        """Give the communicators up: what waits for a lost rank ends.  Local."""
        if self.bridge is not None:
            self.bridge.open()
        self._groups.abort()

    def release(self) -> None:
        """Let go of this rank's streams and memory; local."""
        if self.bridge is not None:
            self.bridge.open()
        self.memory.close()
        self._groups.release()
        with self.device:
            if self.bridge is not None:
                self.bridge.close()
            self.pinned.close()
        self.elsewhere.close()
        self.device.close((self._network, self.own_stream))


def converted(array: Array, dtype: np.dtype[Any], home: Home) -> Array:
    """The same elements in a dtype that holds them, in other memory, in order on the stream of `home`."""
    how = conversion(array.dtype, dtype)
    if how is None:
        raise RuntimeError(f"no conversion from {array.dtype} to {dtype}")
    if array.ctypes.data % array.dtype.itemsize:
        whole = memory.empty(array.size, array.dtype, home)
        on_device(whole.ctypes.data, array.ctypes.data, array.nbytes, home.stream)
        array = whole
    made = memory.empty(array.size, dtype, home)
    how.convert(array.ctypes.data, made.ctypes.data, array.size, home.device, home.stream)
    return made


def why_not_nccl(facts: Sequence[Mapping[str, Any]]) -> str:
    """Empty where NCCL can be used by all ranks; else the reason, the same on all.

    `facts`: of each rank its host, the UUID of its device, what is missing, NCCL's version, and whether
    devices may be shared.
    """
    without = [rank for rank, fact in enumerate(facts) if fact["missing"]]
    if without:
        return f"{format_ranks(without)} cannot load NCCL ({facts[without[0]]['missing']})"
    versions = {fact["version"] for fact in facts}
    if len(versions) > 1:
        sides = (
            f"{version} on {format_ranks([r for r, fact in enumerate(facts) if fact['version'] == version])}"
            for version in sorted(versions)
        )
        return f"NCCL has different versions: {', '.join(sides)}"
    hosts = Layout.from_keys([fact["host"] for fact in facts])
    shared = shared_devices(hosts, [fact["device"] for fact in facts])
    if shared and not all(fact["shares"] for fact in facts):
        device, ranks = shared[0]
        host = facts[ranks[0]]["host"]
        return (
            f"{format_ranks(ranks)} use the same device {device} on {host}: give each rank its own "
            "(comm.device), or set NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30 or later)"
        )
    return ""
