"""Which machine a table is of: what its times depend on, in words that a person can compare."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from itertools import groupby

from mpi4py import MPI

from hpccoll._version import __version__
from hpccoll.config import Config
from hpccoll.topology.agreement import gather
from hpccoll.topology.hardware.compare import counted
from hpccoll.topology.hardware.files import Files
from hpccoll.topology.hardware.network import read_interfaces, read_rdma_ports
from hpccoll.topology.hardware.processors import read_processor
from hpccoll.topology.machine import Machine

# Settings by which the same plan takes another time.
SETTINGS = (
    "checks",
    "small_bytes",
    "segment_bytes",
    "chunk_bytes",
    "staging_bytes",
    "single_copy_bytes",
)
Setting = str | int


@dataclass(frozen=True)
class Fingerprint:
    """What must be the same for a table to hold.  No host's name: the next job gets others of the same kind.

    Attributes:
        hpccoll: its version, since another one has other plans.
        layout: as `Layout` writes it.
        hardware: the hosts of the nodes, in their order, alike ones together: processors, network.
        mpi: the library and its version.
        extension: every rank uses the C extension.
        settings: those of `SETTINGS`.

    """

    hpccoll: str
    layout: str
    hardware: tuple[str, ...]
    mpi: str
    extension: bool
    settings: Mapping[str, Setting]

    @property
    def file_name(self) -> str:
        """Of its table: the beginning is the layout's alone, the rest that of everything."""
        return f"{layout_part(self.layout)}-{_digest(json.dumps(asdict(self), sort_keys=True))}.toml"

    def differences(self, other: Fingerprint) -> list[str]:
        """In what another one differs, in words: `field: this, not that`."""
        found = []
        for name in ("hpccoll", "layout", "hardware", "mpi", "extension"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                found.append(f"{name}: {_words(mine)}, not {_words(its)}")
        for name in SETTINGS:
            if self.settings[name] != other.settings[name]:
                found.append(f"{name}: {self.settings[name]}, not {other.settings[name]}")
        return found


def layout_part(layout: str) -> str:
    """What the names of a layout's tables begin with."""
    plain = layout if len(layout) <= 24 and layout.replace("+", "").isalnum() else ""
    return f"{plain or 'layout'}-{_digest(layout)[:4]}"


def gather_fingerprint(
    private: MPI.Intracomm, machine: Machine, config: Config, deadline: float
) -> Fingerprint:
    """The same on all ranks.  Collective; raises CollectiveTimeoutError.

    `private`: a communicator on which nothing else is going on; `deadline`: of time.monotonic.
    """
    leads = machine.local_rank == 0
    own = _host_text() if leads else ""
    texts = gather(private, own.encode(), deadline, "what the hosts are made of")
    leaders = [machine.layout.leader(node) for node in range(machine.node_count)]
    hosts = [f"{texts[leader].decode()}, ranks use {machine.cores[leader]}" for leader in leaders]
    return Fingerprint(
        hpccoll=__version__,
        layout=str(machine.layout),
        hardware=tuple(f"{len(list(run))} x {text}" for text, run in groupby(hosts)),
        mpi=machine.mpi_library,
        extension=machine.native and config.native,
        settings={name: getattr(config, name) for name in SETTINGS},
    )


def fingerprint_of(private: MPI.Intracomm, machine: Machine, config: Config) -> Fingerprint:
    """As `gather_fingerprint`, within `init_timeout_s`."""
    return gather_fingerprint(private, machine, config, time.monotonic() + config.init_timeout_s)


@cache
def _host_text() -> str:
    """Processors and network of this host."""
    files = Files()
    processor = read_processor(files)
    ports = (
        f"{one.link_layer or 'RDMA'} {one.rate_gbit_s or 0:g} Gbit/s"
        for one in read_rdma_ports(files)
        if one.active
    )
    interfaces = (
        one.kind + (f" {one.speed_mbit_s} Mbit/s" if one.speed_mbit_s else "")
        for one in read_interfaces(files)
        if one.kind in ("ethernet", "infiniband", "bond") and one.state == "up"
    )
    network = [*ports] or [*interfaces]
    model = processor.model or processor.architecture or "unknown"
    return f"{model}, {len(processor.cpus)} processors, network {counted(network)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _words(value: object) -> str:
    return "; ".join(value) if isinstance(value, tuple) else str(value)
