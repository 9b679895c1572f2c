"""Calls on device arrays: enqueued on NCCL, or carried over the host as calls on host arrays.

Over the host, elements are copied to pinned memory, the call is made there by the plans of host arrays, and
the results are copied back: any call, dtype and operator works, with the host's answer; the caller waits.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.buffer import Buffer
from hpccoll.arrays.device import current_stream, home_of
from hpccoll.calls import Call
from hpccoll.errors import AbortedError, HpccollError, MismatchError, UsageError
from hpccoll.memory.device import array_of, check_dtype, is_captured
from hpccoll.memory.shared import gathered
from hpccoll.observe.metrics import Timing, named, size_of
from hpccoll.observe.snapshot import BLOCKING, STARTED
from hpccoll.plans.collective import SCANS
from hpccoll.runtime.device_checks import DeviceChecks, code_of
from hpccoll.runtime.device_watch import WATCH
from hpccoll.runtime.enqueued import Bound
from hpccoll.runtime.progress import PROGRESS, Running
from hpccoll.runtime.replay import Replays, give_up
from hpccoll.runtime.wait import Hint, Waits
from hpccoll.topology.gpus import choose_ordinal, visible_devices
from hpccoll.topology.notation import format_ranks
from hpccoll.transports.base import Array

if TYPE_CHECKING:
    from hpccoll.ops.table import Arithmetic
    from hpccoll.runtime.between import Passage
    from hpccoll.runtime.context import Context
    from hpccoll.runtime.device_side import ByNccl, DeviceSide
    from hpccoll.runtime.device_times import DeviceTimes, TimedTape
    from hpccoll.runtime.planning import Explanation
    from hpccoll.runtime.streams import Pinned
    from hpccoll.runtime.tape import Tape

LOG = logging.getLogger("hpccoll")
PATIENCE_S = 0.75  # for the news of why NCCL has failed
Key = tuple[object, ...]


class DeviceCalls:
    """The calls on device arrays of one communicator.  `side`: made with the first of them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._side: DeviceSide | None = None
        self._ordinal: int | None = None
        self._crossing: Running | None = None
        self._checking: Running | None = None
        self._kinds: dict[Key, ByNccl | None] = {}
        self.checks = DeviceChecks(context.config)
        self._compared: tuple[int, int] | None = None  # what the ranks are about to compare
        self.replays: Replays | None = None
        self.times: DeviceTimes | None = None  # where a timeline is wanted

    @property
    def side(self) -> DeviceSide:
        """Its NCCL groups and streams; made by then."""
        if self._side is None:
            raise RuntimeError("no call on a device array has been made")
        return self._side

    @property
    def ordinal(self) -> int:
        """The device for this rank.  Collective at first use; raises ResourceError on all ranks."""
        if self._ordinal is None:
            context, sequence = self._context, self._context.number()
            context.wait(context.in_turn(sequence, self._choose()), "device", sequence, None)
        assert self._ordinal is not None
        return self._ordinal

    def _choose(self) -> Waits:
        context = self._context
        deadline = time.monotonic() + context.config.init_timeout_s
        self._ordinal = choose_ordinal(context.private, os.environ, deadline)
        yield from ()

    def explain(
        self, name: str, nbytes: int, dtype: np.dtype[Any], root: int, arithmetic: Arithmetic | None
    ) -> Explanation:
        """As `Planner.explain`, for arrays on devices.  Collective at first use."""
        context = self._context
        if self._side is None:
            sequence = context.number()
            context.wait(context.in_turn(sequence, self._get_ready()), "device", sequence, None)
        how = None if name == "barrier" or name in SCANS else self.side.travels(name, arithmetic, dtype)
        if how is None:
            found = context.planner.explain(name, nbytes, dtype, root, arithmetic)
            way = "NCCL's call over all ranks, and kernels" if name in SCANS else "over the host"
            return replace(found, why=f"on devices {way}; there: {found.why}")
        return self.side.explain(name, nbytes, root, how, context.planner.only_now(name, on_device=True))

    def _get_ready(self) -> Waits:
        if self._ordinal is None:
            yield from self._choose()
        self._made_side(self._ordinal or 0)

    @property
    def path(self) -> str:
        """How device arrays travel, and why."""
        if self._side is None:
            return ""
        inside = "nccl" if self._side.bridge is None else "nccl, between nodes by mpi"
        return f"host: {self._side.reason}" if self._side.reason else inside

    def run(self, call: Call, stream: int | None) -> ByNccl | None:
        """Enqueue a call on a stream, by default the caller's current one; or carry it over the host.

        Returns what it was taken for.

        Raises: as `Context.run`.
        """
        kind = self._agreed_kind(call, waits=True)
        if kind is None:
            sequence = self._context.number()
            stages = self._over_host(call, stream, sequence, self._context.timing(BLOCKING))
            self._context.wait(stages, call.collective, sequence, None)
        elif self.side.elsewhere.are_needed(call, stream):
            self._check_capture(kind, call, stream)
            self._enqueue(kind, self._visiting(call, stream), self.side.own_stream)
            self.side.elsewhere.leave(call, stream)
            self._wait_without_worker(kind)
        else:
            self.repeat(kind, call, _stream_of(call) if stream is None else stream)
        return kind

    def repeat(self, kind: ByNccl, call: Call, stream: int, form: str = BLOCKING) -> None:
        """Enqueue a call of a kind that the ranks have agreed on.  Raises: as `Context.run`."""
        self._context.check_usable()
        self._check_capture(kind, call, stream)
        self._check_meanwhile(call)
        self._enqueue(kind, call, stream, form)
        self._wait_without_worker(kind)

    def start(self, call: Call) -> Running:
        """As `run`, on the communicator's own stream, behind what is on the caller's."""
        kind = self._agreed_kind(call)
        context, side = self._context, self.side
        if kind is None:
            sequence = context.number()
            timing = context.timing(STARTED)
            over_host = self._over_host(call, None, sequence, timing)
            return context.begin(over_host, call.collective, sequence, timing)
        self.refuse_in_graph(call, None, "is a started one")
        here = self._visiting(call, None) if side.elsewhere.are_needed(call, None) else call
        self._check_meanwhile(call)
        checking = self._checking
        self._enqueue(kind, here, side.own_stream, STARTED)
        with side.device:
            done = side.device.mark(side.own_stream)

        def stages() -> Waits:
            while not side.device.reached(done):
                self.look(kind)
                yield None
            self.look(kind)  # what a lost rank ends is complete too, and wrong
            yield from _until_done(checking)
            if context.broken is not None:
                context.number()
            running.event = None
            side.device.give_back(done)
            side.kept.look()

        running = context.running(stages(), call.collective, sequence=-1)
        running.event = done
        if not kind.by_mpi or _has_worker():  # else who waits on the host moves MPI on
            running.block = partial(self._block, running, call)
        PROGRESS.add(running)
        return running

    def bind(self, call: Call, stream: int | None) -> Bound | None:
        """A call to be started again and again; None where it goes over the host."""
        kind = self._agreed_kind(call)
        return None if kind is None else Bound(self._context, call, kind, stream)

    def _block(self, running: Running, call: Call, stream: int | None) -> None:
        """A stream (by default the current one) waits for a started call."""
        event = running.event  # the worker takes it away once the call is complete
        if event is not None:
            self.side.elsewhere.follow(call, _stream_now(call) if stream is None else stream, event)

    def _visiting(self, call: Call, stream: int | None) -> Call:
        """A call on arrays of other devices, as one on copies of them on the communicator's."""
        try:
            with self.side.device:
                return self.side.elsewhere.visit(call, stream)
        except BaseException as error:
            give_up(self._context, error, call.collective)
            raise

    def why_not_bound(self, call: Call) -> UsageError | None:
        """Why a persistent call cannot be made of these arrays."""
        from hpccoll.runtime.elsewhere import ordinals

        found = ordinals(call)
        mine = found[:1] if self._side is None else [self._side.device.ordinal]
        others = sorted({ordinal for ordinal in found if ordinal not in mine})
        if not others:
            return None
        return UsageError(
            f"a persistent call on an array of device {others[0]}: the communicator's device is {mine[0]}"
        )

    def _enqueue(self, kind: ByNccl, call: Call, stream: int, form: str = BLOCKING) -> None:
        passage = self._cross(call) if kind.by_mpi else None
        try:
            if self.times is None:
                self._put_on(kind, call, stream)
            else:
                label, nbytes = self._words(call, kind.program.name)
                self.times.timed(label, nbytes, stream, lambda: self._put_on(kind, call, stream))
        except BaseException as error:
            give_up(self._context, error, call.collective)
            raise
        finally:
            if passage is not None:
                passage.whole = True
        self.checks.enqueued(kind.code)
        self._context.tally[call.collective, kind.program.name] += 1
        if self._context.metrics is not None:
            self._context.metrics.on_device(call, kind.program.name, form)()
        # Copies made for it go in the order of their own stream; what a graph uses is the caller's to keep.
        if any(home_of(array).stream != stream for array in call.arrays) and not self._captured(stream):
            self.side.kept.until_now(stream, call)

    def _put_on(self, kind: ByNccl, call: Call, stream: int) -> None:
        with self.side.device:
            self.side.enqueue(kind, call, stream)

    def _words(self, call: Call, name: str) -> tuple[str, int]:
        """What the timeline says of a call, and its bytes."""
        return f"{named(call)} (nccl, {name})", size_of(call, self._context.size)

    def timed_tape(self, tape: Tape, call: Call, name: str) -> Tape | TimedTape:
        """A tape, timed where a timeline is wanted."""
        if self.times is None:
            return tape
        from hpccoll.runtime.device_times import TimedTape

        return TimedTape(tape, self.times, *self._words(call, name))

    def _cross(self, call: Call) -> Passage:
        """Start the host's part of the steps between nodes that are enqueued next."""
        bridge = self.side.bridge
        assert bridge is not None
        passage = bridge.passage()
        # The device may first be busy with the caller's work for long; MPI's part has a deadline of its own.
        stages = bridge.stages(passage)
        self._crossing = self._context.running(stages, call.collective, -1, timeout_s=math.inf)
        PROGRESS.add(self._crossing)
        return passage

    def _wait_without_worker(self, kind: ByNccl) -> None:
        """The stream may be waited for outside of hpccoll, where nothing moves MPI on without a worker."""
        if kind.by_mpi and not _has_worker():
            self.wait_for_mpi()

    def note_times(self) -> None:
        """The times of calls that are complete go into the timeline."""
        if self.times is not None:
            self.times.flush()

    def wait_for_host(self) -> None:
        """Until all that the host does for calls that are enqueued is done.  Raises its errors."""
        self.wait_for_mpi()
        checking, self._checking = self._checking, None
        if checking is not None:
            PROGRESS.wait(checking)
            if checking.error is not None:
                raise checking.error

    def wait_for_mpi(self) -> None:
        """Until all that goes between nodes by MPI has been there.  Raises its errors."""
        crossing, self._crossing = self._crossing, None
        if crossing is not None:
            PROGRESS.wait(crossing)
            if crossing.error is not None:
                raise crossing.error

    # --- CUDA graphs ----------------------------------------------------------------------------

    def _check_capture(self, kind: ByNccl, call: Call, stream: int | None) -> None:
        """Raises UsageError on all ranks where a graph is to have a call that MPI takes part in."""
        if kind.by_mpi:
            self.refuse_in_graph(call, stream, "goes between nodes by MPI")

    def refuse_in_graph(self, call: Call, stream: int | None, why: str) -> None:
        """Raises UsageError on all ranks, if the stream of a call is captured."""
        if self._captured(_stream_of(call) if stream is None else stream):
            sequence = self._context.number()
            stages = self._refused_in_graph(call, sequence, why)
            self._context.wait(stages, call.collective, sequence, None)

    def _captured(self, stream: int) -> bool:
        with self.side.device:
            return is_captured(stream)

    def _refused_in_graph(self, call: Call, sequence: int, why: str) -> Waits:
        error = UsageError(f"this call {why}, which a CUDA graph cannot capture")
        yield from self._context.refusal(call.collective, sequence, error)

    # --- kinds of calls -------------------------------------------------------------------------

    def _agreed_kind(self, call: Call, *, waits: bool = False) -> ByNccl | None:
        """What a call becomes, None where it goes over the host; the first of its kind all ranks agree on.

        `waits`: and on this one where that is due; else see `_check_meanwhile`.
        """
        context, key = self._context, self._key(call)
        known = key in self._kinds
        due = waits and self._is_due(call) and self._kinds.get(key) is not None
        # What blocks of different lengths the others have may change with every call.
        if not known or due or (call.ragged and self._kinds[key] is not None):
            if self._is_due(call):
                self.checks.passed()
            sequence = context.number()
            found: list[ByNccl | None] = []

            def stages() -> Waits:
                yield from self._agree(call, sequence, (self.checks.made, self.checks.digest))
                if not known:
                    self._learn(key, call)
                found.append((yield from self._for_lengths(self._kinds[key], call)))

            context.wait(context.in_turn(sequence, stages()), call.collective, sequence, None)
            return found[0]
        if context.broken is not None:
            context.number()
        return self._kinds[key]

    def _is_due(self, call: Call) -> bool:
        """Whether the ranks agree on this call again.  Lengths of blocks are agreed on anyway."""
        return self.checks.is_due and not call.ragged

    def _check_meanwhile(self, call: Call) -> None:
        """Where the ranks are to agree on a call that must not wait for the others: they do later.

        By then it is enqueued; where they do not agree the communicator is given up.
        """
        if not self._is_due(call):
            return
        context, before = self._context, (self.checks.made, self.checks.digest)
        sequence = context.number()
        self.checks.passed()

        def stages() -> Waits:
            try:
                yield from self._agree(call, sequence, before)
            except (MismatchError, UsageError) as error:
                raise _too_late(error, "this call, too, was enqueued before that was found") from error

        self._checking = context.begin(context.in_turn(sequence, stages()), call.collective, sequence)

    def _agree(self, call: Call, sequence: int, before: tuple[int, int]) -> Waits:
        """As `Opening.agree_on_device`; `before`: how many calls were enqueued here, and their checksum."""
        self._compared = before
        yield from self._context.opening.agree_on_device(call, sequence, before[1])
        self._compared = None

    def settle(self, error: HpccollError) -> Waits:
        """Raises AbortedError on all ranks, where the calls enqueued before a disagreement differ, too."""
        compared, self._compared = self._compared, None
        own = np.array(compared or (self.checks.made, self.checks.digest))
        table = yield from gathered(self._context.private, own)
        if (table == table[0]).all():
            self.checks.passed()  # on all ranks, also those for which this was no check
            return
        made = table[:, 0].tolist()
        counts = (
            "as many, of other kinds"
            if len(set(made)) == 1
            else ", ".join(
                f"{count} on {format_ranks([rank for rank, one in enumerate(made) if one == count])}"
                for count in sorted(set(made))
            )
        )
        raise _too_late(error, f"calls on devices that were enqueued before differ, too: {counts}")

    def look_after(self) -> None:
        """Give the communicator up where what its devices wait for cannot come; for `device_watch`."""
        context, side = self._context, self._side
        if side is None or context.broken is not None:
            return
        try:
            self._look_for_abort()
            side.look_at_all()
        except Exception as error:  # the thread goes on
            self._give_up_from_outside(self.why_nccl_failed(error))

    def look(self, kind: ByNccl) -> None:
        """Raises when NCCL has failed, or another rank has given up."""
        try:
            self.side.look(kind)
        except AbortedError as error:
            found = self.why_nccl_failed(error)
            if found is error:
                raise
            raise found from error

    def why_nccl_failed(self, error: BaseException) -> BaseException:
        """An error of NCCL, or what it comes from: NCCL may notice a lost rank before we do."""
        deadline = time.monotonic() + PATIENCE_S
        while isinstance(error, AbortedError) and time.monotonic() < deadline:
            found = self._context.broken or self._context.why_given_up()
            if found is not None:
                return found
            time.sleep(PATIENCE_S / 20)
        return error

    def _give_up_from_outside(self, error: BaseException) -> None:
        """As a call that fails does, while no call is made: nothing is to be enqueued meanwhile."""
        context = self._context
        context.is_given_up = True
        if not context.in_use.acquire(blocking=False):
            context.is_given_up = False
            return  # a call is being made, and looks itself; else the next turn comes here again
        try:
            LOG.error("rank %d: what was enqueued on devices has wrong results: %s", context.rank, error)
            context.is_untold = True  # first: what waits for a stream goes on before the next line is over
            context.failed(error, "a call on a device", -1, None)
        finally:
            context.in_use.release()
            context.is_given_up = False

    def _look_for_abort(self) -> None:
        error = self._context.why_given_up()
        if error is not None:
            raise error

    def _for_lengths(self, kind: ByNccl | None, call: Call) -> Generator[Hint | None, None, ByNccl | None]:
        """The kind of a call, where that is another one for other lengths of its blocks."""
        from hpccoll.runtime.device_blocks import PlansOfBlocks

        if kind is None or not isinstance(kind.program, PlansOfBlocks):
            return kind
        rows, columns = yield from self._context.opening.lengths_in_node(call)
        program = kind.program.program(self._context.planner.ragged(call, rows, columns))
        return replace(kind, program=program)

    def _key(self, call: Call) -> Key:
        """What tells kinds of calls apart, of facts that all ranks share."""
        operator = call.arithmetic.operator if call.arithmetic is not None else None
        combined = (operator.code, operator.into) if operator is not None else ()
        only = self._context.planner.only(call.collective, call.asked, on_device=True)
        # What a rank gives and takes in a ragged call the others do not know, but for a reduce-scatter.
        counts = call.gives if call.ragged and call.collective == "reduce_scatter" else call.ragged
        return (call.collective, call.dtype, call.count, call.root, counts, only, combined)

    def _learn(self, key: Key, call: Call) -> None:
        some = call.give if call.give.size or call.take is None else call.take.flat
        side = self._made_side(home_of(some).device)
        kind = side.learn(call, self._context.planner.only(call.collective, call.asked, on_device=True))
        self._kinds[key] = None if kind is None else replace(kind, code=code_of(key))

    def _made_side(self, ordinal: int) -> DeviceSide:
        """Its NCCL groups and streams; made now, on that device, if they are not.  Collective."""
        if self._side is None:
            from hpccoll.runtime.device_side import DeviceSide

            context = self._context
            self._side = DeviceSide(
                context.private,
                context.machine.layout,
                context.config,
                ordinal,
                context.planner.measured,
                self._look_for_abort,
            )
            self.replays = Replays(context)
            if not self._side.reason:
                WATCH.add(self)
                self._time_calls(self._side)
        return self._side

    def _time_calls(self, side: DeviceSide) -> None:
        """Where a timeline is wanted, calls are timed from now on."""
        recorder = self._context.recorder
        if recorder.events is not None:
            from hpccoll.runtime.device_times import DeviceTimes

            self.times = DeviceTimes(recorder, recorder.events, side.device, side.own_stream)

    # --- memory ---------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Let go of memory that no array is in any more; waits for the device."""
        self.wait_for_mpi()
        if self._side is not None:
            self._side.memory.sweep()

    def check_allocation(self, dtype: np.dtype[Any], device: int | str) -> None:
        """Raises: UsageError for an array that cannot be had where it was asked for."""
        if find_spec("cupy") is None:
            raise UsageError("an array on a device is one of CuPy, which is not installed here")
        if device != "cuda":
            there = len(visible_devices())
            number = -1 if isinstance(device, (str, bool)) else device
            if not isinstance(number, (int, np.integer)) or not 0 <= number < there:
                raise UsageError(f'device is {device!r}: must be an ordinal below {there}, or "cuda"')
        if self._side is not None and device not in ("cuda", self._side.device.ordinal):
            raise UsageError(f"device is {device}: that of the communicator is {self._side.device.ordinal}")
        check_dtype(dtype)

    def allocate(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], device: int | str
    ) -> Generator[Hint | None, None, Any]:
        """An array of CuPy in memory that NCCL knows.  Collective."""
        if self._side is None and self._ordinal is None:
            yield from self._choose()
        asked = self._ordinal if isinstance(device, str) else int(device)
        side = self._made_side(asked or 0)
        lease = side.allocate(math.prod(shape) * dtype.itemsize)
        return array_of(lease.memory.address, lease.memory.nbytes, shape, dtype, side.device.ordinal, lease)

    # --- over the host --------------------------------------------------------------------------

    def _over_host(self, call: Call, stream: int | None, sequence: int, timing: Timing | None) -> Waits:
        current = _stream_of(call) if stream is None else stream
        if self._captured(current):
            yield from self._refused_in_graph(call, sequence, "goes over the host")
        if self.side.elsewhere.are_needed(call, stream):
            here = self._visiting(call, stream)
            yield from self._over_host_here(here, self.side.own_stream, sequence, timing)
            self.side.elsewhere.leave(call, stream)
        else:
            yield from self._over_host_here(call, current, sequence, timing)

    def _over_host_here(self, call: Call, stream: int, sequence: int, timing: Timing | None) -> Waits:
        side, give = self.side, call.give
        with side.device:
            room = side.pinned.take(give.nbytes)
        yield from self._fetch(give, room, stream)
        twin = replace(call, give=_host(room, give.size, give.dtype), reads=(), staged=True)
        landing = None
        if call.take is not None:
            with side.device:
                landing = side.pinned.take(call.take.flat.nbytes)
            twin.take = Buffer(_host(landing, call.take.count, call.take.dtype), None)
        yield from self._context.steps(twin, sequence, timing=timing)
        side.pinned.give_back(room)
        if call.take is not None and landing is not None:
            with side.device:
                self._bring(landing, call.take, stream)

    def _fetch(self, give: Array, room: Pinned, stream: int) -> Waits:
        from hpccoll.runtime.streams import to_host

        side = self.side
        with side.device:
            side.order(give, stream)
            if give.size:
                to_host(room.address, give.ctypes.data, give.nbytes, stream)
            arrived = side.device.mark(stream)
        while not side.device.reached(arrived):
            yield None
        side.device.give_back(arrived)

    def _bring(self, landing: Pinned, take: Buffer, stream: int) -> None:
        from hpccoll.runtime.streams import to_device

        side = self.side
        side.order(take.flat, stream)
        if take.flat.size:
            to_device(take.flat.ctypes.data, landing.address, take.flat.nbytes, stream)
        take.unpack(stream)
        side.kept.until_now(stream, landing, side.pinned.give_back)

    # --- end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free NCCL's communicators.  Collective."""
        WATCH.remove(self)
        if self._side is not None:
            self._side.close()

    def abort(self) -> None:
        """What waits on a device for a lost rank ends.  Local."""
        if self._side is not None:
            self._side.abort()

    def release(self) -> None:
        """Let go of this rank's streams and memory; local."""
        WATCH.remove(self)
        if self._side is not None:
            if self.replays is not None:
                self.replays.forget()
            if self.times is not None:
                self.times.close()
            self._side.release()
            self._side = self.replays = None


def _until_done(running: Running | None) -> Waits:
    """Until the ranks have agreed; raises what they raise."""
    while running is not None and not running.done:
        yield None
    if running is not None and running.error is not None:
        raise running.error


def _too_late(error: HpccollError, why: str) -> AbortedError:
    """A disagreement that leaves the communicator broken."""
    said = error.message.replace(" (nothing was moved)", "").replace(" (nothing was moved on any rank)", "")
    return AbortedError(
        f"{said}; {why}, and cannot be taken back",
        collective=error.collective,
        sequence=error.sequence,
        rank=error.rank,
        suspects=error.suspects,
    )


def _has_worker() -> bool:
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def _stream_of(call: Call) -> int:
    """The stream on which the caller's arrays are in order."""
    return home_of(call.give if call.take is None else call.take.flat).stream


def _stream_now(call: Call) -> int:
    """The stream that is current in the library of the caller's arrays by now."""
    home = home_of(call.give if call.take is None else call.take.flat)
    return current_stream(home.owner, home.stream)


def _host(pinned: Pinned, count: int, dtype: np.dtype[Any]) -> Array:
    return pinned.bytes()[: count * dtype.itemsize].view(dtype)
