"""What all methods of a communicator stand on: its state, made at first use, and the ways to make a call."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.device import stream_handle
from hpccoll.calls import Call, Where
from hpccoll.config import Config, load
from hpccoll.dtypes import check_movable
from hpccoll.errors import HpccollError, UsageError, UsageTypeError
from hpccoll.memory.device import fill
from hpccoll.observe.events import Part, note_step
from hpccoll.observe.overlapped import Times
from hpccoll.observe.snapshot import Snapshot
from hpccoll.ops.table import Operator, arithmetic, operator_of
from hpccoll.plans.catalogue import RECIPES, names
from hpccoll.plans.collective import REDUCTIONS
from hpccoll.plans.measured import HOST, MEMORIES
from hpccoll.plans.on_devices import by_nccl
from hpccoll.runtime.context import Context
from hpccoll.runtime.enqueued import EnqueuedRequest
from hpccoll.runtime.planning import Explanation
from hpccoll.runtime.progress import Running
from hpccoll.runtime.repeats import Given
from hpccoll.runtime.request import PersistentRequest, Request
from hpccoll.topology.machine import Machine
from hpccoll.transports.base import Array

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hpccoll._native import _core
    from hpccoll.runtime.known_calls import KnownCalls

    _Intracomm = MPI.Intracomm
else:
    _Intracomm = object

_NO_PART: AbstractContextManager[None] = nullcontext()
Operation = MPI.Op | Operator
Self = TypeVar("Self", bound="Base")
# Checks the arguments of a call; the caller's rank and the number of ranks are filled in.
Prepare = Callable[[Where], Call]


class Base(_Intracomm):
    """State and life of a communicator; see `Collectives`."""

    _options: Mapping[str, Any] = {}
    _context: Context | None = None
    _process: int | None = None
    _closed = False

    # --- what plans there are -------------------------------------------------------------------

    def algorithms(self, collective: str, memory: str = HOST) -> tuple[str, ...]:
        """The names of the plans that exist for a collective on this layout.

        `collective`: allreduce, reduce, broadcast, allgather, reduce_scatter, gather, scatter, alltoall,
        scan, exscan, barrier.  `memory`: where the arrays are, "host" or "device": on devices, between the
        NVLink domains and of NCCL's calls.
        Raises: UsageError for another name.  Collective at first use.
        """
        if collective not in RECIPES:
            raise UsageError(f"no collective {collective!r}; there are {', '.join(RECIPES)}")
        _check_memory(memory)
        layout = self._used().machine.layout
        return names(collective, layout) if memory == HOST else by_nccl(collective, layout.by_domain)

    def explain(
        self,
        collective: str,
        nbytes: int,
        *,
        dtype: DTypeLike = "float32",
        op: Operation = MPI.SUM,
        root: int = 0,
        memory: str = HOST,
    ) -> Explanation:
        """Which plan a call would take, and why: what each candidate would cost, and took by measurement.

        `nbytes`: the size as nccl-tests counts it (of all blocks for collectives with a block for each rank).
        `memory`: where the arrays are, "host" or "device".
        Collective at first use.

        Raises:
            UsageError: an unknown collective, operator or memory.
            ResourceError: on all ranks, where one sees no device.

        """
        _check_memory(memory)
        context = self._used()
        kind = np.dtype(dtype)
        how = arithmetic(operator_of(op), kind) if collective in REDUCTIONS else None
        where = context.planner if memory == HOST else context.on_devices
        return where.explain(collective, nbytes, kind, root, how)

    def forced(self, algorithm: str) -> AbstractContextManager[None]:
        """Inside `with comm.forced("ring"):` the collectives that have a plan of this name take it.

        The same on all ranks.  A plan that cannot do a call (one_shot for a long message) is not taken.
        Raises: UsageError for a name that no collective has on this layout.
        """
        return self._used().forced(algorithm)

    # --- where the ranks are --------------------------------------------------------------------

    @property
    def machine(self) -> Machine:
        """Nodes, groups and levels.  Collective at first use."""
        return self._used().machine

    @property
    def node(self) -> int:
        """The node of this rank, 0 to node_count - 1.  Collective at first use."""
        return self.machine.node

    @property
    def node_count(self) -> int:
        """How many nodes the ranks are on.  Collective at first use."""
        return self.machine.node_count

    @property
    def local_rank(self) -> int:
        """The place of this rank among those on its node.  Collective at first use."""
        return self.machine.local_rank

    @property
    def local_size(self) -> int:
        """How many ranks are on this node.  Collective at first use."""
        return self.machine.local_size

    @property
    def is_uniform(self) -> bool:
        """Every node has as many ranks.  Collective at first use."""
        return self.machine.is_uniform

    @property
    def device(self) -> int:
        """The ordinal of the CUDA device for this rank: by its place among the world's ranks on its host.

        It is 0 where a launcher shows each rank one device.  Nothing is set; a program does, before it makes
        arrays: `cupy.cuda.Device(comm.device).use()`.  Collective at first use.
        Raises: ResourceError on all ranks, when one sees no device.
        """
        return self._used().on_devices.ordinal

    @property
    def device_path(self) -> str:
        """How device arrays travel: "nccl", "host" and why, or "" before the first of them.  Local."""
        return "" if self._context is None else self._context.on_devices.path

    @property
    def config(self) -> Config:
        """The settings, from keywords and the environment."""
        return self._context.config if self._context is not None else load(self._options)

    def tally(self) -> Counter[tuple[str, str]]:
        """How many calls ended well on each plan, by collective and plan name.  Local."""
        return Counter() if self._context is None else self._context.all_calls()

    @property
    def last_error(self) -> HpccollError | None:
        """What the last call that failed raised, or would have where MPI's own wait hid it; None at first."""
        return None if self._context is None else self._context.last_error

    # --- memory ---------------------------------------------------------------------------------

    def empty(
        self, shape: int | Sequence[int], dtype: DTypeLike = float, *, device: int | str | None = None
    ) -> Any:
        """An array in memory that the ranks of this node share, as `numpy.empty`; or one on a device.

        Collectives on it, or on contiguous parts of it, do not copy elements to where the others reach them.
        Otherwise it is an array like any, and this rank's alone.  Collective: each rank passes its own shape
        and dtype.  The memory is reserved at once, from `shm_dir`, and goes with the last array in it (when
        the next one is made, or the communicator is closed).

        Args:
            shape: a number, or a tuple of numbers.
            dtype: of the elements.
            device: an ordinal, or "cuda" for the communicator's device: an array of CuPy in memory of NCCL's
                allocator, registered with it, as a symmetric window where all ranks ask for as many bytes.

        Raises:
            UsageError: a shape or dtype that NumPy, or CuPy, has not, or one of Python objects; a device that
                is not the communicator's; no CuPy.
            ResourceError: there is not as much, on all ranks.

        """
        context = self._used()
        try:
            kind = np.dtype(dtype)
            check_movable(kind, "the array")
            lengths = _lengths(shape)
            if device is not None:
                context.on_devices.check_allocation(kind, device)
        except Exception as error:
            context.refuse("barrier", _refusal(error))
            raise
        return context.allocate(lengths, kind, device)

    def zeros(
        self, shape: int | Sequence[int], dtype: DTypeLike = float, *, device: int | str | None = None
    ) -> Any:
        """As `empty`, filled with zeros."""
        array = self.empty(shape, dtype, device=device)
        _fill(array, np.zeros((), array.dtype))
        return array

    def full(
        self,
        shape: int | Sequence[int],
        fill_value: Any,
        dtype: DTypeLike | None = None,
        *,
        device: int | str | None = None,
    ) -> Any:
        """As `empty`, filled with a value; its dtype is that of the value where none is given."""
        array = self.empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, device=device)
        _fill(array, np.asarray(fill_value, array.dtype))
        return array

    # --- what its calls did ---------------------------------------------------------------------

    def dump_trace(self, directory: str | os.PathLike[str]) -> Path:
        """Copy this rank's record of its last calls into a directory, for `hpccoll trace`.  Local.

        The directory is made if it is not there, an earlier copy replaced.  Returns the path of the copy.
        Raises: UsageError before the first use, ResourceError where nothing is recorded or the copy fails.
        """
        if self._context is None:
            raise UsageError("no call has been made on this communicator: there is nothing to copy")
        return self._context.recorder.dump(directory)

    def annotate(self, name: str) -> AbstractContextManager[None]:
        """Inside `with comm.annotate("forward"):` the timeline shows the program's time under this name.

        As ranges of NVTX.  They may lie inside one another.  Local; without the setting `trace`, and before
        the first use of the communicator, it does nothing.
        """
        recorder = None if self._context is None else self._context.recorder
        if recorder is None or recorder.events is None:
            return _NO_PART
        return Part(recorder.events.put, recorder.text(name))

    def _note_step(
        self,
        times: Times,
        step: int,
        flights: Mapping[int, tuple[float, float]],
        waited: tuple[float, float],
        label: Callable[[int], str],
    ) -> None:
        """A step of buckets is over: for metrics, and for the timeline.

        `flights`: begin and end of each bucket; `waited`: of the wait for all, both on time.perf_counter.
        """
        if self._context is not None:
            if self._context.metrics is not None:
                self._context.metrics.step(times)
            note_step(self._context.recorder, step, flights, waited, label)

    def metrics(self, *, reset: bool = False) -> Snapshot:
        """What this rank's calls have moved, and how long they took.  Local, and does not wait.

        By collective, plan, size class, and how a call is made: calls, bytes, times, algbw and busbw, what
        moved on each level and how near that is to the level's rate.  docs/metrics.md says what each number
        is.  `reset`: the next snapshot is of what comes after this one.

        Raises: UsageError where the setting `metrics` is off, and before the first use.
        """
        found = None if self._context is None else self._context.metrics
        if found is None:
            why = (
                "calls are counted from the first use on"
                if self.config.metrics
                else ('no call is counted: set metrics to "count", or HPCCOLL_METRICS=count')
            )
            raise UsageError(why)
        return found.snapshot(reset)

    # --- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Free what is private to this object; the MPI communicator stays.  Collective; twice is no harm.

        Afterwards collectives raise UsageError.
        Raises: UsageError while requests are under way; AbortedError where calls on devices were given up and
        no call has raised that.
        """
        context, self._context = self._context, None
        if context is not None and self._process == os.getpid():
            context.close()
        self._closed = True

    def Free(self) -> None:
        """Close, then free the MPI communicator, which the object it was made from also refers to."""
        self.close()
        super().Free()

    def Disconnect(self) -> None:
        """Close, then disconnect the MPI communicator, as with `Free`."""
        self.close()
        super().Disconnect()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; after an error only this rank's memory is let go, since the others may not come."""
        if error is None:
            self.close()
        else:
            self._let_go(f"{type(error).__name__} in its with block: {error}")

    def _let_go(self, why: str = "it has let go of the communicator") -> None:
        """Let go of this rank's memory without the others, who may not come.  Nothing can be called then."""
        if self._context is not None:
            self._context.release(why)
            self._context, self._closed = None, True

    # --- ways to make a call --------------------------------------------------------------------

    def _run(self, collective: str, prepare: Prepare, given: Given | None = None, stream: Any = None) -> None:
        """Check the arguments and carry the call out; what is wrong on this rank, all ranks learn.

        `given`: buffers, operator and root, by which a call like an earlier one is known again.
        """
        if given is not None and stream is None:
            # Once there have been arrays on devices, these come first.
            on_devices = self._context is not None and self._context.on_devices.replays is not None
            maybe_known = not on_devices or type(given[0]) is np.ndarray or type(given[1]) is np.ndarray
            if maybe_known and self._made_again(collective, prepare, given):
                return
        context = self._used()
        replays = context.on_devices.replays
        if replays is not None and given is not None and replays.again(collective, given, stream):
            return
        try:
            call = _prepared(prepare, context)
            handle = None if stream is None else _stream_for(call, stream)
        except Exception as error:
            # Whatever the caller's objects do when they are read: the other ranks are waiting.
            context.refuse(collective, _refusal(error))
            raise
        if call.on_device:
            context.run_on_device(call, given, handle)
        else:
            context.run(call, given)

    def _made_again(self, collective: str, prepare: Prepare, given: Given) -> bool:
        """Carry out a call that is known from before; False where it is not, and nothing has been done."""
        context = self._context
        if context is None:
            return False
        try:
            begun = context.known.again(collective, given)
        except BaseException as error:
            context.known.broke_off(collective, error)
            raise
        if begun is not True and begun is not False:
            context.known.go_on(collective, lambda: _prepared(prepare, context), begun)
        return begun is not False

    def _start(self, collective: str, prepare: Prepare, given: Given | None = None) -> Request:
        """As `_run`, without waiting.  Where the arguments are wrong, the other ranks' waits raise."""
        context = self._context
        if given is not None and context is not None:
            known = context.known.start(collective, given, partial(_prepared, prepare, context))
            if known is not False:
                return Request._of_known(known, context.known)
        context = self._used()
        try:
            call = _prepared(prepare, context)
        except Exception as error:
            context.refuse(collective, _refusal(error), wait=False)
            raise
        return Request._of(context.start(call, given))

    def _bind(
        self, collective: str, prepare: Prepare, given: Given | None = None, stream: Any = None
    ) -> PersistentRequest:
        """As `_run`, for a call that is to be started again and again; nothing moves yet."""
        context = self._used()
        try:
            call = _prepared(prepare, context)
            handle = None if stream is None else _stream_for(call, stream)
        except Exception as error:
            context.refuse(collective, _refusal(error))
            raise
        bound = context.make(call, handle)
        if bound is not None:
            return EnqueuedRequest._for(bound, self._used)

        def start() -> Running:
            call.refill()
            return self._used().start(call, given)

        def start_known() -> tuple[_core.Started, KnownCalls] | None:
            context = self._context
            if context is None or given is None:
                return None
            known = context.known.start(collective, given, lambda: call)
            return None if known is False else (known, context.known)

        return PersistentRequest._of(start, start_known)

    def _used(self) -> Context:
        """The working state, made at first use."""
        if self._context is None:
            self._check_usable()
            self._process = os.getpid()
            self._context = Context(self, load(self._options))
        elif self._process != os.getpid():
            raise UsageError(
                f"this communicator belongs to process {self._process}: a forked child cannot use it"
            )
        return self._context

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError("this communicator is closed")
        if self == MPI.COMM_NULL:
            raise UsageError("this communicator is MPI.COMM_NULL, or was freed")


