"""The engine of the C extension: runs a rank's program without the GIL, beside a caller who computes.

`NativeExecution` stands for `executor.Execution`, with the same results to the last bit; ranks that use the
one work together with ranks that use the other.  What it needs of each communicator is opened once: its
messages by `open_network`, its staging segment as a `NodeGroup`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from hpccoll import _native
from hpccoll.errors import ResourceError
from hpccoll.plans.program import (
    CODE,
    Combine,
    Copy,
    GroupCall,
    Memory,
    Operation,
    Place,
    Receive,
    Send,
    parts_of,
)
from hpccoll.runtime.executor import Schedule
from hpccoll.transports.base import Array
from hpccoll.transports.base import Combine as CombineArrays

if TYPE_CHECKING:
    from hpccoll._native import _core
    from hpccoll.observe.recorder import Silent

AreaParts = Callable[[], Mapping[int, Sequence[Array]]]
_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip
_FUNCTIONS = ("MPI_Isend", "MPI_Irecv", "MPI_Test", "MPI_Iprobe", "MPI_Get_count")
_NOTHING = np.empty(0, np.uint8)
_TRIAL = 67  # elements: more than one turn of any vector loop, and some left over


def reason() -> str:
    """Why the engine is not used in this process, as words for the user; "" when it can be."""
    return _native.reason() or _functions()[1]


def usable(schedule: Schedule, one_node: bool) -> bool:
    """Whether the engine can run a program: it cannot where a group call is left to MPI's own collective.

    `one_node`: the communicator has one node, whose segment then serves groups of any family.
    """
    return all(
        isinstance(one, (Send, Receive, Combine, Copy))
        or (isinstance(one, GroupCall) and one.kind.value in CODE and (one_node or one.family == "NODE"))
        for one in schedule.program.operations
    )


def open_network(private: MPI.Intracomm, idle_channel: int) -> _core.Network:
    """Messages on a private communicator, which stays open as long as it is used.

    `idle_channel`: a tag that no message has; asking for one lets MPI move on.
    Raises: ResourceError with the reason when MPI's functions are not found.
    """
    addresses, problem = _functions()
    if problem:
        raise ResourceError(problem)
    network: _core.Network = core().Network(
        *addresses, private.handle, MPI.BYTE.handle, MPI.ANY_SOURCE, idle_channel
    )
    return network


def new_bell() -> _core.Bell:
    """A bell that one thread rings (`ring()`) to make another come back from `run_all`."""
    bell: _core.Bell = core().Bell()
    return bell


def sleep_in_turns(seconds: float) -> None:
    """Let this thread sleep so long at a turn, and not for a moment, where others want the core.

    For threads that nobody waits for: each look takes the core from who computes.  Without the extension
    nothing changes.
    """
    if _native.available():
        core().sleep_in_turns(seconds)


def run_all(
    executions: Iterable[NativeExecution],
    seconds: float,
    bell: _core.Bell | None = None,
    *,
    spin_s: float = 0.0,
    yield_s: float = 20e-3,
) -> bool:
    """Move several executions on until one of them is over, without the GIL.

    True when one is complete or has failed, whose `advance` then says which; False after `seconds`, or when
    the bell rang.  `spin_s` and `yield_s` as in `NativeExecution.run`, counted from the last time any moved.
    """
    over: bool = core().run_all(
        [one.native for one in executions], seconds, bell, spin_s=spin_s, yield_s=yield_s
    )
    return over


def halves(
    begun: _core.Execution | _core.Spread | None,
) -> tuple[_core.Execution | None, _core.Spread | None]:
    """What was begun in C: the run of a program, or what leaders tell one another."""
    if begun is None or isinstance(begun, _found().Execution):
        return begun, None
    return None, begun  # type: ignore[return-value]


def kernel(
    combine: CombineArrays, dtype: np.dtype[Any], native: tuple[str, str] | None = None
) -> _core.Kernel:
    """How the engine combines elements of a dtype.

    `native`: operator and dtype as in `Arithmetic.kernel`; where the engine has the pair, it works without
    the GIL, else it calls `combine`.
    """
    found = None
    if native is not None and dtype == np.dtype(native[1]):
        found = _native_kernel(*native, combine)
    if found is None:
        found = core().python_kernel(_on_arrays(combine, dtype), dtype.itemsize)
    return found


class NodeGroup:
    """A member's end of a staging segment (transports/slots.py), for the engine.

    `head`: counters and offers, as bytes.  `data`: the slots, shape (2, members, slot_bytes).  `areas` gives,
    by number, the memory that all members reach otherwise (memory/areas.py): each member's part, as bytes.

    This and a ShmGroup of the same member do not know of each other: all its calls go through the one or
    the other.
    """

    def __init__(
        self, me: int, members: int, head: memoryview | Array, data: Array, areas: AreaParts | None = None
    ) -> None:
        self.native: _core.Group = core().Group(me, members, head, data.reshape(-1), data.shape[2])
        self._areas = areas
        self._known: set[int] = set()

    def refresh(self) -> None:
        """Take notice of areas that have come and gone: after each change, before the next call."""
        found = self._areas() if self._areas is not None else {}
        if found.keys() == self._known:
            return
        for number in self._known - found.keys():
            self.native.drop_area(number)
        for number in found.keys() - self._known:
            self.native.add_area(number, found[number])
        self._known = set(found)


class NativeExecution:
    """One run of a program on this rank's memory, by the engine.

    `memory`: input, output and scratch as one-dimensional contiguous arrays of one dtype; then, where
    elements travel between nodes as another one, that of `wire`, memory for these.  They are held until the
    run is complete, and for ever when it is given up while MPI has messages in them.  `kernel`: None where
    nothing is combined.  `channel`, `channels`: the messages of step s have the tag
    channel + s % channels.

    Any thread may move it on, several at the same time too.  What a kernel or MPI raised is raised by every
    later `advance` and `run`.
    """

    def __init__(
        self,
        schedule: Schedule,
        memory: Sequence[Array],
        network: _core.Network | None,
        group: NodeGroup | None,
        kernel: _core.Kernel | None,
        channel: int,
        channels: int,
        wire: str = "",
    ) -> None:
        self._operations, self._program = schedule.program.operations, program_of(schedule)
        self.native: _core.Execution = _found().Execution(
            self._program,
            [array.view(np.uint8) for array in (*memory, _NOTHING)[: len(Memory)]],
            memory[0].dtype.itemsize,
            network,
            None if group is None else group.native,
            kernel,
            channel,
            channels,
            wire,
        )

    @classmethod
    def begun(cls, schedule: Schedule, native: _core.Execution) -> NativeExecution:
        """One that was begun in C."""
        self = cls.__new__(cls)
        self._operations, self._program = schedule.program.operations, program_of(schedule)
        self.native = native
        return self

    def observe(self, recorder: Silent, steps: int, sequence: int) -> None:
        """As `executor.Execution.observe`."""
        ring = recorder.ring
        if ring is not None:  # else somebody has taken the extension away in the midst of the program
            self._program.steps = steps
            self.native.observe(ring, sequence)

    def advance(self, turns: int = 1) -> bool:
        """Move on as far as it goes without waiting; True once all operations are complete."""
        return self.native.advance(turns)

    def run(self, seconds: float, *, spin_s: float = 0.0, yield_s: float = 20e-3) -> bool:
        """Move on until all operations are complete (True), at most so long; without the GIL.

        When nothing moves it keeps the core for `spin_s`, gives it away at every turn for `yield_s`, and
        then sleeps between turns.
        """
        return self.native.run(seconds, spin_s=spin_s, yield_s=yield_s)

    @property
    def left(self) -> int:
        """How many operations are not complete."""
        return self.native.left

    @property
    def complete(self) -> bool:
        return self.native.left == 0

    @property
    def over(self) -> bool:
        """Complete, or failed."""
        return self.native.over

    @property
    def step(self) -> int:
        """The plan's step that the oldest operation under way belongs to."""
        return self.native.step

    def waiting_for(self) -> list[Operation]:
        """The operations under way, for reports."""
        return [self._operations[index] for index in self.native.active()]


