"""`hpccoll layout`: what a way to train a model in parallel costs on a machine, and its neighbours.

Needs no MPI and no GPU: all is computed, by the formulas of `hpccoll.parallel.price` and `models`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from hpccoll.cli.output import JSON_HELP, STANDARD_OUTPUT, write_json
from hpccoll.errors import UsageError
from hpccoll.parallel.dimensions import settle
from hpccoll.parallel.gpus import GPUS, Gpu, machine_with_gpus
from hpccoll.parallel.models import GRADIENT_BYTES, MODELS, RECOMPUTE, Model, model_of
from hpccoll.parallel.price import Choice, Priced, messages, neighbours, price_choice
from hpccoll.plans.draw import table
from hpccoll.plans.machines import Machine
from hpccoll.plans.text import bytes_text, time_text
from hpccoll.topology.layout import Layout

NAME = "layout"
HELP = "what data, tensor and pipeline parallelism of a model cost on a machine; needs no MPI"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll layout`."""
    add = parser.add_argument
    add("--model", required=True, metavar="NAME", help=", ".join(MODELS))
    add("--nodes", type=int, metavar="N", help="how many nodes")
    add("--gpus", type=int, metavar="N", help="GPUs used of each node (default: all)")
    add("--layout", metavar="TEXT", help='nodes and GPUs instead, such as "4x8" or "8+8+4"')
    add("--machine", default="dgx-h100", metavar="NAME", help=f"{', '.join(GPUS)} (default: dgx-h100)")
    add("--tensor", type=int, default=1, metavar="N", help="size of tensor groups (default: 1)")
    add("--pipeline", type=int, default=1, metavar="N", help="stages of a pipeline (default: 1)")
    add(
        "--data",
        type=int,
        default=-1,
        metavar="N",
        help="size of data groups (default: what the others leave)",
    )
    add("--batch", type=int, default=1536, metavar="N", help="sequences of a step (default: 1536)")
    add("--micro-batch", type=int, default=1, metavar="N", help="sequences of a micro-batch (default: 1)")
    add("--no-sequence", action="store_true", help="activations are not spread over tensor groups")
    add("--recompute", choices=RECOMPUTE, default="selective", help="of activations (default: selective)")
    add("--no-sharding", action="store_true", help="every rank keeps all of the optimizer's state")
    add(
        "--efficiency",
        type=float,
        default=0.5,
        metavar="F",
        help="part of the GPU's operations that a stage reaches while it computes (default: 0.5)",
    )
    add("--json", metavar="FILE", help=JSON_HELP)


def run(args: argparse.Namespace) -> int:
    """Print the price.  Returns the exit status: 0 good, 1 it does not fit in the GPU's memory, 2 misuse."""
    model = model_of(args.model)
    machine, gpu = machine_with_gpus(args.machine)
    layout = _layout(args, machine)
    choice = _choice(args, layout)
    if not 0 < args.efficiency <= 1:
        raise UsageError(f"--efficiency is {args.efficiency}: must be above 0, and 1 at most")
    links, rate = machine.links, gpu.tflops * 1e12 * args.efficiency
    priced = price_choice(choice, model, layout, links, rate)
    others = [price_choice(one, model, layout, links, rate) for one in neighbours(choice, model)]
    if args.json is not None:
        write_json(args.json, _as_dict(priced, others, model, machine, gpu))
    if args.json != STANDARD_OUTPUT:
        print("\n\n".join(_report(priced, others, model, machine, gpu)))
    if not _fits(priced, gpu):
        print(f"hpccoll layout: {_memory_text(priced, gpu)}: it does not fit", file=sys.stderr)
        return 1
    return 0


def _layout(args: argparse.Namespace, machine: Machine) -> Layout:
    if (args.layout is None) == (args.nodes is None):
        raise UsageError("one of --nodes and --layout is needed")
    if args.layout is None:
        return machine.layout(args.nodes, args.gpus)
    layout = Layout.parse(args.layout)
    if max(layout.counts) > machine.ranks:
        raise UsageError(f"--layout: {machine.name} has {machine.ranks} GPUs in a node")
    return layout


def _choice(args: argparse.Namespace, layout: Layout) -> Choice:
    for flag, value in (("--batch", args.batch), ("--micro-batch", args.micro_batch)):
        if value < 1:
            raise UsageError(f"{flag} is {value}: must be at least 1")
    sizes = settle({"tensor": args.tensor, "pipeline": args.pipeline, "data": args.data}, layout.size)
    return Choice(
        **sizes,
        batch=args.batch,
        micro_batch=args.micro_batch,
        sequence=not args.no_sequence,
        recompute=args.recompute,
        sharded=not args.no_sharding,
    )


def _fits(priced: Priced, gpu: Gpu) -> bool:
    return priced.memory_bytes <= gpu.memory_gb * 1e9


def _memory_text(priced: Priced, gpu: Gpu) -> str:
    return f"{priced.memory_bytes / 1e9:.1f} GB of the {gpu.memory_gb:g} GB of a GPU"


# --- text ---------------------------------------------------------------------------------------


