"""`hpccoll topo`: print the nodes, ranks and groups of this run, and how they were found; or the types."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

NAME = "topo"
HELP = "print the tree of nodes, ranks and groups"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll topo`."""
    parser.add_argument(
        "--layout",
        metavar="TEXT",
        help='virtual nodes, such as "3+1" or "cyclic:2+2" (default: HPCCOLL_LAYOUT)',
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--json", metavar="FILE", help='write it to FILE as JSON; "-": to standard output alone'
    )
    instead.add_argument(
        "--types", action="store_true", help="print instead which operators take which element types"
    )
    parser.add_argument("--ranks", action="store_true", help="a line for every rank")


def run(args: argparse.Namespace) -> int:
    """Every rank calls it; rank 0 prints.

    Returns:
        The exit status: 0; 1 where the machine is not what was asked for, or a rank is missing; 2 where
        the layout is wrong or the file cannot be written.

    """
    from mpi4py import MPI

    import hpccoll
    from hpccoll.cli import types
    from hpccoll.topology.report import format_tree, machine_as_dict

    options = {} if args.layout is None else {"layout": args.layout}
    rank = MPI.COMM_WORLD.rank
    if args.types:
        if rank == 0:
            print(types.text())
        return 0
    try:
        with hpccoll.Communicator(MPI.COMM_WORLD, **options) as comm:
            machine = comm.machine
    except hpccoll.HpccollError as error:
        if rank == 0:
            print(f"hpccoll topo: {error}", file=sys.stderr)
        return 2 if isinstance(error, hpccoll.UsageError) else 1
    if rank != 0:
        return 0
    document = json.dumps(machine_as_dict(machine), indent=2, ensure_ascii=False)
    if args.json == "-":
        print(document)
        return 0
    print(format_tree(machine, ranks=args.ranks))
    return 0 if args.json is None else _write(args.json, document)


def _write(path: str, document: str) -> int:
    try:
        Path(path).write_text(document + "\n", encoding="utf-8")
    except OSError as error:
        print(f"hpccoll topo: cannot write {path}: {error.strerror}", file=sys.stderr)
        return 2
    return 0
