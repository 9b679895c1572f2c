"""`hpccoll selftest`: does what one rank gives to another arrive, between each pair and by each plan?

Fabrics have been seen that deliver wrong bytes without an error (peer copies under an IOMMU, broken links).
Every rank gives every other a pattern of its own by each plan of the all-to-all, so that both the direct
ways and those of two levels are gone; each plan of the all-reduce sums numbers whose sum is known.  All is
compared on the host, and each pair with wrong bytes is named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hpccoll.errors import HpccollError, UsageError
from hpccoll.topology.notation import format_ranks

if TYPE_CHECKING:
    from hpccoll.cli.bench.kinds import Cpu
    from hpccoll.transports.base import Array

NAME = "selftest"
HELP = "a known pattern between each pair of ranks and over each level, compared on the host"
SHOWN = 20


class Fault(NamedTuple):
    """What arrived wrong at a rank: by a plan, from a rank (-1: of a sum), how many elements, where first."""

    plan: str
    source: int
    target: int
    wrong: int
    first: int


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll selftest`."""
    parser.add_argument("--layout", metavar="TEXT", help="virtual nodes, as for `hpccoll topo`")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the arrays are")
    parser.add_argument(
        "-b", "--bytes", default="256K", metavar="SIZE", help="from each rank to each other (default: 256K)"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=60.0, metavar="S", help="of each call (default: 60)"
    )


def run(args: argparse.Namespace) -> int:
    """Every rank calls it; rank 0 prints.  Returns 0; 1 when something arrived wrong or not; 2 for misuse."""
    from mpi4py import MPI

    import hpccoll
    from hpccoll.cli.bench.kinds import open_kind
    from hpccoll.cli.sizes import parse_bytes

    world = MPI.COMM_WORLD
    try:
        nbytes = parse_bytes(args.bytes)
        options = {"layout": args.layout, "timeout_s": args.timeout_s}
        with hpccoll.Communicator(world, **options) as comm:
            kind = open_kind(world, comm, on_device=args.device == "cuda")
            faults = [*pairs(comm, kind, nbytes), *sums(comm, kind, nbytes)]
            plans = [kind.algorithms(comm, name) for name in ("alltoall", "allreduce")]
            said = comm.machine.layout, kind.processor, kind.notes(comm)
            kind.close()
    except UsageError:
        raise
    except HpccollError as error:
        print(f"hpccoll selftest: rank {world.rank}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    told = world.gather(faults)
    hosts = world.allgather(MPI.Get_processor_name())
    if told is not None:
        _print(said, plans, nbytes, [fault for found in told for fault in found], hosts)
    return 1 if any(world.allgather(bool(faults))) else 0


def pairs(comm: Any, kind: Cpu, nbytes: int) -> Iterator[Fault]:
    """What is wrong of what this rank got from each, by each plan of the all-to-all."""
    size, rank = comm.size, comm.rank
    byte = np.dtype(np.uint8)
    send, receive = kind.buffer(size * nbytes), kind.buffer(size * nbytes)
    for salt, plan in enumerate(kind.algorithms(comm, "alltoall")):
        if plan == "one_shot" and size * nbytes > comm.config.small_bytes:
            continue
        given = send.view(byte, size * nbytes)
        for target in range(size):
            given[target * nbytes : (target + 1) * nbytes] = pattern(rank, target, nbytes, salt)
        send.push()
        taken = receive.view(byte, size * nbytes)
        with comm.forced(plan):
            comm.Alltoall(send.passed(given), receive.passed(taken))
        if kind.settle is not None:
            kind.settle()
        receive.pull()
        for source in range(size):
            wrong = taken[source * nbytes : (source + 1) * nbytes] != pattern(source, rank, nbytes, salt)
            if wrong.any():
                yield Fault(plan, source, rank, int(wrong.sum()), int(wrong.argmax()))


def sums(comm: Any, kind: Cpu, nbytes: int) -> Iterator[Fault]:
    """What is wrong of the sums on this rank, by each plan of the all-reduce."""
    count = max(1, nbytes // 8)
    integer = np.dtype(np.int64)
    send, receive = kind.buffer(8 * count), kind.buffer(8 * count)
    for salt, plan in enumerate(kind.algorithms(comm, "allreduce")):
        given = send.view(integer, count)
        given[...] = np.arange(count) * (comm.rank + 1) + salt
        send.push()
        taken = receive.view(integer, count)
        with comm.forced(plan):
            comm.Allreduce(send.passed(given), receive.passed(taken))
        if kind.settle is not None:
            kind.settle()
        receive.pull()
        wrong = taken != np.arange(count) * (comm.size * (comm.size + 1) // 2) + salt * comm.size
        if wrong.any():
            yield Fault(plan, -1, comm.rank, int(wrong.sum()), int(wrong.argmax()))


def pattern(source: int, target: int, count: int, salt: int) -> Array:
    """The bytes that one rank gives to another."""
    begin = 131 * source + 31 * target + 17 * salt + 1
    return ((np.arange(count) * 7 + begin) % 251).astype(np.uint8)


def way(fault: Fault) -> str:
    """Between whom something arrived wrong, and by which plan."""
    target = f"rank {fault.target}"
    between = f"from rank {fault.source} to {target}" if fault.source >= 0 else f"on {target}"
    return f"{between}, by {fault.plan}"


def _print(
    said: tuple[Any, str, tuple[str, ...]],
    plans: list[tuple[str, ...]],
    nbytes: int,
    faults: list[Fault],
    hosts: list[str],
) -> None:
    layout, processor, notes = said
    print(f"{len(hosts)} ranks as {layout}, {nbytes} bytes between each two; {processor}")
    print(*notes, sep="\n", end="\n" if notes else "")
    print(f"all-to-all by {', '.join(plans[0])}; all-reduce by {', '.join(plans[1])}")
    for fault in faults[:SHOWN]:
        at = f"rank {fault.target} on {hosts[fault.target]}"
        what = f"{fault.wrong} {'bytes' if fault.source >= 0 else 'sums'}, the first at {fault.first}"
        way = (
            f"from rank {fault.source} on {hosts[fault.source]} to {at}" if fault.source >= 0 else f"on {at}"
        )
        print(f"WRONG {way}, by {fault.plan}: {what}")
    if len(faults) > SHOWN:
        ranks = sorted({fault.target for fault in faults})
        print(f"and {len(faults) - SHOWN} more, on {format_ranks(ranks)}")
    print(f"{len(faults)} wrong" if faults else "all right")
