"""A training step between virtual hosts, with its timeline and the picture of one step.

    python -m benchmarks.cluster.step --into build/bench

Needs root, iproute2 and matplotlib.  Two hosts of one rank each make some steps with GradientBuckets, whose
computation is a timed wait for each layer, as the host of a GPU waits for its kernels; a forward pass, too.
Writes the timeline (step.json) and one step of it (step.png, step.svg).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hpccoll
from hpccoll.cli import main as hpccoll_command
from hpccoll.cli.sizes import parse_bytes
from tests.support.launch import REPOSITORY

STEPS = 8


def train(options: argparse.Namespace) -> None:
    """The program of a rank."""
    with hpccoll.Communicator(MPI.COMM_WORLD) as comm:
        flat = np.zeros(options.bytes // 4, np.float32)
        gradients = dict(enumerate(np.array_split(flat, options.layers)))
        buckets = hpccoll.GradientBuckets(comm, gradients)
        layer_s = options.compute_ms / 1e3 / options.layers
        for _ in range(STEPS):
            with comm.annotate("step"):
                with comm.annotate("forward"):
                    time.sleep(layer_s * options.layers / 2)
                with comm.annotate("backward"):
                    for layer in reversed(range(options.layers)):
                        time.sleep(layer_s)
                        buckets.ready(layer)
                buckets.wait()
                with comm.annotate("update"):
                    flat *= 0.5
        buckets.close()


def drive(options: argparse.Namespace) -> int:
    """Exit status: 0, 1 when the run failed, 2 where there can be no hosts."""
    from tests.support.virtual_hosts import VirtualHosts, available

    reason = available()
    if reason is not None:
        print(f"benchmarks.cluster.step is left out: {reason}", file=sys.stderr)
        return 2
    program = [sys.executable, "-m", "benchmarks.cluster.step", "--as-rank", "--bytes", str(options.bytes)]
    program += ["--layers", str(options.layers), "--compute-ms", str(options.compute_ms)]
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, VirtualHosts(options.hosts, options.rate) as hosts:
        done = hosts.mpiexec(program, 1, timeout_s=120, env={"HPCCOLL_TRACE": directory})
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return 1
        (path,) = Path(directory).glob("timeline-*.json")
        shutil.copy(path, options.into / "step.json")
    for form in ("png", "svg"):
        arguments = ["trace", str(options.into / "step.json"), "--figure", str(options.into / f"step.{form}")]
        if hpccoll_command(arguments):
            return 1
    return 0


def main(argv: Sequence[str]) -> int:
    """Be a rank, or make hosts and draw."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster.step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--hosts", type=int, default=2, help="(2)")
    add("--bytes", type=parse_bytes, default=16 << 20, help="of all gradients, with K or M (16M)")
    add("--layers", type=int, default=16)
    add(
        "--compute-ms",
        type=float,
        default=200.0,
        help="of the backward pass; the forward one half of it (200)",
    )
    add("--rate", default="1gbit", help="egress limit of each host (1gbit)")
    add("--into", type=Path, default=REPOSITORY / "build" / "bench")
    add("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.as_rank:
        train(options)
        return 0
    return drive(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
