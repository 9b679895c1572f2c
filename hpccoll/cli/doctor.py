"""`hpccoll doctor`: what is wrong with this machine, or with the way this job was started, and what to do."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hpccoll.cli.output import JSON_HELP, STANDARD_OUTPUT, by_rank_0, check_writable, write_json
from hpccoll.errors import HpccollError

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.cli.selftest import Fault
    from hpccoll.doctor.finding import Finding, Verdict
    from hpccoll.topology.hardware.document import Survey
    from hpccoll.topology.machine import Machine

NAME = "doctor"
HELP = "what is wrong with this machine, or with the way this job was started, and what to do about it"
SHOWN = 12  # findings of one check
SELFTEST_BYTES = 64 << 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll doctor`."""
    parser.add_argument("--json", metavar="FILE", help=JSON_HELP)
    parser.add_argument(
        "--no-measure", action="store_true", help="do not send anything: no rates, no self-test"
    )
    parser.add_argument("--limit-s", type=float, default=60.0, metavar="S", help="of each step (default: 60)")
    parser.add_argument(
        "--root",
        metavar="PATH",
        help="instead of this run, the hosts in PATH, as for `hpccoll topo`; measures nothing",
    )


def run(args: argparse.Namespace) -> int:
    """Every rank calls it; rank 0 prints.  Returns 0; 1 when anything is wrong.  UsageError for misuse."""
    if args.root is not None:
        from hpccoll.topology.hardware.detect import survey_below

        survey = survey_below(args.root)
        return _show(
            args,
            f"{len(survey.hosts)} host{'s' * (len(survey.hosts) != 1)} in {args.root}",
            of_survey(survey),
        )
    return _live(args)


