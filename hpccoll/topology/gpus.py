"""The CUDA devices that this process sees, and what they are whatever it calls them."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from mpi4py import MPI

from hpccoll.errors import ResourceError
from hpccoll.topology.agreement import gather
from hpccoll.topology.devices import choose_visible_devices
from hpccoll.topology.layout import Layout
from hpccoll.topology.notation import format_ranks

_LOCAL_RANKS = (
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PMI_LOCAL_RANK",
)


def visible_devices() -> tuple[str, ...]:
    """The identities of the visible devices by ordinal; empty without a CUDA driver or a device."""
    try:
        from cuda.bindings import driver

        count = _checked(driver.cuInit(0), driver.cuDeviceGetCount)
    except Exception:  # no package, no driver, or a driver that does not start
        return ()
    return tuple(identity(ordinal) for ordinal in range(count))


def driver_text() -> str | None:
    """The newest CUDA that the driver runs, such as "12.8"; None without a driver or its bindings."""
    try:
        from cuda.bindings import driver

        status, number = driver.cuDriverGetVersion()
    except Exception:  # no package, or no driver that it could load
        return None
    return f"{number // 1000}.{number % 1000 // 10}" if status == driver.CUresult.CUDA_SUCCESS else None


def identity(ordinal: int) -> str:
    """A device's UUID, the same in all processes of a machine however devices are hidden and numbered.

    Raises: ResourceError when there is no such device.
    """
    from cuda.bindings import driver

    status, handle = driver.cuDeviceGet(ordinal)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise ResourceError(f"CUDA: there is no device {ordinal} ({status.name})")
    status, uuid = driver.cuDeviceGetUuid(handle)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise ResourceError(f"CUDA: device {ordinal} has no UUID ({status.name})")
    return uuid_text(bytes(uuid.bytes))


def name_of(ordinal: int) -> str:
    """What a device is called, such as "NVIDIA H100 80GB HBM3".  Raises: ResourceError as `identity`."""
    from cuda.bindings import driver

    status, handle = driver.cuDeviceGet(ordinal)
    if status == driver.CUresult.CUDA_SUCCESS:
        status, raw = driver.cuDeviceGetName(128, handle)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise ResourceError(f"CUDA: device {ordinal} has no name ({status.name})")
    return bytes(raw).partition(b"\0")[0].decode(errors="replace")


def uuid_text(raw: bytes) -> str:
    """A UUID as nvidia-smi writes it."""
    text = raw.hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def world_local_rank(environ: Mapping[str, str]) -> int | None:
    """The place of this rank among the job's ranks on its host, by the launcher; None when it is silent.

    Not SLURM_LOCALID, which under mpiexec and mpirun is that of the daemon that started the ranks.
    """
    for name in _LOCAL_RANKS:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return int(environ["SLURM_LOCALID"]) if "PMI_RANK" not in environ and _in_step(environ) else None


def likely_ordinal(environ: Mapping[str, str]) -> int:
    """The device for this rank by what the launcher says alone; 0 where it says nothing."""
    return (world_local_rank(environ) or 0) % max(1, len(visible_devices()))


def choose_ordinal(private: MPI.Intracomm, environ: Mapping[str, str], deadline: float) -> int:
    """The device for this rank, by its place among the ranks of its host in the world.

    Collective.  A communicator of the whole job looks at what each rank sees; a part of it goes by what the
    launcher says, so that all communicators of a rank come to the same device.

    Raises: ResourceError on all ranks, when one sees no device or nothing says where it is.
    """
    visible = visible_devices()
    local = world_local_rank(environ)
    facts = json.dumps([socket.gethostname(), visible, local]).encode()
    told = [json.loads(text) for text in gather(private, facts, deadline, "devices of all ranks")]
    without = [rank for rank, (_, seen, _) in enumerate(told) if not seen]
    if without:
        raise ResourceError(f"{format_ranks(without)}: no CUDA device is visible", suspects=without)
    if private.size == MPI.COMM_WORLD.size:
        layout = Layout.from_keys([host for host, _, _ in told])
        chosen = choose_visible_devices(layout, [seen for _, seen, _ in told])[private.rank]
        assert chosen is not None
        return chosen
    unknown = [rank for rank, (_, seen, place) in enumerate(told) if place is None and len(seen) > 1]
    if unknown:
        raise ResourceError(
            f"{format_ranks(unknown)}: the launcher does not say which rank of its host it is; "
            "ask for the device of a communicator of all ranks",
            suspects=unknown,
        )
    return (local or 0) % len(visible)


def _in_step(environ: Mapping[str, str]) -> bool:
    return environ.get("SLURM_STEP_ID", "").isdecimal() and environ.get("SLURM_LOCALID", "").isdecimal()


def _checked(started: Sequence[Any], count: Any) -> int:
    from cuda.bindings import driver

    if started[0] != driver.CUresult.CUDA_SUCCESS:
        return 0
    status, found = count()
    return int(found) if status == driver.CUresult.CUDA_SUCCESS else 0
