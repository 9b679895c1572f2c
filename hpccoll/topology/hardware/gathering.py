"""One description of every host and one of every process, on rank 0."""

from __future__ import annotations

import json
import zlib

import numpy as np
from mpi4py import MPI

from hpccoll.topology.agreement import wait_all
from hpccoll.topology.hardware.detect import detect_host
from hpccoll.topology.hardware.document import Survey, decode, encode
from hpccoll.topology.hardware.model import Host, Process
from hpccoll.topology.layout import Layout

_STEP = "hardware of all hosts"


def gather_survey(comm: MPI.Intracomm, hosts: Layout, process: Process, deadline: float) -> Survey | None:
    """What is on all hosts: the first rank of each reads its host.

    Collective over `comm`.  On the wire: a few KiB from each rank, about 10 KiB more for each host.

    Args:
        comm: a communicator on which nothing else is going on.
        hosts: which ranks share a host in fact, not by virtual nodes.
        process: what this rank says of itself.
        deadline: on the clock of `time.monotonic`, seconds.

    Returns:
        The survey on rank 0, with hosts in order of their first ranks; None on all others.

    Raises:
        CollectiveTimeoutError: not all ranks have told by the deadline.

    """
    leads = hosts.local_rank(comm.rank) == 0
    told = {"process": encode(process), "host": encode(detect_host()) if leads else None}
    found = _collect(comm, zlib.compress(json.dumps(told).encode(), 1), deadline)
    if comm.rank != 0:
        return None
    records = [json.loads(zlib.decompress(payload)) for payload in found]
    return Survey(
        hosts=tuple(decode(Host, records[hosts.leader(node)]["host"]) for node in range(hosts.node_count)),
        processes=tuple(decode(Process, record["process"]) for record in records),
        host_of=hosts.node_of,
    )


def _collect(comm: MPI.Intracomm, payload: bytes, deadline: float) -> list[bytes]:
    """The payloads of all ranks on rank 0, nothing on others."""
    own = np.array([len(payload)], dtype=np.int64)
    lengths = np.zeros(comm.size, dtype=np.int64)
    wait_all([comm.Igather(own, lengths, root=0)], deadline, _STEP, comm.rank)
    sent = np.frombuffer(payload, dtype=np.uint8)
    taken = np.zeros(int(lengths.sum()), dtype=np.uint8)
    request = comm.Igatherv(sent, [taken, lengths.tolist()] if comm.rank == 0 else None, root=0)
    wait_all([request], deadline, _STEP, comm.rank)
    ends = np.cumsum(lengths)
    return (
        [taken[end - size : end].tobytes() for end, size in zip(ends, lengths, strict=True)]
        if comm.rank == 0
        else []
    )
