from array import array
from collections.abc import Callable, Sequence
from threading import Lock
from types import CodeType
from typing import Any, ClassVar, Literal, SupportsFloat, SupportsIndex

import numpy as np

Buffer = bytes | bytearray | memoryview | np.ndarray[Any, Any]

class NativeFlags:
    native: ClassVar[bool]
    def __init__(self, buffer: memoryview | np.ndarray[Any, Any], spin_us: float) -> None: ...
    def __len__(self) -> int: ...
    def load(self, index: SupportsIndex, /) -> int: ...
    def store(self, index: SupportsIndex, value: SupportsIndex, /) -> None: ...
    def store_first(self, index: SupportsIndex, value: SupportsIndex, /) -> int: ...
    def reached(
        self, first: SupportsIndex, count: SupportsIndex, stride: SupportsIndex, value: SupportsIndex, /
    ) -> bool: ...
    def first_below(
        self, first: SupportsIndex, count: SupportsIndex, stride: SupportsIndex, value: SupportsIndex, /
    ) -> int: ...
    def wait_reached(
        self,
        first: SupportsIndex,
        count: SupportsIndex,
        stride: SupportsIndex,
        value: SupportsIndex,
        timeout_s: SupportsFloat,
        /,
    ) -> bool: ...

class Program:
    def __init__(
        self,
        operations: np.ndarray[Any, Any],
        places: np.ndarray[Any, Any],
        counts: np.ndarray[Any, Any],
        following_starts: np.ndarray[Any, Any],
        following: np.ndarray[Any, Any],
    ) -> None: ...
    steps: int
    def __len__(self) -> int: ...

class Network:
    def __init__(
        self,
        isend: int,
        irecv: int,
        test: int,
        iprobe: int,
        get_count: int,
        comm: int,
        byte: int,
        any_source: int,
        idle_channel: int,
    ) -> None: ...

class Spread:
    def __init__(
        self, network: Network, leaders: Sequence[int], node: int, channel: int, said: bytes
    ) -> None: ...
    def advance(self) -> bool: ...
    def run(self, seconds: float, *, spin_s: float = 0.0) -> bool: ...
    @property
    def data(self) -> bytes: ...
    @property
    def awaited(self) -> int | None: ...

class Group:
    def __init__(
        self,
        me: int,
        members: int,
        head: memoryview | np.ndarray[Any, Any],
        data: np.ndarray[Any, Any],
        slot_bytes: int,
    ) -> None: ...
    cache_bytes: int
    least_cold: int
    @property
    def past(self) -> int: ...
    def add_area(self, number: int, parts: Sequence[np.ndarray[Any, Any]], /) -> None: ...
    def drop_area(self, number: int, /) -> None: ...
    def use_processes(self, processes: Sequence[int], least_bytes: int, has_cores: bool, /) -> None: ...

class Kernel:
    @property
    def native(self) -> bool: ...
    @property
    def itemsize(self) -> int: ...
    def combine(self, left: Buffer, right: Buffer, target: Buffer, /) -> None: ...

class Execution:
    def __init__(
        self,
        program: Program,
        memory: Sequence[Buffer],
        itemsize: int,
        network: Network | None,
        group: Group | None,
        kernel: Kernel | None,
        channel_base: int,
        channels: int,
    ) -> None: ...
    @property
    def left(self) -> int: ...
    @property
    def over(self) -> bool: ...
    @property
    def step(self) -> int: ...
    def active(self) -> tuple[int, ...]: ...
    def observe(self, ring: Ring, sequence: int, /) -> None: ...
    def advance(self, turns: int = 1, /) -> bool: ...
    def run(self, seconds: float, *, spin_s: float = 0.0, yield_s: float = 20e-3) -> bool: ...

class Tape:
    def __init__(
        self, functions: tuple[int, ...], entries: tuple[tuple[int, ...], ...], second: int
    ) -> None: ...
    def play(self, stream: int, begin: int, /) -> tuple[int, int] | None: ...

