"""`hpccoll bench OP`: time a collective at many sizes and check every element of its results.

Flags, table, bandwidths and JSON are those of nccl-tests, where the thing exists here.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import Any

from hpccoll.cli.bench.flags import configure
from hpccoll.cli.bench.options import read
from hpccoll.cli.output import STANDARD_OUTPUT, check_writable
from hpccoll.errors import UsageError

__all__ = ["HELP", "NAME", "configure", "run"]

NAME = "bench"
HELP = "time a collective, check every element; flags and table of nccl-tests"


def run(args: argparse.Namespace) -> int:
    """Every rank calls it; rank 0 prints.

    Returns the exit status, the same on every rank: 0; 1 when an element was wrong, memory out of bounds was
    written, a collective failed or the bandwidth is less than 0.9 of NCCL_TESTS_MIN_BW; 2 where the file
    cannot be written after all.  UsageError on all ranks for misuse.
    """
    from mpi4py import MPI

    import hpccoll
    from hpccoll.cli.bench.kinds import open_kind
    from hpccoll.cli.bench.sweep import Sweep

    world = MPI.COMM_WORLD
    options = read(args)
    check_writable(world, options.json)
    sweep = Sweep(world, options, sys.stderr if options.json == STANDARD_OUTPUT else sys.stdout)
    settings: dict[str, Any] = {"layout": options.layout, "timeout_s": options.timeout_s}
    modes = [{"reproducible": False}, {"reproducible": True}] if options.reproducible else [{}]
    try:
        with ExitStack() as stack:
            comms = [stack.enter_context(hpccoll.Communicator(world, **settings, **mode)) for mode in modes]
            redops = options.redops if options.operation.reduces else ()
            kind = open_kind(world, comms[0], on_device=options.on_device, redops=redops)
            sweep.measure(*comms, kind=kind)
            kind.close()
    except UsageError:
        raise
    except hpccoll.HpccollError as error:
        sweep.outcome.errors.append(f"{type(error).__name__}: {error}")
    return sweep.conclude(sys.argv)
