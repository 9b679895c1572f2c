"""What the command line asks for, checked."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from hpccoll.cli.bench import flags
from hpccoll.cli.bench import options as bench
from hpccoll.cli.bench.options import Options as BenchOptions
from hpccoll.errors import UsageError
from hpccoll.plans.collective import NAMES
from hpccoll.plans.measured import DEVICE, HOST, MEMORIES

COLLECTIVES = tuple(name for name in NAMES if name != "barrier")
FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class Options:
    """What to measure, and where the table goes; sizes in bytes."""

    collectives: tuple[str, ...]
    each: BenchOptions
    round_s: float
    memory: str
    output: str | None
    json: str | None

    @property
    def on_device(self) -> bool:
        """Arrays are in the memory of GPUs."""
        return self.memory == DEVICE

    @property
    def layout(self) -> str | None:
        """Virtual nodes."""
        return self.each.layout

    @property
    def timeout_s(self) -> float | None:
        """Most that a call may take."""
        return self.each.timeout_s

    @property
    def rounds(self) -> int:
        """In each of which all plans take their turn."""
        return self.each.rounds

    @property
    def sizes(self) -> Iterator[int]:
        """From the smallest to the largest."""
        return self.each.sizes


def read(args: argparse.Namespace) -> Options:
    """The options from the parsed command line.

    Raises: UsageError, naming flag and value.
    """
    wanted = COLLECTIVES if args.collectives == "all" else tuple(args.collectives.split(","))
    unknown = [name for name in wanted if name not in COLLECTIVES]
    if unknown:
        raise UsageError(f"--collectives: {unknown[0]!r} must be one of {', '.join(COLLECTIVES)}, or all")
    if args.memory not in MEMORIES:
        raise UsageError(f"--memory is {args.memory!r}: must be {' or '.join(MEMORIES)}")
    each = _as_bench(args)
    if len(each.datatypes) != 1:
        raise UsageError(f"-d/--datatype is {args.datatype!r}: must be one type")
    if each.rounds < FEWEST_ROUNDS:
        raise UsageError(f"--rounds is {each.rounds}: must be at least {FEWEST_ROUNDS}, to have an interval")
    round_s = _milliseconds(args.round_ms)
    if args.output is not None and not args.output.endswith(".toml"):
        raise UsageError(f"-o/--output is {args.output!r}: must end in .toml")
    return Options(wanted, each, round_s, args.memory, args.output, args.json)


def _as_bench(args: argparse.Namespace) -> BenchOptions:
    """The same as flags of `hpccoll bench`, which checks them."""
    parser = argparse.ArgumentParser()
    flags.configure(parser)
    words = ["allreduce", "-b", args.minbytes, "-e", args.maxbytes, "-f", args.stepfactor]
    words += ["-d", args.datatype, "--rounds", args.rounds, "-a", "3", "-c", "1"]
    words += ["--device", "cpu" if args.memory == HOST else "cuda"]
    for flag, value in (("--layout", args.layout), ("-T", args.timeout)):
        words += [] if value is None else [f"{flag}={value}" if flag.startswith("--") else f"{flag}{value}"]
    return bench.read(parser.parse_args(words))


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 60_000:
        raise UsageError(f"--round-ms is {text!r}: must be a number above 0, at most 60000")
    return value * 1e-3
