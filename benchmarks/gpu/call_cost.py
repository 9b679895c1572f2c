"""What a call on device arrays costs in Python: `comm.Allreduce(a, b)` above a plain call of nccl4py.

    mpirun -n 2 python benchmarks/gpu/call_cost.py --save benchmarks/results
    python -m tests.emulation mpirun -n 2 python benchmarks/gpu/call_cost.py --save benchmarks/results

The second line is for a machine without a GPU: it runs on the CPU stand-in, and what it writes says so.  The
ways are called in turn in every round, in one process and on one stream, with the same small arrays:

    bindings   nccl.bindings.nccl.all_reduce with addresses, count and type at hand: the least there is
    core       nccl.core.Communicator.allreduce(a, b, SUM), which reads the arrays
    ours       comm.Allreduce(a, b), which also knows whether the call was made before
    started    request.Start() of comm.Allreduce_init(a, b), which knows that it was
    ours_cupy, started_cupy    the same with arrays of CuPy (on its current stream), where it is installed

Only enqueueing is timed: the stream is waited for between blocks, outside the time.  Figures are medians over
the rounds of rank 0's time for a call.  The two kinds of time are that of the clock, in which other processes
have a part on a busy machine, and that of this thread's processor, also with the least of any round.  Then
cProfile looks at ours.  Exit status 1 when a way costs more than its limit above `bindings` by the
processor's time: LIMITS_US.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import os
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda.core
import nccl.core
import numpy as np
from cuda.bindings import driver
from mpi4py import MPI
from nccl.bindings import nccl as bindings

import hpccoll

Ways = dict[str, tuple[Callable[[], object], Any]]  # the call, and the array that holds its result
LIMITS_US = {"ours": 10.0, "ours_cupy": 10.0, "started": 4.0, "started_cupy": 4.0}
PROFILED_CALLS = 500
PROFILE_ROWS = 15


class Array:
    """Elements on the device, all ones, as any library shows its arrays to others."""

    def __init__(self, count: int, stream: int) -> None:
        ones = np.ones(count, np.float32)
        self.address = int(checked(driver.cuMemAlloc(ones.nbytes)))
        checked(driver.cuMemcpyHtoD(self.address, ones.ctypes.data, ones.nbytes))
        self.count, self.dtype = count, ones.dtype
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": ones.shape,
            "typestr": ones.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": stream,
        }

    def get(self) -> Any:
        """A copy on the host, of what is there once the device is done."""
        values = np.empty(self.count, self.dtype)
        checked(driver.cuMemcpyDtoH(values.ctypes.data, self.address, values.nbytes))
        return values


def checked(answer: tuple[Any, ...]) -> Any:
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA: {answer[0].name}")
    return answer[1] if len(answer) == 2 else None


def plain_communicator(world: MPI.Intracomm) -> Any:
    return nccl.core.Communicator.init(
        world.size, world.rank, world.bcast(nccl.core.get_unique_id() if world.rank == 0 else None)
    )


def ways(comm: Any, plain: Any, stream: Any, count: int) -> Ways:
    """Each way to call."""
    handle = int(stream.handle)
    results = {name: Array(count, handle) for name in ("bindings", "core", "ours", "started")}
    source = Array(count, handle)
    kind, op, group = int(bindings.DataType.Float32), int(bindings.RedOp.Sum), bindings.Comm(plain.ptr)
    at, to = source.address, results["bindings"].address
    core, ours = results["core"], results["ours"]
    found: Ways = {
        "bindings": (
            lambda: bindings.all_reduce(at, to, count, kind, op, group, handle),
            results["bindings"],
        ),
        "core": (lambda: plain.allreduce(source, core, nccl.core.SUM, stream=stream), core),
        "ours": (lambda: comm.Allreduce(source, ours), ours),
        "started": (comm.Allreduce_init(source, results["started"]).Start, results["started"]),
    }
    try:
        import cupy
    except ImportError:
        return found
    if hasattr(cupy.cuda.Stream, "from_external"):
        cupy.cuda.Stream.from_external(stream).use()
    else:
        cupy.cuda.ExternalStream(handle).use()
    a, b, c = cupy.ones(count, cupy.float32), cupy.zeros(count, cupy.float32), cupy.zeros(count, cupy.float32)
    return found | {
        "ours_cupy": (lambda: comm.Allreduce(a, b), b),
        "started_cupy": (comm.Allreduce_init(a, c).Start, c),
    }


def measure(
    world: MPI.Intracomm,
    found: Ways,
    stream: Any,
    rounds: int,
    calls: int,
) -> dict[str, dict[str, list[float]]]:
    """Microseconds of a call in each round, by way and kind of time."""
    times: dict[str, dict[str, list[float]]] = {name: {"clock": [], "processor": []} for name in found}
    names = list(found)
    for turn in range(rounds):
        for index in range(len(names)):
            name = names[(index + turn) % len(names)]
            call = found[name][0]
            stream.sync()
            world.Barrier()
            processor, clock = time.thread_time(), time.perf_counter()
            for _ in range(calls):
                call()
            clock, processor = time.perf_counter() - clock, time.thread_time() - processor
            times[name]["clock"].append(clock / calls * 1e6)
            times[name]["processor"].append(processor / calls * 1e6)
    stream.sync()
    return times


def profile(call: Callable[[], object], stream: Any) -> list[dict[str, Any]]:
    """The functions that take most of ours, by their own processor time; cProfile slows each of them down."""
    profiler = cProfile.Profile(time.thread_time)
    profiler.enable()
    for _ in range(PROFILED_CALLS):
        call()
    profiler.disable()
    stream.sync()
    rows = []
    for (file, _, function), (_, times, own, total, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        where = Path(file).name if file.endswith(".py") else ""
        rows.append(
            {
                "function": f"{where}:{function}" if where else function,
                "times_per_call": times / PROFILED_CALLS,
                "own_us_per_call": own / PROFILED_CALLS * 1e6,
                "total_us_per_call": total / PROFILED_CALLS * 1e6,
            }
        )
    return sorted(rows, key=lambda row: -float(row["own_us_per_call"]))[:PROFILE_ROWS]


def summary(times: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Medians, and the medians of what each round has above `bindings`."""
    found = {}
    for name, kinds in times.items():
        row: dict[str, float] = {}
        for kind, values in kinds.items():
            above = [one - base for one, base in zip(values, times["bindings"][kind], strict=True)]
            row[f"{kind}_us"] = statistics.median(values)
            row[f"{kind}_above_us"] = statistics.median(above)
            row[f"{kind}_least_us"] = min(values)
        found[name] = row
    return found


