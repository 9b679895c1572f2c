"""Gloo, the collectives of torch.distributed for host memory, by the names of MPI's methods.

Only calls that gloo has are here: it has no scan. Its all-reduce and reduce work in place, so that what is
given must lie in the receive array before the call; who uses gloo pays for no copy, so none is timed.
"""

# The names are MPI's.
# ruff: noqa: N802

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from mpi4py import MPI

IN_PLACE = ("Allreduce", "Reduce")
START_LIMIT = timedelta(seconds=120)


def missing() -> str | None:
    """Why gloo cannot be measured here, or None where it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed in this environment (docs/dependencies.md)"
    import torch.distributed

    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        return f"torch {torch.__version__} was built without gloo"
    if not hasattr(torch.distributed, "reduce_scatter_single"):
        return f"torch is {torch.__version__}; gloo is called by the names of 2.13"
    return None


class Gloo:
    """A process group of the ranks of `world`; methods take what `tensor` makes of arrays.

    They meet through a file that rank 0 makes, in `folder`, which all ranks see, and talk over `interface`:
    without words all are on one node.
    """

    def __init__(self, world: MPI.Intracomm, folder: Path | None = None, interface: str = "lo") -> None:
        import torch.distributed

        self._torch, self._ours = torch, torch.distributed
        self._rank, self._size = world.rank, world.size
        self._folder = tempfile.mkdtemp(prefix="gloo-", dir=folder) if world.rank == 0 else None
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        meeting = str(Path(world.bcast(self._folder)) / "ranks")
        store = torch.distributed.FileStore(meeting, world.size)
        torch.distributed.init_process_group(
            "gloo", store=store, rank=world.rank, world_size=world.size, timeout=START_LIMIT
        )

    def close(self) -> None:
        """Leave; all ranks call it."""
        self._ours.barrier()
        self._ours.destroy_process_group()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def tensor(self, array: Any) -> Any:
        """The array's memory as a tensor."""
        return self._torch.from_numpy(array)

    def Allreduce(self, give: Any, take: Any) -> None:
        self._ours.all_reduce(take)

    def Reduce(self, give: Any, take: Any) -> None:
        self._ours.reduce(give if take is None else take, dst=0)

    def Bcast(self, take: Any) -> None:
        self._ours.broadcast(take, src=0)

    def Allgather(self, give: Any, take: Any) -> None:
        self._ours.all_gather_single(take, give)

    def Reduce_scatter_block(self, give: Any, take: Any) -> None:
        self._ours.reduce_scatter_single(take, give)

    def Alltoall(self, give: Any, take: Any) -> None:
        self._ours.all_to_all_single(take, give)

    def Gather(self, give: Any, take: Any) -> None:
        self._ours.gather(give, None if take is None else list(take.chunk(self._size)), dst=0)

    def Scatter(self, give: Any, take: Any) -> None:
        self._ours.scatter(take, None if give is None else list(give.chunk(self._size)), src=0)