class Meter:
    def __init__(self) -> None: ...
    def count(
        self, nbytes: int, inside: int, between: int, nanoseconds: int, agreeing_ns: int, /
    ) -> None: ...
    def waited(self, nanoseconds: int, /) -> None: ...
    def read(self, reset: bool, /) -> tuple[tuple[int, ...], tuple[int, ...]]: ...

class Repeats:
    entered_ns: int
    agreed_ns: int
    def __init__(
        self,
        control: memoryview | np.ndarray[Any, Any],
        me: int,
        members: int,
        arrived: int,
        stride: int,
        slots: int,
        slot_bytes: int,
        head_bytes: int,
        numbers: array[int],
        pending: array[int],
        lock: Lock,
        spin_s: float,
        patience_s: float,
        network: Network,
        channel: int,
        channels: int,
        calls_in_flight: int,
        in_place: object,
        sample: np.ndarray[Any, Any],
        nodes: tuple[tuple[int, ...], ...],
        node: int,
        verdict: int,
        results: int,
        result_bytes: int,
        agreement_channel: int,
        ring: Ring | None = None,
    ) -> None: ...
    def keep(
        self,
        collective: str,
        given: tuple[Any, ...],
        label: tuple[str, str],
        fingerprint: bytes,
        agrees: bool,
        reads: int,
        writes: int,
        itemsize: int,
        kernel: Kernel | None,
        finish: Callable[[np.ndarray[Any, Any]], object] | None,
        payload: int,
        piece: int,
        offset: int,
        first: int,
        last: int,
        program: Program | None,
        travel: int,
        each: int,
        wire: str,
        plan: int = 0,
        blocking: Meter | None = None,
        started: Meter | None = None,
        counted: tuple[int, int, int] = (0, 0, 0),
    ) -> bool: ...
    def again(self, collective: str, given: tuple[Any, ...], /) -> bool | Execution | Spread | None: ...
    def start(
        self, collective: str, given: tuple[Any, ...], prepare: Callable[[], Any], /
    ) -> Started | Literal[False]: ...
    def move(self) -> float: ...
    def take_over(self) -> list[Started]: ...
    def await_started(self, seconds: float, /) -> bool: ...
    def use_group(self, group: Group, /) -> None: ...
    def forget(self) -> None: ...
    def calls(self) -> list[tuple[tuple[str, str], int]]: ...

class Started:
    collective: str
    sequence: int
    arrived: int
    done: int
    began_s: float
    agreed_ns: int
    running: Any
    prepare: Any
    begun: Execution | Spread | None
    seconds: float
    def wait(self) -> bool: ...
    def test(self) -> bool: ...
    def tell(self, action: Callable[[], object], /) -> None: ...
    def go_on_as(self, running: Any, /) -> None: ...

class Ring:
    def __init__(
        self,
        memory: memoryview | np.ndarray[Any, Any],
        written: int,
        records: int,
        count: int,
        number_of: Callable[[CodeType], int],
        inside: str,
        events_written: int = 0,
        events: int = 0,
        event_count: int = 0,
    ) -> None: ...
    def enter(self, fingerprint: bytes, sequence: int, /) -> int: ...
    def end(self, offset: int, /) -> None: ...
    def put(
        self,
        kind: int,
        begin_ns: int,
        end_ns: int,
        sequence: int,
        text: int,
        step: int,
        peer: int,
        nbytes: int,
        /,
    ) -> None: ...

class Bell:
    def ring(self) -> None: ...

def ufunc_kernel(ufunc: np.ufunc, index: int, number: int, itemsize: int, /) -> Kernel: ...
def logical_kernel(name: str, itemsize: int, /) -> Kernel: ...
def python_kernel(
    function: Callable[[memoryview, memoryview, memoryview], object], itemsize: int, /
) -> Kernel: ...
def remove_at_end(path: bytes, /) -> None: ...
def crc32(data: Buffer, value: int = 0, /) -> int: ...
def bytes_of_process(process: int, address: int, nbytes: int, /) -> bytes: ...
def sleep_in_turns(seconds: SupportsFloat, /) -> None: ...
def run_all(
    executions: Sequence[Execution],
    seconds: float,
    bell: Bell | None = None,
    *,
    spin_s: float = 0.0,
    yield_s: float = 20e-3,
) -> bool: ...