def markdown(medians: dict[str, dict[str, float]], facts: dict[str, Any]) -> str:
    lines = [
        f"Python cost of an enqueued all-reduce of {facts['bytes']} bytes, {facts['ranks']} ranks, "
        f"{facts['device_name']}, NCCL {facts['nccl_version']}"
        f"{' (CPU stand-in: no GPU)' if facts['stand_in'] else ''}; medians of {facts['rounds']} rounds of "
        f"{facts['calls']} calls, {facts['date']}:",
        "",
        "| way | clock, µs | above `bindings` | processor, µs | above `bindings` | least of all rounds |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{name}` | {row['clock_us']:.1f} | {row['clock_above_us']:.1f} "
        f"| {row['processor_us']:.1f} | {row['processor_above_us']:.1f} | {row['processor_least_us']:.1f} |"
        for name, row in medians.items()
    ]
    return "\n".join(lines)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--count", type=int, default=256, help="float32 elements (default: 256)")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--calls", type=int, default=50, help="calls in a block (default: 50)")
    parser.add_argument("--no-limits", action="store_true", help="exit status 0 however much a way costs")
    parser.add_argument("--save", metavar="FOLDER", help="write a .json and a .md file there")
    return parser.parse_args()


def main() -> int:
    options, world = read_arguments(), MPI.COMM_WORLD
    with hpccoll.Communicator(world) as comm:
        device = cuda.core.Device(comm.device)
        device.set_current()
        stream = device.create_stream()
        plain = plain_communicator(world)
        found = ways(comm, plain, stream, options.count)
        for call, result in found.values():
            call()
            call()
            stream.sync()
            assert (result.get() == world.size).all()
        times = measure(world, found, stream, options.rounds, options.calls)
        rows = profile(found["ours"][0], stream)
        path = comm.device_path
        plain.destroy()
    medians = summary(times)
    version = bindings.get_version()
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "device_name": device.name,
        "stand_in": "stand-in" in device.name,
        "stand_in_mode": os.environ.get("STANDIN_MODE"),
        "device_path": path,
        "nccl_version": f"{version // 10000}.{version // 100 % 100}.{version % 100}",
        "nccl4py_version": nccl.core.__version__,
        "python_version": sys.version.split()[0],
        "ranks": world.size,
        "bytes": options.count * 4,
        "rounds": options.rounds,
        "calls": options.calls,
    }
    over = [
        name for name, row in medians.items() if row["processor_above_us"] > LIMITS_US.get(name, math.inf)
    ]
    if world.rank == 0:
        text = markdown(medians, facts)
        print(text, flush=True)
        for row in rows:
            print(f"  {row['own_us_per_call']:6.2f} us  {row['times_per_call']:4g} x  {row['function']}")
        if options.save:
            name = f"call-cost-{'stand-in' if facts['stand_in'] else 'gpu'}-{facts['date']}"
            place = Path(options.save) / name
            contents = {**facts, "medians": medians, "times_us": times, "profile_of_ours": rows}
            place.with_suffix(".json").write_text(json.dumps(contents, indent=1) + "\n")
            place.with_suffix(".md").write_text(text + "\n")
        for name in over:
            print(f"{name}: more than {LIMITS_US[name]:.0f} us above bindings", file=sys.stderr)
    return int(world.bcast(bool(over)) and not options.no_limits)


if __name__ == "__main__":
    sys.exit(main())