def _check_memory(memory: str) -> None:
    if memory not in MEMORIES:
        raise UsageError(f"memory is {memory!r}: must be one of {', '.join(MEMORIES)}")


def _prepared(prepare: Prepare, context: Context) -> Call:
    """A call whose arguments are right."""
    call = prepare(Where(context.rank, context.size))
    if call.is_torn and not call.joined():
        sides = ("a device", "the host") if call.on_device else ("the host", "a device")
        raise UsageTypeError(f"sendbuf is on {sides[0]}, recvbuf on {sides[1]}: must be the same")
    return call


def _stream_for(call: Call, stream: Any) -> int:
    if not call.on_device:
        raise UsageError("stream is given, but the arrays are not on a device")
    return stream_handle(stream)


def _fill(array: Any, value: Array) -> None:
    """Set all elements of an array of NumPy or of CuPy."""
    if isinstance(array, np.ndarray):
        array[...] = value
    else:
        fill(array, value)


def _lengths(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        lengths = tuple(map(index, shape if isinstance(shape, (tuple, list)) else (shape,)))
    except TypeError:
        raise UsageTypeError(f"shape is {shape!r}: must be a number, or a tuple of numbers") from None
    if min(lengths, default=0) < 0:
        raise UsageError(f"shape is {shape!r}: must have no negative length")
    if max(lengths, default=0) > np.iinfo(np.intp).max:
        raise UsageError(f"shape is {shape!r}: must have lengths that fit in an integer of the machine")
    return lengths


def _refusal(error: Exception) -> UsageError:
    if isinstance(error, UsageError):
        return error
    kind = UsageTypeError if isinstance(error, TypeError) else UsageError
    return kind(f"an argument cannot be read: {type(error).__name__}: {error}")
