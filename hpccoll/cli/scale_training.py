"""`hpccoll scale training`: strong and weak scaling of a model on a machine, computed."""

from __future__ import annotations

import argparse
import csv
import io
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from hpccoll.cli.output import STANDARD_OUTPUT, write_json
from hpccoll.cli.sizes import format_bytes, parse_bytes
from hpccoll.errors import UsageError
from hpccoll.overlap.making import DEVICE_BUCKET_BYTES
from hpccoll.parallel.gpus import machine_with_gpus
from hpccoll.parallel.models import MODELS, RECOMPUTE, model_of
from hpccoll.parallel.price import Choice
from hpccoll.plans.draw import table
from hpccoll.plans.text import time_text
from hpccoll.scaling.training import STRONG, WEAK, Step, study

OPERATION = "training"
VERSION = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll scale training`."""
    own = parser.add_argument_group(
        "OP training: steps of a model, with --machine (formulas: docs/scaling.md)"
    )
    add = own.add_argument
    add("--model", metavar="NAME", help=", ".join(MODELS))
    add(
        "--weak",
        action="store_true",
        help="the batch grows with the nodes (default: it stays, strong scaling)",
    )
    add("--batch", type=int, metavar="N", help="sequences of a step on the fewest nodes (default: 512)")
    add("--micro-batch", type=int, metavar="N", help="sequences of a micro-batch (default: 1)")
    add("--tensor", type=int, metavar="N", help="size of tensor groups (default: 1)")
    add("--pipeline", type=int, metavar="N", help="stages of a pipeline (default: 1)")
    add("--bucket", metavar="SIZE", help=f"bytes of gradients in a bucket ({DEVICE_BUCKET_BYTES >> 20}M)")
    add("--no-overlap", action="store_true", help="gradients are sent when the backward pass is over")
    add("--recompute", choices=RECOMPUTE, help="of activations (default: selective)")
    add(
        "--efficiency",
        type=float,
        metavar="F",
        help="part of the GPU's operations that a stage reaches while it computes (default: 0.5)",
    )


FLAGS = ("model", "weak", "batch", "micro_batch", "tensor", "pipeline", "bucket", "no_overlap", "recompute",
         "efficiency")  # fmt: skip


def run(args: argparse.Namespace, counts: Sequence[int]) -> int:
    """Print the study, write what is asked for; the exit status.  Raises: UsageError."""
    if args.json == STANDARD_OUTPUT:
        raise UsageError("--json - : name a file; the table goes to standard output")
    if args.machine is None or args.model is None:
        raise UsageError("training is computed, not measured: say --machine NAME and --model NAME")
    model = model_of(args.model)
    machine, gpu = machine_with_gpus(args.machine)
    part = 0.5 if args.efficiency is None else args.efficiency
    if not 0 < part <= 1:
        raise UsageError(f"--efficiency is {part}: must be above 0, and 1 at most")
    links = machine.links if args.cards is None else machine.links.with_cards(args.cards)
    layouts = [machine.layout(count, args.gpus) for count in counts]
    bucket = DEVICE_BUCKET_BYTES if args.bucket is None else parse_bytes(args.bucket)
    for flag, value in (("--bucket", bucket), ("--batch", args.batch), ("--micro-batch", args.micro_batch),
                        ("--tensor", args.tensor), ("--pipeline", args.pipeline)):  # fmt: skip
        if value is not None and value < 1:
            raise UsageError(f"{flag} is {value}: must be at least 1")
    tensor, pipeline = args.tensor or 1, args.pipeline or 1
    first = Choice(
        tensor,
        pipeline,
        max(1, layouts[0].size // (tensor * pipeline)),
        batch=args.batch or 512,
        micro_batch=args.micro_batch or 1,
        recompute=args.recompute or "selective",
    )
    scaling = WEAK if args.weak else STRONG
    rate = gpu.tflops * 1e12 * part
    steps = list(
        study(model, first, layouts, links, rate, bucket, scaling=scaling, overlap=not args.no_overlap)
    )
    card = "" if args.cards is None else f", {args.cards} network cards a node"
    how = "one after the other" if args.no_overlap else "overlapped"
    title = (
        f"{model.name}, {scaling} scaling on {machine.name}{card}: tensor {tensor}, pipeline {pipeline}, "
        f"buckets of {format_bytes(bucket)} {how}"
    )
    print(f"# {title}")
    print("\n".join(_lines(steps)))
    if len(steps) < len(counts):
        print(
            f"# {counts[len(steps)]} nodes: the batch of {first.batch} sequences has too few for each group"
        )
    command = " ".join(shlex.quote(one) for one in ["hpccoll", *sys.argv[1:]])
    if args.json is not None:
        found = [*map(_as_dict, steps)]
        write_json(args.json, {"version": VERSION, "title": title, "command": command, "steps": found})
    if args.report is not None:
        from hpccoll.scaling.training_report import write_report

        print(f"# report: {write_report(Path(args.report), title, command, steps, as_csv(steps))}")
    return 0


def _lines(steps: Sequence[Step]) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("  nodes", "GPUs", "batch", "step", "compute", "tensor", "pipeline", "bubble", "gradients",
         "exposed", "TFLOP/s a GPU", "efficiency", "limit")
    ]  # fmt: skip
    for one in steps:
        parts = (one.step_s, one.compute_s, one.tensor_s, one.pipeline_s, one.bubble_s, one.gradients_s,
                 one.exposed_s)  # fmt: skip
        rows.append(
            (f"  {one.nodes}", str(one.gpus), str(one.batch), *map(time_text, parts), f"{one.tflops:.0f}",
             f"{100 * one.efficiency:.0f} %", one.limit)
        )  # fmt: skip
    return table(rows)


def _as_dict(one: Step) -> dict[str, object]:
    return {**asdict(one), "step_s": one.step_s}


def as_csv(steps: Sequence[Step]) -> str:
    """A line for each number of nodes, under a line of names."""
    text = io.StringIO()
    names = [*(one.name for one in fields(Step)), "step_s"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_as_dict, steps))
    return text.getvalue()
