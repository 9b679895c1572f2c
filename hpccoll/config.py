"""Settings: one frozen dataclass; each field is also the environment variable HPCCOLL_<FIELD>.

A keyword of `Communicator` wins over the environment, the environment over the default.  Every rank of a
communicator must have the same values: they are compared when the communicator is first used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hpccoll.errors import UsageError
from hpccoll.observe.rates import parse_rates
from hpccoll.plans.machines import MACHINES
from hpccoll.plans.steps import WIRE_DTYPES

PREFIX = "HPCCOLL_"
CHECKS = ("on", "off")
RECORDER = ("on", "off")
SIGNALS = ("", "SIGUSR1", "SIGUSR2", "SIGHUP")
DEVICE_PATHS = ("auto", "nccl", "host")
INTERNODE = ("nccl", "mpi")
UNPRICED = "none"
DEVICE_MACHINES = ("", UNPRICED, *(name for name, one in MACHINES.items() if one.links.fabric is not None))
LIFELINES = ("on", "off")
DEVICE_MESSAGES = ("auto", "mpi", "host")
WIRE = ("", *WIRE_DTYPES)
YES, NO = ("1", "true", "on", "yes"), ("0", "false", "off", "no")
METRICS_SHOWN, METRICS_COUNT = "1", "count"


@dataclass(frozen=True)
class Config:
    """The settings of one communicator."""

    layout: str = ""
    """Virtual nodes for the ranks of COMM_WORLD: "2+2", "3+1", "4x8", "cyclic:2+2".  Unset: the real ones."""

    algorithm: str = ""
    """Plans to take: "ring" for every collective that has it, or "allreduce:ring,broadcast:chain".
    Unset: chosen by size and layout."""

    tuning: str = ""
    """Where tables of `hpccoll tune` lie: a directory, or a file that ends in .toml.  "off": none is used.
    Unset: hpccoll/tuning in XDG_CONFIG_HOME, or in .config of the home directory."""

    timeout_s: float = 300.0
    """Seconds (above 0) that a collective may take before CollectiveTimeoutError."""

    warn_after_s: float = 60.0
    """Seconds after which a rank that waits in a collective logs for whom (logger "hpccoll"), and again after
    twice as many; 0: never."""

    init_timeout_s: float = 120.0
    """Seconds (above 0) that the first use of a communicator may take to find all its ranks."""

    checks: str = "on"
    """With "on", before data moves all ranks agree that they call the same.  "off": no such check for
    messages above `small_bytes`; ranks that call different things then hang until the deadline or
    get a wrong result."""

    checksums: bool = False
    """What moves between ranks is compared with its checksum (CRC-32), in shared memory and in messages, and
    IntegrityError is raised on all ranks where they differ.  Calls are then made without the C engine and
    without MPI's own collectives; device arrays travel over the host.  docs/reliability.md has the price."""

    reproducible: bool = False
    """Sums and other reductions of floating-point elements have the same bits for a given number of ranks,
    whatever the layout, the plan, the chunks and an element's place: operands are combined one after the
    other, in rank order.  On one node that costs nothing; between nodes more bytes travel."""

    wire_dtype: str = ""
    """"bfloat16" or "float16": sums and averages that are made in float32 travel between nodes in it, half as
    many bytes; inside a node, and up to `small_bytes`, all of float32 is kept.  docs/types.md has the error.
    Not together with `reproducible`; `hpccoll.on_wire` says it for one call.  Unset: as they are."""

    small_bytes: int = 4096
    """Largest payload, in bytes (0 to 65536), that travels with the agreement check; 0 turns that off."""

    segment_bytes: int = 256 * 1024
    """Longest message between two ranks, in bytes (at least 64)."""

    chunk_bytes: int = 1024 * 1024
    """Smallest part of a buffer, in bytes, that a two-level plan pipelines."""

    staging_bytes: int = 512 * 1024
    """Shared memory of each rank, in bytes (at least 4096), through which a node's ranks exchange long
    messages; two halves of it are in use in turn.  All ranks of a node together take at most 64 MiB."""

    single_copy_bytes: int = 128 * 1024
    """Where a rank of a node gives others at least so many bytes as they are, those are copied from process
    to process (process_vm_readv), if the system allows that between all of them and each has a core (else a
    scatter only); 0 turns that off."""

    device_path: str = "auto"
    """How device arrays travel: "nccl"; "host", through pinned memory and the plans of host arrays; "auto":
    NCCL where every rank can use it."""

    internode: str = "nccl"
    """How device arrays travel between nodes, where NCCL is used: "nccl", or "mpi", through pinned memory and
    the plans of host arrays, chunk by chunk while NCCL is at work inside the nodes."""

    device_machine: str = ""
    """A machine of `hpccoll plan --help`, such as "dgx-h100": by its links plans of device arrays are priced
    where none was measured.  "none": nothing is priced, and NCCL's own calls are taken.  Unset: detected."""

    device_checks_first: int = 16
    """So many calls on device arrays, from a communicator's first on, are agreed on by all ranks before they
    are enqueued; later ones are where a call of their kind was not made before."""

    device_checks_every: int = 1000
    """And every so many-th of the others; 0: none."""

    device_messages: str = "auto"
    """How Send, Recv, neighbour calls and the like take device arrays: "mpi", MPI gets their addresses, and
    the process dies where it cannot take them; "host", through pinned memory; "auto": the former where a
    child process has shown that this MPI can."""

    shm_dir: str = "/dev/shm"
    """Directory of the shared-memory files; a tmpfs."""

    native: bool = True
    """Use the C extension where it is built; 0 takes the fallback."""

    lifelines: str = "on"
    """With "on", the first ranks of the nodes keep TCP connections to one another, by which all learn within
    seconds that a rank on another node has died or given up.  "off": they learn it at the deadline."""

    recorder: str = "on"
    """With "on", each rank's last calls are recorded in a file that `hpccoll trace` reads."""

    trace_dir: str = ""
    """Directory of these files, made where it is not there.  Unset: hpccoll-trace-<user id> in the system's
    directory of temporary files."""

    trace_bytes: int = 128 * 1024
    """Size of such a file, in bytes (16384 to 1 GiB): 5/8 of it for calls, of 160 bytes each."""

    trace_keep: bool = False
    """The files stay when all has gone well, too."""

    trace: str = ""
    """A directory, made where it is not there, into which the timeline of the program goes, one file of
    Chrome's trace format (docs/timeline.md).  The ranks' records are there too, in place of `trace_dir`.
    Unset: none."""

    timeline_bytes: int = 16 * 1024 * 1024
    """Size of a rank's part of the timeline, in bytes (65536 to 1 GiB), for each communicator: a quarter for
    calls, 5/8 for events, of which the last that have room are kept."""

    metrics: str = ""
    """Calls are counted and timed (docs/metrics.md).  1: a summary goes to stderr when the communicator is
    closed; "count": there is none, and `comm.metrics()` tells; a path, with a / or with .jsonl at its end:
    JSON lines are appended to that file, or where it is a directory (there, or with a / at its end) written
    to a new one in it.  Unset or 0: not counted."""

    metrics_rates: str = ""
    """What the links of a node were measured to carry, in 1e9 bytes a second: "network:11.5,node:9".  Unset:
    not known."""

    trace_signal: str = ""
    """A signal (SIGUSR1, SIGUSR2, SIGHUP) on which a rank copies its files to on-signal/ beside them.
    Unset: none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", _metrics(self.metrics))
        parse_rates(self.metrics_rates)
        for name, low, high in (
            ("timeout_s", 1e-3, 1e9),
            ("init_timeout_s", 1e-3, 1e9),
            ("warn_after_s", 0, 1e9),
            ("small_bytes", 0, 65536),
            ("segment_bytes", 64, 2**30),
            ("chunk_bytes", 64, 2**40),
            ("staging_bytes", 4096, 2**30),
            ("single_copy_bytes", 0, 2**60),
            ("trace_bytes", 16384, 2**30),
            ("timeline_bytes", 65536, 2**30),
            ("device_checks_first", 0, 2**40),
            ("device_checks_every", 0, 2**40),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} is {value!r}: must be from {low:g} to {high:g}")
        for name, known in (
            ("checks", CHECKS),
            ("device_path", DEVICE_PATHS),
            ("internode", INTERNODE),
            ("device_messages", DEVICE_MESSAGES),
            ("device_machine", DEVICE_MACHINES),
            ("wire_dtype", WIRE),
            ("lifelines", LIFELINES),
            ("recorder", RECORDER),
            ("trace_signal", SIGNALS),
        ):
            if getattr(self, name) not in known:
                words = ", ".join(one or "empty" for one in known)
                raise UsageError(f"{name} is {getattr(self, name)!r}: must be one of {words}")
        if self.checksums and (self.device_path == "nccl" or self.internode == "mpi"):
            asked = "device_path is 'nccl'" if self.device_path == "nccl" else "internode is 'mpi'"
            raise UsageError(
                f"checksums are asked for and {asked}: what NCCL moves cannot be checked; leave one out"
            )
        if self.trace and self.recorder == "off":
            raise UsageError(f"trace is {self.trace!r} and recorder is off, which records what it is made of")
        if self.reproducible and self.wire_dtype:
            raise UsageError(
                f"wire_dtype is {self.wire_dtype!r} and reproducible is set: what is rounded between nodes "
                "has other bits on every layout"
            )


def load(options: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """The settings from keywords and the environment.

    Raises: UsageError for an unknown keyword or a value of the wrong kind, naming both.
    """
    options = options or {}
    environ = os.environ if environ is None else environ
    known = {field.name: field for field in fields(Config)}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UsageError(f"unknown option {', '.join(unknown)}; there are {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, field in known.items():
        if options.get(name) is not None:
            values[name] = _convert(name, options[name], field.type)
        elif environ.get(PREFIX + name.upper(), "") != "":
            values[name] = _convert(PREFIX + name.upper(), environ[PREFIX + name.upper()], field.type)
    return Config(**values)


def _convert(name: str, value: Any, kind: Any) -> Any:
    kind = kind if isinstance(kind, str) else kind.__name__
    try:
        if kind == "bool":
            return _boolean(value)
        return {"int": int, "float": float, "str": str}[kind](value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} is {value!r}: not a {kind}") from None


def _boolean(value: Any) -> bool:
    word = str(value).lower()
    if word in YES:
        return True
    if word in NO:
        return False
    raise ValueError(word)


def _metrics(text: str) -> str:
    """The setting in one of its forms: empty, METRICS_SHOWN, METRICS_COUNT, or a path."""
    word = text.lower()
    if word in NO:
        return ""
    if word in YES:
        return METRICS_SHOWN
    if text and text != METRICS_COUNT and "/" not in text and not text.endswith(".jsonl"):
        raise UsageError(
            f"metrics is {text!r}: must be 1, 0, {METRICS_COUNT}, a file whose name ends in .jsonl, or a "
            "directory (with a / at its end)"
        )
    return text
