"""`hpccoll bench OP`: time a collective at many sizes and check every element of its results.

Flags, table, bandwidths and JSON are those of nccl-tests, where the thing exists here.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from hpccoll.cli.bench.flags import configure
from hpccoll.cli.bench.on_device.packages import lacking
from hpccoll.cli.bench.options import Options, read
from hpccoll.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.cli.bench.kinds import Cpu

__all__ = ["HELP", "NAME", "configure", "run"]

NAME = "bench"
HELP = "time a collective, check every element; flags and table of nccl-tests"


def run(args: argparse.Namespace) -> int:
    """Every rank calls it; rank 0 prints.

    Returns the exit status, the same on every rank: 0; 1 when an element was wrong, memory out of bounds was
    written, a collective failed or the bandwidth is less than 0.9 of NCCL_TESTS_MIN_BW; 2 for misuse.
    """
    from mpi4py import MPI

    import hpccoll
    from hpccoll.cli.bench.sweep import Sweep, check_writable

    world = MPI.COMM_WORLD
    try:
        options = read(args)
        check_writable(world, options.json)
        sweep = Sweep(world, options, sys.stderr if options.json == "-" else sys.stdout)
        settings: dict[str, Any] = {"layout": options.layout, "timeout_s": options.timeout_s}
        modes = [{"reproducible": False}, {"reproducible": True}] if options.reproducible else [{}]
        try:
            with ExitStack() as stack:
                comms = [
                    stack.enter_context(hpccoll.Communicator(world, **settings, **mode)) for mode in modes
                ]
                kind = _kind(world, comms[0], options)
                sweep.measure(*comms, kind=kind)
                kind.close()
        except UsageError:
            raise
        except hpccoll.HpccollError as error:
            sweep.outcome.errors.append(f"{type(error).__name__}: {error}")
        return sweep.conclude(sys.argv)
    except UsageError as error:
        if world.rank == 0:
            print(f"hpccoll bench: {error}", file=sys.stderr, flush=True)
        return 2


def _kind(world: MPI.Intracomm, comm: Any, options: Options) -> Cpu:
    """Where arrays are to be.  Collective; raises UsageError on all ranks where that cannot be."""
    from hpccoll.cli.bench.kinds import Cpu

    if not options.on_device:
        return Cpu(world)
    redops = options.redops if options.operation.reduces else ()
    told = [f"rank {rank}: {text}" for rank, text in enumerate(world.allgather(lacking(redops))) if text]
    if told:
        raise UsageError(f"--device cuda: {told[0]}")
    from hpccoll.cli.bench.on_device.cuda import Cuda

    return Cuda(world, comm)