def _live(args: argparse.Namespace) -> int:
    from mpi4py import MPI

    import hpccoll
    from hpccoll.cli.topo import survey_of
    from hpccoll.doctor import placement
    from hpccoll.doctor.finding import judge

    world = MPI.COMM_WORLD
    check_writable(world, args.json)
    library = MPI.Get_library_version().partition("\n")[0]
    started = judge("processes", placement.processes(os.environ, world.size, library), f"{world.size} ranks")
    try:
        with hpccoll.Communicator(world, layout="", timeout_s=args.limit_s) as comm:
            machine = comm.machine
            survey = survey_of(world, machine, args.limit_s)
            measured = () if args.no_measure else _measured(world, machine, survey, args.limit_s)
    except HpccollError as error:
        if not isinstance(
            error, hpccoll.TopologyError | hpccoll.ResourceError | hpccoll.CollectiveTimeoutError
        ):
            raise
        print(f"hpccoll doctor: rank {world.rank}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1

    def show() -> int:
        assert survey is not None  # on rank 0 it is there
        real = machine.hosts_layout
        verdicts = (
            started,
            judge("nodes", placement.nodes(machine), f"all sources find {real.describe()}"),
            judge("placement", placement.placement(machine), "hosts hold as many ranks each, in order"),
            *of_survey(survey),
            *measured,
        )
        return _show(args, f"{world.size} ranks: {real.describe()}", verdicts)

    return by_rank_0(world, show)


def of_survey(survey: Survey) -> tuple[Verdict, ...]:
    """The verdicts on what was found of hosts and processes."""
    from hpccoll.doctor import cards, hardware, placement, software
    from hpccoll.doctor.finding import judge, on_hosts

    hosts = (
        ("GPUs", hardware.gpus, "the driver shows all that are on PCIe"),
        ("NVLink", hardware.nvlink, "all lanes carry traffic"),
        ("NVLink fabric", hardware.fabric, "all GPUs are on it"),
        ("PCIe", hardware.pcie, "cards have the width and speed that they can"),
        ("network ports", cards.ports, "all are active, and as fast as others of their kind"),
        ("bonds", cards.bonds, "all their links are up"),
        ("GPU to network", cards.network_of_gpus, "each GPU has a card as near as the others have"),
        ("GPUDirect RDMA", cards.gpu_direct, "network cards reach GPU memory"),
        ("ACS", cards.acs, "off above GPUs and network cards"),
        ("MIG", hardware.mig, "off"),
        ("/dev/shm", hardware.shared_memory, "large enough"),
    )
    rest = (
        ("hosts alike", hardware.alike, "no host differs from the others"),
        ("host names", placement.host_names, "each its own"),
        ("GPUs of ranks", placement.devices, "each rank has one of its own"),
        ("cores of ranks", placement.cores, "as many cores as ranks at least, near their GPUs"),
        ("MPI", software.mpi, "one library on all ranks"),
        ("NCCL", software.nccl, "one version on all ranks"),
        ("CUDA", software.cuda, "the driver knows that of NCCL"),
        ("CUDA-aware MPI", software.cuda_aware, "yes"),
        ("locked memory", software.locked_memory, "without limit, or much"),
        ("variables", software.variables, "the same on all ranks"),
        ("NCCL's network", software.transport, "not turned away from InfiniBand and RoCE"),
        ("chosen interfaces", software.interfaces, "lead to other hosts"),
    )
    return (
        *(judge(name, on_hosts(check)(survey), words) for name, check, words in hosts),
        *(judge(name, check(survey), words) for name, check, words in rest),
    )


def _measured(
    world: MPI.Intracomm, machine: Machine, survey: Survey | None, limit_s: float
) -> tuple[Verdict, ...]:
    """What is found by sending; collective."""
    import hpccoll
    from hpccoll.cli import selftest
    from hpccoll.cli.bench.kinds import open_kind
    from hpccoll.doctor import network
    from hpccoll.doctor.finding import judge

    hosts = machine.hosts_layout
    private = world.Dup()
    rates = network.measure(private, hosts, time.monotonic() + limit_s)
    private.Free()
    with hpccoll.Communicator(world, layout="", timeout_s=limit_s) as comm:
        kind = open_kind(world, comm, on_device=False)
        faults = [*selftest.pairs(comm, kind, SELFTEST_BYTES), *selftest.sums(comm, kind, SELFTEST_BYTES)]
        kind.close()
    told = world.gather(faults)
    if survey is None or told is None:
        return ()
    names = [host.name or f"host {number}" for number, host in enumerate(survey.hosts)]
    wrong = [_arrived_wrong(fault) for found in told for fault in found]
    return (
        judge("links", network.slow_links(rates, names), network.fine(rates, hosts)),
        judge("self-test", wrong, f"{SELFTEST_BYTES >> 10} KiB between each two ranks arrived, by each plan"),
    )


def _arrived_wrong(fault: Fault) -> Finding:
    from hpccoll.cli.selftest import way
    from hpccoll.doctor.finding import WRONG, Finding

    what = "bytes" if fault.source >= 0 else "sums"
    return Finding(
        WRONG,
        f"{fault.wrong} {what} arrived wrong {way(fault)}",
        f"a known pattern; the first at {fault.first}",
        "hpccoll selftest says more. Peer copies under an IOMMU, memory and links with errors do that: "
        "dmesg, and leave the host out",
    )


def _show(args: argparse.Namespace, title: str, verdicts: Sequence[Verdict]) -> int:
    from hpccoll.doctor.finding import WRONG

    status = int(any(one.word == WRONG for one in verdicts))
    document: dict[str, Any] = {
        "schema": 1,
        "title": title,
        "status": status,
        "checks": [
            {"check": one.check, "word": one.word, "findings": [asdict(f) for f in one.findings]}
            for one in verdicts
        ],
    }
    if args.json != STANDARD_OUTPUT:
        print(report(title, verdicts), flush=True)  # srun may end this process as soon as another one ends
    if args.json is not None:
        write_json(args.json, document)
    return status


def report(title: str, verdicts: Sequence[Verdict]) -> str:
    """All verdicts as text: what is wrong first, what is fine in a line each."""
    from hpccoll.doctor.finding import ABSENT, FINE, NOTE, UNKNOWN, WRONG

    lines = [title]
    for word in (WRONG, NOTE, UNKNOWN):
        for verdict in verdicts:
            found = verdict.said(word)
            for one in found[:SHOWN]:
                lines += _lines(f"{word:<8}{verdict.check}: {one.text}")
                lines += _lines(f"          seen in: {one.evidence}") if one.evidence else []
                lines += _lines(f"          do: {one.cure}") if one.cure else []
            if len(found) > SHOWN:
                lines.append(f"        {verdict.check}: and {len(found) - SHOWN} more (--json has all)")
    lines += [f"{FINE:<8}{one.check}: {one.said(FINE)[0].text}" for one in verdicts if one.word == FINE]
    absent = [f"{one.check} ({one.findings[0].text})" for one in verdicts if one.word == ABSENT]
    lines += _lines(f"{'-':<8}nothing to look at: {', '.join(absent)}") if absent else []
    count = {word: sum(len(one.said(word)) for one in verdicts) for word in (WRONG, NOTE, UNKNOWN)}
    lines.append(f"{count[WRONG]} wrong, {count[NOTE]} to note, {count[UNKNOWN]} unknown")
    return "\n".join(lines)


def _lines(text: str) -> list[str]:
    return textwrap.wrap(
        text, 110, subsequent_indent=" " * 10, break_long_words=False, break_on_hyphens=False
    )