class Work:
    """A wait for a program that the engine has: for it alone (called), or for several by `run_all`."""

    def __init__(self, execution: NativeExecution, spin_s: float) -> None:
        self.execution = execution
        self.spin_s = spin_s

    def __call__(self, seconds: float) -> bool:
        return self.execution.run(seconds, spin_s=self.spin_s)


def program_of(schedule: Schedule) -> _core.Program:
    """The program as the engine reads it; made once and kept with the schedule."""
    kept: _core.Program | None = schedule.__dict__.get("native_program")
    if kept is None:
        kept = _flattened(schedule)
        schedule.__dict__["native_program"] = kept  # as a cached_property of the frozen class would
    return kept


# --- programs as tables -----------------------------------------------------------------------------


def _flattened(schedule: Schedule) -> _core.Program:
    places: list[Place] = []
    counts: list[int] = []
    rows = []
    for index, operation in enumerate(schedule.program.operations):
        name, peer, sources, targets = parts_of(operation)
        own = operation.counts if isinstance(operation, GroupCall) else ()
        rows.append(
            (
                CODE[name], operation.step, peer, len(places), len(sources), len(targets),
                len(counts), len(own), schedule.released_by_start.get(index, -1),
            )
        )  # fmt: skip
        places += (*sources, *targets)
        counts += own
    following = schedule.released_by_end
    starts = np.cumsum([0, *map(len, following)])
    program: _core.Program = core().Program(
        _table(rows), _table(places), _table(counts), _table(starts), _table([*chain(*following)])
    )
    return program