def _report(priced: Priced, others: list[Priced], model: Model, machine: Machine, gpu: Gpu) -> list[str]:
    choice, layout = priced.choice, priced.placement.layout
    sizes = f"tensor {choice.tensor}, pipeline {choice.pipeline}, data {choice.data}"
    batch = f"{choice.batch} sequences of {model.sequence}"
    parameters = f"{model.parameters / 1e9:.1f} billion parameters"
    head = (
        f"{model.name} ({parameters}) on {layout.describe()}, {machine.name}\n{sizes}; {batch}, "
        f"{choice.micro_batches} micro-batches of {choice.micro_batch} through each pipeline"
    )
    return [
        head,
        "\n".join(_traffic_lines(priced)),
        "\n".join(_message_lines(choice, model)),
        "\n".join(_time_lines(priced)),
        "\n".join(_memory_lines(priced, gpu)),
        "\n".join(_neighbour_lines(priced, others, gpu)),
    ]


def _traffic_lines(priced: Priced) -> list[str]:
    levels = sorted({level for total in priced.moved.values() for level in total})
    rows = [("a step moves, all GPUs", *levels, "groups across nodes")]
    for name, total in priced.moved.items():
        groups = priced.placement.groups(name)
        node_of = priced.placement.layout.node_of
        across = sum(len({node_of[rank] for rank in group}) > 1 for group in groups)
        rows.append((name, *(bytes_text(total[level]) for level in levels), f"{across} of {len(groups)}"))
    return table(rows)


def _message_lines(choice: Choice, model: Model) -> list[str]:
    rows = [("a GPU of the first stage", "one call", "calls a step", "sends", "a layer and micro-batch")]
    each = model.layers // choice.pipeline * choice.micro_batches
    for one in messages(choice, model):
        share = _decimal(one.sent / each) if one.dimension == "tensor" else "-"
        what = f"{one.dimension} {one.collective}"
        rows.append((what, _decimal(one.nbytes), str(one.times), _decimal(one.sent), share))
    of_all = model.parameters / (choice.tensor * choice.pipeline) * GRADIENT_BYTES
    rows.append(("gradients of a GPU, on average", _decimal(of_all), "", "", ""))
    return table(rows)


def _decimal(nbytes: float) -> str:
    size, unit = next((one for one in ((1e12, "TB"), (1e9, "GB")) if nbytes >= one[0]), (1e6, "MB"))
    return f"{nbytes / size:.1f} {unit}"


def _time_lines(priced: Priced) -> list[str]:
    parts = {
        "compute": priced.compute_s,
        "tensor": priced.tensor_s,
        "pipeline": priced.pipeline_s,
        "bubble": priced.bubble_s,
        "data": priced.data_s,
    }
    rows = [("time of a step", "", "")]
    rows += [(name, time_text(one), f"{100 * one / priced.step_s:.1f} %") for name, one in parts.items()]
    rows.append(("all, nothing overlapped", time_text(priced.step_s), ""))
    return table(rows)


def _memory_lines(priced: Priced, gpu: Gpu) -> list[str]:
    rows = [("memory of a GPU", "")]
    rows.append(("parameters, gradients, optimizer", f"{priced.state_bytes / 1e9:.1f} GB"))
    rows.append(("activations", f"{priced.activation_bytes / 1e9:.1f} GB"))
    rows.append((f"all, of {gpu.memory_gb:g} GB", f"{priced.memory_bytes / 1e9:.1f} GB"))
    return table(rows)


def _neighbour_lines(priced: Priced, others: list[Priced], gpu: Gpu) -> list[str]:
    rows = [("   tensor", "pipeline", "data", "step", "bubble", "between nodes", "memory")]
    for one in (priced, *sorted(others, key=lambda other: other.step_s)):
        choice = one.choice
        between = sum(total["network"] for total in one.moved.values())
        rows.append(
            (
                f"{'->' if one is priced else '  '} {choice.tensor}",
                str(choice.pipeline),
                str(choice.data),
                time_text(one.step_s),
                f"{100 * one.bubble_s / one.step_s:.1f} %",
                bytes_text(between),
                f"{one.memory_bytes / 1e9:.1f} GB" + ("" if _fits(one, gpu) else ", too much"),
            )
        )
    return table(rows)


# --- JSON ---------------------------------------------------------------------------------------


def _as_dict(
    priced: Priced, others: list[Priced], model: Model, machine: Machine, gpu: Gpu
) -> dict[str, Any]:
    return {
        "model": {**asdict(model), "parameters": model.parameters},
        "machine": machine.name,
        "gpu": asdict(gpu),
        "layout": str(priced.placement.layout),
        "chosen": _priced_as_dict(priced, gpu),
        "messages": [asdict(one) for one in messages(priced.choice, model)],
        "neighbours": [_priced_as_dict(one, gpu) for one in others],
    }


def _priced_as_dict(one: Priced, gpu: Gpu) -> dict[str, Any]:
    return {
        **asdict(one.choice),
        "micro_batches": one.choice.micro_batches,
        "bytes_by_level": {name: dict(total) for name, total in one.moved.items()},
        "step_s": one.step_s,
        "compute_s": one.compute_s,
        "tensor_s": one.tensor_s,
        "pipeline_s": one.pipeline_s,
        "bubble_s": one.bubble_s,
        "data_s": one.data_s,
        "state_bytes": one.state_bytes,
        "activation_bytes": one.activation_bytes,
        "memory_bytes": one.memory_bytes,
        "fits": _fits(one, gpu),
    }
