"""The fingerprint of the machine on which the ranks of a communicator are."""

from __future__ import annotations

import time
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
from hpccoll.tuning.fingerprint import SETTINGS, Fingerprint


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
        extension=machine.native and config.native and not config.checksums,  # which leave the engine out
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
