"""`hpccoll topo`: the nodes, ranks and groups of this run, what the hosts are made of; or the types."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpccoll.cli.output import JSON_HELP, STANDARD_OUTPUT, by_rank_0, check_writable, write_json
from hpccoll.errors import UsageError
from hpccoll.files import write_text

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.topology.hardware.document import Survey
    from hpccoll.topology.hardware.model import Process
    from hpccoll.topology.layout import Layout
    from hpccoll.topology.machine import Machine

NAME = "topo"
HELP = "print the tree of nodes, ranks and groups, and what the hosts are made of"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll topo`."""
    parser.add_argument(
        "--layout",
        metavar="TEXT",
        help='virtual nodes, such as "3+1" or "cyclic:2+2" (default: HPCCOLL_LAYOUT)',
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--json", metavar="FILE", help=JSON_HELP)
    instead.add_argument(
        "--types", action="store_true", help="print instead which operators take which element types"
    )
    parser.add_argument("--ranks", action="store_true", help="a line for every rank, and every host in full")
    parser.add_argument("--svg", metavar="FILE", help="draw the hosts to FILE")
    parser.add_argument(
        "--root",
        metavar="PATH",
        help="instead of this run, the hosts in PATH: a directory with sys/ and proc/ of a host, one of such "
        "directories, or a file of --json; needs no mpirun",
    )


def run(args: argparse.Namespace) -> int:
    """Every rank calls it; rank 0 prints.

    Returns:
        The exit status: 0; 1 where the machine is not what was asked for, or a rank is missing.

    Raises:
        UsageError: the layout or the root is wrong, or a file cannot be written.

    """
    if args.root is not None:
        _saved(args)
        return 0
    from mpi4py import MPI

    import hpccoll
    from hpccoll.cli import types
    from hpccoll.topology.report import format_tree, machine_as_dict

    options = {} if args.layout is None else {"layout": args.layout}
    world = MPI.COMM_WORLD
    if args.types:
        if world.rank == 0:
            print(types.text())
        return 0
    check_writable(world, args.json, args.svg)
    try:
        with hpccoll.Communicator(world, **options) as comm:
            machine, limit_s = comm.machine, comm.config.init_timeout_s
        survey = survey_of(world, machine, limit_s)
    except hpccoll.UsageError:
        raise
    except hpccoll.HpccollError as error:  # the same on all ranks
        if world.rank == 0:
            print(f"hpccoll topo: {error}", file=sys.stderr)
        return 1

    def show() -> None:
        assert survey is not None  # on rank 0 it is there
        tree = format_tree(machine, ranks=args.ranks)
        _show(args, tree, machine_as_dict(machine), survey, machine.layout)

    by_rank_0(world, show)
    return 0


def _saved(args: argparse.Namespace) -> None:
    from hpccoll.topology.hardware.detect import survey_below

    if args.layout is not None or args.types:
        raise UsageError("--root goes without --layout and --types: it describes hosts, not this run")
    _show(args, "", {}, survey_below(args.root), None)


def survey_of(world: MPI.Intracomm, machine: Machine, limit_s: float) -> Survey | None:
    """What is on all hosts, and what all ranks say, on rank 0; None on others.  Collective."""
    from hpccoll.topology.hardware.gathering import gather_survey

    private = world.Dup()
    found = gather_survey(private, machine.hosts_layout, _process(machine), time.monotonic() + limit_s)
    private.Free()
    return found


def _process(machine: Machine) -> Process:
    """What this rank says, with the libraries that it has loaded or would load."""
    from hpccoll.cli.version import nccl_cuda, nccl_text
    from hpccoll.runtime import cuda_aware
    from hpccoll.topology.gpus import visible_devices
    from hpccoll.topology.hardware.detect import detect_process
    from hpccoll.topology.hardware.model import Unknown

    found = detect_process()
    nccl = nccl_text()
    reasons = () if nccl is not None else (Unknown("nccl", "nccl4py or NCCL is not installed"),)
    return replace(
        found,
        mpi_library=machine.mpi_library,
        mpi_cuda_aware=cuda_aware.says_so(),
        nccl=nccl,
        nccl_cuda=nccl_cuda(),
        visible_devices=visible_devices(),
        unknown=found.unknown + reasons,
    )


def _show(
    args: argparse.Namespace, tree: str, document: dict[str, Any], survey: Survey, layout: Layout | None
) -> None:
    from hpccoll.topology.hardware.document import survey_as_dict
    from hpccoll.topology.hardware.picture import draw_survey
    from hpccoll.topology.hardware.text import format_survey

    if args.json != STANDARD_OUTPUT:
        sections = [tree, format_survey(survey, detail=args.ranks), *_joined(survey, layout)]
        print("\n\n".join(filter(None, sections)), flush=True)
    if args.svg is not None:
        write_text(args.svg, draw_survey(survey))
    if args.json is not None:
        write_json(args.json, {**document, "hardware": survey_as_dict(survey)})


def _joined(survey: Survey, layout: Layout | None) -> list[str]:
    """The NVLink domains of the ranks, where they are other groups than the nodes."""
    from hpccoll.topology.hardware.domains import joined_layout

    joined = None if layout is None else joined_layout(layout, survey)
    if layout is None or joined is None or joined.domains in (joined.nodes, layout.domains):
        return []
    groups = " ".join(f"({' '.join(map(str, group))})" for group in joined.domains[:8])
    return [f"NVLink joins the GPUs of other ranks than the nodes do: {groups}"]
