"""What a communicator has of its own once it is used: private duplicate, machine, memory, plans.

Made collectively at the first collective call, on the calling thread, so that unused communicators cost
nothing.  `close()` frees it, collectively; nothing collective happens in a destructor or at exit.

A call is a generator (`steps`) that yields where it would wait.  Calls of one communicator agree one after
the other, in the order in which they were made; their elements then move at the same time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from mpi4py import MPI

from hpccoll.bootstrap import check_same_settings, duplicate, ranks_on_host
from hpccoll.calls import Call
from hpccoll.config import Config
from hpccoll.errors import (
    AbortedError,
    CollectiveTimeoutError,
    HpccollError,
    MismatchError,
    ResourceError,
    TopologyError,
    UsageError,
)
from hpccoll.memory.checksums import checksum_function
from hpccoll.memory.flags import Flags, open_flags, spin_time_us
from hpccoll.memory.shared import collected, open_shared
from hpccoll.observe import form, parts
from hpccoll.observe.alignment import measured
from hpccoll.observe.caller import calling_line
from hpccoll.observe.metrics import Timing, measure
from hpccoll.observe.snapshot import BLOCKING, STARTED
from hpccoll.observe.start import open_recorder
from hpccoll.plans.select import ONE_SHOT_TOTAL
from hpccoll.runtime.agreement import Agreement
from hpccoll.runtime.control import Control, SegmentLayout
from hpccoll.runtime.counts import Counts
from hpccoll.runtime.device_calls import DeviceCalls
from hpccoll.runtime.enqueued import Bound
from hpccoll.runtime.fingerprint import (
    ALLOCATING,
    CLOSING,
    DEVICE,
    HOST,
    Fingerprint,
)
from hpccoll.runtime.known_calls import KnownCalls
from hpccoll.runtime.movement import Movement, travelling
from hpccoll.runtime.one_shot import finish_payload
from hpccoll.runtime.opening import Opening, fingerprint_of, refusal_kind
from hpccoll.runtime.planning import Planned, Planner
from hpccoll.runtime.presence import Presence
from hpccoll.runtime.progress import PROGRESS, Running
from hpccoll.runtime.reason import Reason, corruption
from hpccoll.runtime.repeats import Given, startable
from hpccoll.runtime.reports import Reports
from hpccoll.runtime.wait import Hint, Waits, drive
from hpccoll.topology.machine import Machine, discover
from hpccoll.transports.corrupted import Corrupted
from hpccoll.transports.mpi import CheckedNetwork, MpiNetwork
from hpccoll.tuning import place

if TYPE_CHECKING:
    from hpccoll._native import _core
    from hpccoll.runtime.device_side import ByNccl
    from hpccoll.runtime.engine import NativeExecution
    from hpccoll.runtime.executor import Execution

T = TypeVar("T")

AGREEMENT_CHANNEL = 1  # an MPI tag; movement.py has those of the elements
PROGRESS_CHANNEL = 2  # no message has it: asking for one lets MPI move on
GIVING_UP_S = 5.0  # a call waits so long for a thread that gives the communicator up
LEAST_PAYLOAD = 64  # bytes that can always travel with the agreement


# Calls given up in the middle, with their contexts: MPI may still read and write their memory, until the
# process ends.
_given_up: list[object] = []


class Context:
    """The working state of one communicator.

    `tally` counts the calls that ended well, by collective and plan, but for those of `again`; `last_error`
    is what the last call that did not raised, or would have.
    """

    def __init__(self, comm: MPI.Intracomm, config: Config) -> None:
        deadline = time.monotonic() + config.init_timeout_s
        self.config = config
        self.tally: Counter[tuple[str, str]] = Counter()
        self.last_error: HpccollError | None = None
        self.private = duplicate(comm, deadline)
        try:
            self.machine: Machine = discover(
                self.private, layout=config.layout or None, shm_directory=config.shm_dir, deadline=deadline
            )
            check_same_settings(self.private, config, deadline)
            self.rank, self.size = self.private.rank, self.private.size
            self.layout = self.machine.layout.by_node
            self.recorder = open_recorder(self.private, config, self.machine, comm.Get_name(), deadline)
            self.metrics = measure(self.machine, config, comm.Get_name())
            ranks, cores = self._ranks_and_cores()
            self._spin_us = spin_time_us(ranks, cores)
            measured = place.load(self.private, self.machine, config, deadline)
            self.planner = Planner(self.machine.layout, self.rank, config, measured)
            self.on_devices = DeviceCalls(self)
            self._checksum = checksum_function(config.native) if config.checksums else None
            self._network = (
                MpiNetwork(self.private)
                if self._checksum is None
                else CheckedNetwork(self.private, self._checksum)
            )
            self._movement = Movement(
                self.private,
                self.layout,
                config,
                self._network,
                self._open_flags,
                PROGRESS_CHANNEL,
                self._spin_us * 1e-6,
                ranks <= cores,
            )
            if self.recorder.events is not None:
                self._movement.observe = self._observe
            self.broken: HpccollError | None = None
            self.counts = Counts()
            self._areas = 0
            self.in_use = threading.Lock()
            self.is_given_up = False  # just now, by a thread that looks after devices
            self.is_untold = False  # no call has raised what that thread has found
            self._open_control(deadline)
            self._presence = Presence(
                self.private,
                self.layout,
                self.machine.hosts,
                config,
                self._control,
                self.counts,
                self.on_devices.checks,
                deadline,
            )
            self._reports = Reports(
                self.layout,
                self.rank,
                self._control,
                self._agreement,
                self._movement,
                self._presence,
                config.warn_after_s,
            )
            self.known = KnownCalls(
                self, self._control, self._movement, AGREEMENT_CHANNEL, self._spin_us * 1e-6
            )
            self._presence.leaves_behind(weakref.WeakMethod(self.first_unfinished))
            if config.trace:
                self._align_clocks(deadline)
        except (UsageError, MismatchError, TopologyError, ResourceError):
            self.private.Free()  # these errors come to every rank alike
            raise

    def _ranks_and_cores(self) -> tuple[int, int]:
        """How many ranks share the cores of this host, and how many cores those are."""
        ranks, cores = self.machine.host_size, self.machine.cores[self.rank]
        if cores == os.cpu_count():  # where ranks are not bound, those of other communicators use them too
            ranks = max(ranks, ranks_on_host(os.environ))
        return ranks, cores

    # --- calls ----------------------------------------------------------------------------------

    def run(self, call: Call, given: Given | None = None, timeout_s: float | None = None) -> None:
        """Carry out a call and wait for its end.  Raises what `steps` raises, and CollectiveTimeoutError.

        `given`: the caller's buffers, operator and root, by which the call is known again.
        """
        call.asked = self.planner.forced_name
        with self._alone(call.collective):
            sequence = self.number()
            stages = self.steps(call, sequence, timing=self.timing(BLOCKING))
            planned = self.wait(stages, call.collective, sequence, timeout_s)
            if given is not None:
                self.known.note(given, call, planned)

    def run_on_device(self, call: Call, given: tuple[Any, ...] | None, stream: int | None) -> None:
        """Enqueue a call on device arrays on `stream` or the current one, or carry it over the host.

        `given`: the caller's buffers, operator and root, by which the call is known again.
        """
        call.asked = self.planner.forced_name
        with self._alone(call.collective):
            kind = self.on_devices.run(call, stream)
            if kind is not None and given is not None and self.on_devices.replays is not None:
                self.on_devices.replays.note(call.collective, given, call, kind)

    def repeat_on_device(self, kind: ByNccl, call: Call, stream: int) -> None:
        """Enqueue a call on device arrays that was agreed on by `make`."""
        with self._alone(call.collective):
            self.on_devices.repeat(kind, call, stream, STARTED)

    def start(self, call: Call, given: Given | None = None) -> Running:
        """Begin a call that goes on while the caller does other things; `given` as in `run`."""
        call.asked = self.planner.forced_name
        with self._alone(call.collective):
            if call.on_device:
                return self.on_devices.start(call)
            sequence = self.number()
            timing = self.timing(STARTED)
            stages = self._all_steps(call, sequence, given, timing)
            return self.begin(stages, call.collective, sequence, timing)

    def make(self, call: Call, stream: int | None = None) -> Bound | None:
        """Agree on a persistent call that is to be started later; Bound where it is NCCL's.

        `stream`: of device arrays, where it is given.
        """
        call.asked = self.planner.forced_name
        if call.on_device and (error := self.on_devices.why_not_bound(call)) is not None:
            self.refuse(call.collective, error)
        with self._alone(call.collective):
            sequence = self.number()
            stages = self.in_turn(sequence, self.opening.agree_to_make(call, sequence))
            self.wait(stages, call.collective, sequence, None)
            return self.on_devices.bind(call, stream) if call.on_device else None

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: int | str | None = None) -> Any:
        """An array in memory that the ranks of this node share, or that NCCL knows.  Collective.

        `device`: an ordinal, "cuda" for that of the communicator, or None.

        Raises: ResourceError on all ranks, when one has too little room.
        """
        with self._alone("empty"):
            if device is not None:
                self.on_devices.sweep()
            sequence = self.number()
            self._areas += 1
            made: list[Any] = []
            memory = HOST if device is None else DEVICE

            def stages() -> Waits:
                call = Fingerprint(sequence, b"", 0, 0, "barrier", 0, memory=memory, form=ALLOCATING)
                yield from self._agreement.check(sequence, call.pack(), "", None)
                if device is None:
                    made.append((yield from self._movement.allocate(self._areas, shape, dtype)))
                else:
                    made.append((yield from self.on_devices.allocate(shape, dtype, device)))

            self.wait(self.in_turn(sequence, stages()), "empty", sequence, None)
        return made[0]

    def refuse(self, collective: str, error: UsageError, *, wait: bool = True) -> None:
        """Tell all ranks that this rank's arguments are wrong.

        With `wait` it raises the error of all ranks once all have come; else the others learn by and by.
        """
        with self.in_use:
            sequence = self.number()
            stages = self.refusal(collective, sequence, error)
            if wait:
                self.wait(stages, collective, sequence, None)
            else:
                self.begin(stages, collective, sequence)

    def refusal(self, collective: str, sequence: int, error: UsageError) -> Waits:
        """The stages of a call whose arguments are wrong on this rank."""
        before = self.on_devices.checks.digest
        call = Fingerprint(sequence, b"", 0, 0, collective, 0, refused=refusal_kind(error), counts=before)
        return self.in_turn(sequence, self._agreement.check(sequence, call.pack(), str(error), None))

    def steps(
        self,
        call: Call,
        sequence: int,
        *,
        arrived: bool = False,
        spread: _core.Spread | None = None,
        timing: Timing | None = None,
    ) -> Generator[Hint | None, None, Planned]:
        """All of a call, as a generator that yields where it would wait.

        `arrived`: this rank has said what it calls already; `spread`: so has its node, to the other leaders.
        Raises: UsageError, MismatchError before anything has moved.
        """
        give = travelling(call)
        stages = self.opening.agree(call, sequence, give, arrived, spread)
        planned, payload = yield from self.in_turn(sequence, stages)
        # No wait between the turn and the first step: groups are entered in the order of calls.
        plan = planned.plan
        if self.config.checks == "off":  # nobody has asked what this rank calls
            self.recorder.called(sequence, fingerprint_of(call, sequence, planned.code))
        self.recorder.moves(sequence, planned, give.itemsize)
        if timing is not None:
            timing.agreed()
        if payload is not None:
            finish_payload(call, plan, payload, self.rank)
        else:
            yield from self._movement.move(call, planned, give, sequence, self._control.note_step)
        if call.take is not None:
            call.take.unpack()
        self.count(call, planned, timing)
        return planned

    def count(self, call: Call, planned: Planned, timing: Timing | None) -> None:
        """A call has ended well."""
        self.tally[call.collective, planned.plan.name] += 1
        if timing is not None:
            timing.ended(call, planned)

    def timing(self, form: str) -> Timing | None:
        """A call begins, and is measured; None where none is."""
        return None if self.metrics is None else self.metrics.begin(form)

    def _all_steps(self, call: Call, sequence: int, given: Given | None, timing: Timing | None) -> Waits:
        planned = yield from self.steps(call, sequence, timing=timing)
        if given is not None and startable(call) and not call.asked:
            self.known.note(given, call, planned)

    def in_turn(
        self, sequence: int, stages: Generator[Hint | None, None, T]
    ) -> Generator[Hint | None, None, T]:
        """The stages, once all earlier calls are through theirs."""
        while self.counts.agreed < sequence:
            yield None
        try:
            return (yield from stages)
        finally:
            self.counts.agreed = sequence + 1

    def number(self) -> int:
        """The sequence number of the next call.  Raises AbortedError on a broken communicator."""
        self.known.take_over()
        if self.broken is not None:
            self.is_untold = False
            raise AbortedError(
                f"the communicator is broken since an earlier call: {self.broken}", rank=self.rank
            ) from self.broken
        return self.counts.take_number()

    def check_usable(self) -> None:
        """Raises AbortedError on a broken communicator."""
        if self.broken is not None:
            self.number()

    # --- threads and requests ---------------------------------------------------------------------

    @contextmanager
    def _alone(self, collective: str) -> Generator[None, None, None]:
        """One thread at a time; a second one at the same time is a mistake that all ranks learn of."""
        if not self.in_use.acquire(timeout=GIVING_UP_S if self.is_given_up else 0):
            self.check_usable()
            error = UsageError(
                f"{collective} was called by thread {threading.current_thread().name!r} while another thread "
                "is in a collective of the same communicator: give each thread one of its own (Dup)"
            )
            self.refuse(collective, error)
            raise error
        try:
            yield
        finally:
            self.in_use.release()

    def begin(self, stages: Waits, collective: str, sequence: int, timing: Timing | None = None) -> Running:
        """Start the stages of a call."""
        running = self.running(stages, collective, sequence)
        running.timing = timing
        PROGRESS.add(running)
        return running

    def running(
        self, stages: Waits, collective: str, sequence: int, timeout_s: float | None = None
    ) -> Running:
        """A started call of these stages, which `PROGRESS.add` moves on.

        `timeout_s`: by default that of calls.
        """
        timeout_s = self.config.timeout_s if timeout_s is None else timeout_s

        def ended(error: BaseException | None) -> BaseException | None:
            if error is None:
                self.recorder.end(sequence)
                return None
            found = self._in_our_words(error, collective, sequence, line)
            self.failed(found, collective, sequence, stages)
            return found

        self.recorder.enter(collective, sequence, form.STARTED)
        line = calling_line() or self.recorder.line(sequence)  # the worker may have taken it over
        watch = self._reports.watch(collective, sequence, line)
        running = Running(
            stages,
            aborted=lambda: self._look_for_abort(collective, sequence, watch, line),
            late=lambda over: self._reports.late(collective, sequence, timeout_s, over, line),
            progress=self._let_mpi_move,
            ended=ended,
            timeout_s=timeout_s,
            owner=self,
            sequence=sequence,
        )
        running.events = self.recorder.events
        return running

    def all_calls(self) -> Counter[tuple[str, str]]:
        """How many calls ended well, by collective and plan."""
        total = self.tally.copy()
        for label, count in self.known.calls():
            if count:
                total[label] += count
        return total

    @contextmanager
    def forced(self, algorithm: str) -> Generator[None, None, None]:
        """Inside, collectives that have a plan of this name take it.  UsageError when none has."""
        with self.planner.forced(algorithm), self.known.forced(algorithm):
            yield

    def pending(self) -> int:
        """How many calls have been started and are not complete."""
        self.known.take_over()
        return PROGRESS.pending_of(self)

    def first_unfinished(self) -> int | None:
        """The number of the first call that was started and is not complete."""
        self.known.take_over()
        return PROGRESS.first_pending_of(self)

    # --- waiting --------------------------------------------------------------------------------

    def wait(
        self,
        stages: Generator[Hint | None, None, T],
        collective: str,
        sequence: int,
        timeout_s: float | None,
    ) -> T:
        """Do the stages of a call.  Raises what they raise, and CollectiveTimeoutError."""
        timeout_s = self.config.timeout_s if timeout_s is None else timeout_s
        self.recorder.enter(collective, sequence)
        watch = self._reports.watch(collective, sequence)
        try:
            # Closed at once: an error would keep it, and with it the worker from its work.
            with closing(PROGRESS.guarded(stages)) as guarded:
                result = drive(
                    guarded,
                    time.monotonic() + timeout_s,
                    lambda: self._look_for_abort(collective, sequence, watch),
                    self._let_others_move,
                    lambda over: self._reports.late(collective, sequence, timeout_s, over),
                    spin_s=self._spin_us * 1e-6,
                )
        except BaseException as error:
            found = self._in_our_words(error, collective, sequence)
            self.failed(found, collective, sequence, stages)
            if found is not error:
                raise found from error
            raise
        self.recorder.end(sequence)
        return result

    def wait_for_message(self, stages: Waits, what: str) -> None:
        """Do stages that wait for a message of MPI's, outside of any collective.

        `what`: the message in words.
        Raises: CollectiveTimeoutError after `timeout_s`; PeerLostError, AbortedError when the communicator is
            given up.
        """
        sequence, timeout_s = self.counts.last, self.config.timeout_s

        def aborted() -> None:
            reason = self._presence.reason(sequence)
            if reason is not None:
                raise reason.error(what, sequence, self.rank)

        drive(
            stages,
            time.monotonic() + timeout_s,
            aborted,
            self._let_others_move,
            lambda over: CollectiveTimeoutError(
                f"{what} did not come within {timeout_s:g} s", rank=self.rank
            ),
            spin_s=self._spin_us * 1e-6,
        )

    def _let_mpi_move(self) -> None:
        self.private.Iprobe(MPI.ANY_SOURCE, PROGRESS_CHANNEL)

    def _let_others_move(self) -> None:
        self._let_mpi_move()
        PROGRESS.turn()

    def failed(
        self, error: BaseException, collective: str, sequence: int, stages: Generator[Any, None, Any] | None
    ) -> None:
        """Note an error; after one in the middle of a call no later call can be right."""
        self.recorder.end(sequence, error, self._reports.where)
        if self.broken is not None:
            return  # this call falls with the one that broke the communicator
        if isinstance(error, HpccollError):
            self.last_error = error
        if isinstance(error, (UsageError, MismatchError, ResourceError)):
            return  # the same on all ranks, and nothing has moved
        if not isinstance(error, HpccollError):
            error = self.last_error = AbortedError(
                f"{type(error).__name__} in {collective} #{sequence} on rank {self.rank}: {error}",
                collective=collective,
                sequence=sequence,
                rank=self.rank,
            )
        self.broken = error
        self.recorder.broken(f"{type(error).__name__}: {error}")
        self._presence.give_up(Reason.of(error, self.rank))
        self.on_devices.abort()
        _given_up.append((self, stages))

    def _in_our_words(
        self, error: BaseException, collective: str, sequence: int, line: str | None = None
    ) -> BaseException:
        """What MPI raised, as the loss of a rank where it is one; what a checksum has shown."""
        if isinstance(error, Corrupted):
            return corruption(error, self.layout, collective, sequence, self.rank, line)
        if not isinstance(error, MPI.Exception) or self.broken is not None:
            return error
        reason = self._presence.why_mpi_failed(error, sequence)
        if reason is None:
            return error
        return reason.error(collective, sequence, self.rank, line)

    def why_given_up(self) -> HpccollError | None:
        """What a call on a device cannot be completed for, if that is known; the others are told."""
        enqueued = self.on_devices.checks.made
        reason = self._presence.reason_on_devices(enqueued)
        return None if reason is None else reason.error("a call on a device", enqueued, self.rank, line="")

    def _look_for_abort(
        self, collective: str, sequence: int, watch: Callable[[], None], line: str | None = None
    ) -> None:
        self.recorder.look(sequence, self._reports.where)
        reason = self._presence.reason(sequence)
        if reason is not None:
            raise reason.error(collective, sequence, self.rank, line)
        watch()

    # --- memory ---------------------------------------------------------------------------------

    def _open_control(self, deadline: float) -> None:
        several = self.layout.node_count > 1
        shape = SegmentLayout(
            self.layout.local_size(self.rank),
            max(self.config.small_bytes, LEAST_PAYLOAD),
            max(ONE_SHOT_TOTAL * self.config.small_bytes, 8192, 8 * self.size) if several else 0,
        )
        segment = drive(
            open_shared(self.private, self.layout, shape.total, self.config.shm_dir, "control"),
            deadline,
            lambda: None,
            lambda: None,
            lambda over: CollectiveTimeoutError("a rank stopped while segments were opened", rank=self.rank),
        )
        self._control_segment = segment
        self._control = Control(
            self.layout, self.rank, segment, shape, self._open_flags, self.counts, self._checksum
        )
        self._agreement = Agreement(
            self.layout,
            self.rank,
            self._network,
            self._movement.native[0],
            self._control,
            AGREEMENT_CHANNEL,
            self._spin_us * 1e-6,
            self.recorder.called,
        )
        self._agreement.settle = self.on_devices.settle
        self.opening = Opening(self.private, self.config, self.planner, self._agreement, self._movement)

    def _open_flags(self, words: memoryview) -> Flags:
        return open_flags(words, native=None if self.config.native else False, spin_us=self._spin_us)

    def close(self) -> None:
        """Free what is private.  Collective; the last use of the context.

        On a broken communicator the duplicate is left to MPI: freeing it could wait for a lost rank.

        Raises: UsageError when requests are still under way; AbortedError where the communicator was given up
        and no call has raised that.
        """
        untold = self.broken if self.is_untold else None
        if self.broken is None:
            self.on_devices.wait_for_host()
        if self.broken is None and (count := self.pending()):
            raise UsageError(f"{count} requests of this communicator are not complete: wait for them first")
        if self.broken is None and (self.config.trace or (self.metrics is not None and self.metrics.shows)):
            self._tell_at_close()
        try:
            if self.broken is None:
                self.on_devices.close()
                self.private.Free()
                self.recorder.remove()
        finally:
            self.release()
        if untold is not None:
            raise AbortedError(f"the communicator is broken: {untold}", rank=self.rank) from untold

    # --- what is told of the calls --------------------------------------------------------------

    def _observe(self, execution: Execution | NativeExecution, planned: Planned, sequence: int) -> None:
        """The times of a program's operations go into the timeline."""
        execution.observe(self.recorder, self.recorder.steps(planned), sequence)

    def _align_clocks(self, deadline: float) -> None:
        """Measure how far this rank's clock is from rank 0's, for the timeline.  Collective."""

        def stages() -> Waits:
            self.recorder.measured((yield from measured(self.private, self.machine.hosts_layout)))

        drive(
            stages(),
            deadline,
            lambda: None,
            lambda: None,
            lambda over: CollectiveTimeoutError("a rank stopped while clocks were aligned", rank=self.rank),
        )

    def _tell_at_close(self) -> None:
        """Rank 0 gets what all ranks have measured, and their timelines; nothing where not all come to it."""
        sequence = self.number()
        metrics = self.metrics if self.metrics is not None and self.metrics.shows else None
        told: list[bytes] = []
        timelines: list[bytes] = []

        def stages() -> Waits:
            call = Fingerprint(sequence, b"", 0, 0, "barrier", 0, form=CLOSING)
            yield from self._agreement.check(sequence, call.pack(), "", None)
            if metrics is not None:
                told.extend((yield from collected(self.private, metrics.told())))
            if self.config.trace:
                self.on_devices.note_times()
                self.recorder.measured((yield from measured(self.private, self.machine.hosts_layout)))
                part = parts.packed(self.recorder.finished(parts.MOST_BYTES // self.size))
                timelines.extend((yield from collected(self.private, part)))

        try:
            self.wait(self.in_turn(sequence, stages()), "close", sequence, None)
        except HpccollError as error:
            what = "metrics are shown" if not self.config.trace else "timeline is put together"
            logging.getLogger("hpccoll").warning("no %s: %s", what, error)
            return
        if self.rank == 0 and metrics is not None:
            metrics.show(told)
        if self.rank == 0 and timelines:
            parts.keep(self.config.trace, timelines, self.recorder)

    def release(self, why: str = "it has closed the communicator") -> None:
        """Let go of this rank's memory; local.  No call can be made afterwards.

        `why`: for ranks that wait for this one.
        """
        self._presence.leave(why)
        self.broken = self.broken or UsageError("this communicator is closed")
        PROGRESS.forget(self)
        PROGRESS.unwatch(self.known)
        self.on_devices.release()
        self.known.forget()
        self._movement.release()
        self.recorder.close()
        if self.metrics is not None:
            self.metrics.end()
        if self._control_segment is not None:
            self._control_segment.close()
