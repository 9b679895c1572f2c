"""The command `hpccoll`: each subcommand is a module with NAME, HELP, configure(parser) and run(args)."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from hpccoll.cli import version
from hpccoll.cli.output import abort, all_come
from hpccoll.errors import HpccollError, UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

COMMANDS = ("bench", "doctor", "layout", "plan", "scale", "selftest", "topo", "trace", "tune")
GOOD, WRONG, MISUSE = 0, 1, 2
PATIENCE_S = 10.0  # for other ranks, when one finds the command wrong


def parser() -> argparse.ArgumentParser:
    """What reads the command line; its result's `run` is the subcommand."""
    found = argparse.ArgumentParser(prog="hpccoll", description=__doc__.split(":")[0] + ".")
    found.add_argument("--version", action="store_true", help="of hpccoll, MPI, NCCL and packages")
    commands = found.add_subparsers(dest="command")
    for name in COMMANDS:
        module = import_module(f"hpccoll.cli.{name}")
        sub = commands.add_parser(module.NAME, help=module.HELP, description=module.HELP)
        module.configure(sub)
        sub.set_defaults(run=module.run)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand.  Exit status: 0 good, 1 found wrong, 2 misuse.

    A failure on one rank of several ends the whole job, so that no other rank waits for it.
    """
    asked = parser()
    args = asked.parse_args(argv)
    if args.version:
        print(version.text())
        return GOOD
    if args.command is None:
        asked.error("which command?")
    try:
        status = int(args.run(args))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # nobody reads on, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD
    except UsageError as error:
        _tell(f"hpccoll {args.command}: {error}")
        return MISUSE
    except HpccollError as error:
        print(f"hpccoll {args.command}: {type(error).__name__}: {error}", file=sys.stderr)
        return WRONG
    except Exception:
        traceback.print_exc()
        _end_job()
        return WRONG


def _tell(misuse: str) -> None:
    """What is wrong with the command, said once; who alone finds it wrong says so and ends the job."""
    world = _world()
    if world is None or world.rank == 0:
        print(misuse, file=sys.stderr, flush=True)
    if world is not None and not all_come(world, PATIENCE_S):
        if world.rank:
            print(f"rank {world.rank}: {misuse}", file=sys.stderr, flush=True)
        abort(world, MISUSE)


def _end_job() -> None:
    """End all ranks of a job of several: who failed unforeseen does not come to where the others wait."""
    world = _world()
    if world is not None and world.size > 1:
        abort(world, WRONG)


def _world() -> MPI.Intracomm | None:
    if "mpi4py.MPI" not in sys.modules:
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD if MPI.Is_initialized() and not MPI.Is_finalized() else None
