"""Whether MPI may be given addresses of a CUDA device: what it says of itself, then a child that tries.

An MPI that cannot take them reads the address as one of the host, and the process dies of it.  So a child
tries, alone, and this process only looks at how it ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from functools import cache

from mpi4py import MPI

# The child tries short messages and long ones, for which an MPI has ways of its own.
LENGTHS = (8, 4096, 256 * 1024, 8 * 1024 * 1024)
LIMIT_S = 60.0
# By these a launcher tells a process that it is one of its ranks; the child is alone.
_LAUNCHER_PREFIXES = ("HYDI_", "MPI_LOCAL", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "PRTE_LAUNCHED", "SLURM_")
_SAYS = "MPIX_Query_cuda_support"  # of MPICH, Open MPI, MVAPICH and what is made of them


@cache
def why_not(ordinal: int) -> str:
    """Empty where MPI takes arrays on a device of this ordinal; else the reason.  Local, tried once."""
    if not says_so():
        return "MPI does not say that it is CUDA-aware"
    return trial(ordinal)


def says_so() -> bool:
    """What the MPI library says of itself, which holds for how it was built, not for the network it uses."""
    libraries = (ctypes.CDLL(None), ctypes.CDLL(MPI.__file__))
    query = next((getattr(one, _SAYS) for one in libraries if hasattr(one, _SAYS)), None)
    return query is not None and bool(query())


def trial(ordinal: int, limit_s: float = LIMIT_S) -> str:
    """Let a child send arrays on a device to itself.  Empty where they arrive; else what came of it."""
    env = {name: text for name, text in os.environ.items() if not name.startswith(_LAUNCHER_PREFIXES)}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", __name__, str(ordinal)]
    try:
        child = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no child process could try: {error}"
    if child.returncode == 0:
        return ""
    if child.returncode < 0:
        return f"a child process that tried died of {signal.Signals(-child.returncode).name}"
    last = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return f"a child process that tried failed: {last or child.returncode}"


def send_to_itself(ordinal: int) -> None:
    """What the child does.  Raises RuntimeError when what arrives is not what was sent."""
    from cuda.bindings import driver

    from hpccoll.runtime.streams import Device, checked

    with Device(ordinal):
        for length in LENGTHS:
            send, receive = (checked(driver.cuMemAlloc(length), "cuMemAlloc") for _ in range(2))
            checked(driver.cuMemsetD8(send, 0x5A, length), "cuMemsetD8")
            checked(driver.cuMemsetD8(receive, 0, length), "cuMemsetD8")
            checked(driver.cuCtxSynchronize(), "cuCtxSynchronize")
            given, taken = (
                MPI.buffer.fromaddress(int(address), length, readonly=False) for address in (send, receive)
            )
            MPI.COMM_WORLD.Sendrecv([given, MPI.BYTE], 0, 0, [taken, MPI.BYTE], 0, 0)
            arrived = bytearray(length)
            checked(
                driver.cuMemcpyDtoH(ctypes.addressof(ctypes.c_char.from_buffer(arrived)), receive, length),
                "cuMemcpyDtoH",
            )
            if arrived != b"\x5a" * length:
                raise RuntimeError(f"{length} bytes arrived otherwise than they were sent")


if __name__ == "__main__":
    send_to_itself(int(sys.argv[1]))
