"""`hpccoll tune`: measure every plan and the links on this machine, and keep it for all later programs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hpccoll.cli.output import check_writable

NAME = "tune"
HELP = "measure the links and every plan at many sizes, and keep it in a table by which plans are then chosen"

# Whatever the environment says: what is measured is every plan as it is.
PLAIN = {"tuning": "off", "algorithm": "", "wire_dtype": "", "reproducible": False}
_FLAGS = (
    (("--collectives",), "NAMES", "all", "with commas between"),
    (("-b", "--minbytes"), "SIZE", "8", "smallest size, as nccl-tests counts it"),
    (("-e", "--maxbytes"), "SIZE", "16M", "largest"),
    (("-f", "--stepfactor"), "N", "8", "factor from one size to the next"),
    (("-d", "--datatype"), "TYPE", "float", "of the elements"),
    (("--rounds",), "N", "15", "in each of which all plans take their turn"),
    (("--round-ms",), "MS", "2", "least time of a plan's turn"),
    (("--memory",), "KIND", "host", "where the arrays are: host, or device"),
    (("--layout",), "TEXT", None, 'virtual nodes, such as "2+2" (default: HPCCOLL_LAYOUT)'),
    (("-T", "--timeout"), "SECONDS", None, "most that a call may take (default: HPCCOLL_TIMEOUT_S)"),
    (
        ("-o", "--output"),
        "FILE",
        None,
        "where to write the table (default: where it is found, as HPCCOLL_TUNING says)",
    ),
    (("--json",), "FILE", None, 'write the table to FILE as JSON, too; "-": to standard output'),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll tune`; they stay text until rank 0 can complain of them."""
    for names, metavar, default, text in _FLAGS:
        shown = text if default is None else f"{text} (default: {default})"
        dest = names[-1].lstrip("-").replace("-", "_")
        parser.add_argument(*names, metavar=metavar, default=default, dest=dest, help=shown)


def run(args: argparse.Namespace) -> int:
    """Every rank calls it; rank 0 prints and writes.

    Returns the exit status, the same on every rank: 0; 1 when a plan gave a wrong result.
    UsageError on all ranks for misuse.
    """
    from mpi4py import MPI

    import hpccoll
    from hpccoll.cli.bench.kinds import open_kind
    from hpccoll.cli.tune.options import read
    from hpccoll.cli.tune.sweep import Sweep

    world = MPI.COMM_WORLD
    options = read(args)
    check_writable(world, options.json)
    settings: dict[str, Any] = {"layout": options.layout, "timeout_s": options.timeout_s, **PLAIN}
    with hpccoll.Communicator(world, **settings) as comm:
        kind = open_kind(world, comm, on_device=options.on_device)
        try:
            sweep = Sweep(world, comm, kind, options)
            return sweep.run(sys.argv)
        finally:
            kind.close()