def _table(rows: Any) -> Array:
    return np.array(rows, np.int64).reshape(-1)


# --- MPI's functions --------------------------------------------------------------------------------


@cache
def _functions() -> tuple[tuple[int, ...], str]:
    """The addresses of MPI's functions in the library that mpi4py works with, and why there are none."""
    addresses = []
    for name in _FUNCTIONS:
        function = _function(name)
        if function is None:
            return (), f"the function {name} is not found in the MPI library of mpi4py ({MPI.__file__})"
        addresses.append(ctypes.cast(function, ctypes.c_void_p).value or 0)
    version = _library_version()
    if version != MPI.Get_library_version().rstrip("\0"):  # Open MPI counts the end of the string
        return (), f"the MPI functions of this process are of another library than mpi4py's: {version}"
    return tuple(addresses), ""


def _function(name: str) -> Any:
    """A function of MPI, looked up as the dynamic linker did for mpi4py.

    First in what the whole process sees (a tool loaded before MPI may stand in for it), then in what mpi4py's
    own module is linked to.
    """
    libraries = (ctypes.CDLL(None), ctypes.CDLL(MPI.__file__))
    return next((getattr(one, name) for one in libraries if hasattr(one, name)), None)


def _library_version() -> str:
    text, length = ctypes.create_string_buffer(MPI.MAX_LIBRARY_VERSION_STRING + 1), ctypes.c_int()
    function = _function("MPI_Get_library_version")
    if function is None or function(text, ctypes.byref(length)) != MPI.SUCCESS:
        return "unknown"
    return text.value.decode(errors="replace")


# --- operators --------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _native_kernel(operator: str, name: str, combine: CombineArrays) -> _core.Kernel | None:
    """The engine's kernel, if it has one and it gives what `combine` gives."""
    dtype = np.dtype(name)
    if operator not in _UFUNCS or dtype.kind not in "biufc":
        return None
    ufunc, module = _UFUNCS[operator], core()
    signature = f"{dtype.char}{dtype.char}->{dtype.char}"
    try:
        if signature in ufunc.types:
            found = module.ufunc_kernel(ufunc, ufunc.types.index(signature), dtype.num, dtype.itemsize)
        else:
            found = module.logical_kernel(operator, dtype.itemsize)
    except ValueError:
        return None
    return found if _agrees(found, combine, dtype) else None


def _agrees(found: _core.Kernel, combine: CombineArrays, dtype: np.dtype[Any]) -> bool:
    """Whether a kernel does what `combine` does, in place and not, on a few elements."""
    values = np.arange(2 * _TRIAL) * 37 % 29 - 11  # small, of both signs, each pair another one
    left, right = (part.astype(dtype) for part in np.split(values, 2))
    for target in (np.empty_like(left), left):
        wanted = np.empty_like(left)
        combine(left, right, wanted)
        found.combine(left.view(np.uint8), right.view(np.uint8), target.view(np.uint8))
        if target.tobytes() != wanted.tobytes():
            return False
    return True


def _on_arrays(combine: CombineArrays, dtype: np.dtype[Any]) -> Any:
    """A function of the engine's memory that combines it as arrays."""

    def on_memory(left: memoryview, right: memoryview, target: memoryview) -> None:
        count = target.nbytes // dtype.itemsize
        combine(*(np.ndarray(count, dtype, memory) for memory in (left, right, target)))

    return on_memory


def core() -> Any:
    """The module of the extension.  Raises: ResourceError where there is none."""
    if not _native.available():
        raise ResourceError(f"the engine is not available: {_native.reason()}")
    from hpccoll._native import _core

    return _core


_found = cache(core)  # which looks at the environment only once
