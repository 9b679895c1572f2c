"""Figures that others have published of NCCL, and what the cost model predicts for them.

`figures.csv` has the bus bandwidths as published: 1e9 bytes a second, by nccl-tests' definition.

algorithm: the one that was forced, where one was.
timing: `queued` calls follow each other on the device; of `each call` the host's part is in the time.
use: what was fitted to this figure: the latency of a link class, the `NVLS tree`'s part of the network, or
    what a call takes longer that is timed alone (`calls between nodes`).
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpccoll.plans.catalogue import RECIPES, make_plan
from hpccoll.plans.collective import BLOCKED, Collective
from hpccoll.plans.cost import price
from hpccoll.plans.machines import MACHINES, Machine
from hpccoll.plans.nccl_model import Spread, ways
from hpccoll.plans.select import Tuning, candidates
from hpccoll.plans.steps import Kind

_ML = "stas00/ml-engineering, network/"
SOURCES = {
    "a100-sweep": _ML + "README.md, Real network throughput: nccl-tests -g 8 on a node of 8 A100",
    "h200-sweep": _ML + "benchmarks/README.md, How the calls are timed: nccl-tests, NCCL 2.30.7",
    "h200-calls": _ML + "benchmarks/results/all-reduce-8xH200.md: PyTorch 2.9, NCCL 2.27.7, 2026-08",
    "nvls": _ML + "README.md, SHARP: nccl-tests, with and without NVLS, 2026-08",
    "h100-slide": "NVIDIA, GTC 2025, s72583; the payload is that of " + _ML + "README.md, SHARP",
    "b200-32k": _ML + "benchmarks/README.md, Network throughput: one node at 32 KiB",
    "b200-calls": _ML + "README.md, Inter-node speed depends on intra-node speed: PyTorch 2.9, NCCL 2.27.7",
    "b200-nodes": _ML + "benchmarks/README.md, all_reduce benchmark: up to 10 queued calls",
    "h200-nodes": "stas00/ml-engineering, TODO.md, 4 nodes, and " + _ML + "README.md, Multiple node training",
    "dgx-a100-nodes": "NVIDIA/nccl#812, #1576: 8 HDR cards a node, large sizes; taken for 4 nodes and 8 GiB",
}
# What is in the time of each call that is timed alone, on an idle GPU and after a barrier, besides the call.
# On one node PyTorch's host side: "20-30 us", benchmarks/README.md.  Between nodes also that ranks come at
# different times, as that page says; fitted to the least time of that sweep.
ALONE_US = 25.0
ALONE_BETWEEN_US = 251.0
LARGE = 256 << 20
RESULTS = Path(__file__).parents[1] / "results" / "cluster-2-4-hosts-1gbit-2026-11-30.json"
RECIPE_NAMES = {recipe.name for recipe in RECIPES["allreduce"]}


@dataclass(frozen=True)
class Figure:
    """A row of figures.csv."""

    machine: str
    nodes: int
    gpus: int
    collective: str
    nbytes: int
    busbw_gbs: float
    algorithm: str
    timing: str
    source: str
    use: str

    @property
    def time_us(self) -> float:
        """The time that was measured."""
        ranks = self.nodes * self.gpus
        factor = (ranks - 1) / ranks * (2 if self.collective == "allreduce" else 1)
        return factor * self.nbytes / self.busbw_gbs / 1e3

    def predicted(self) -> tuple[float, str]:
        """The model's time in microseconds, and NCCL's algorithm."""
        machine = MACHINES[self.machine]
        assert machine.links.fabric is not None
        fabric = machine.links.fabric
        rate = fabric.group_rate(self.gpus)
        spread = Spread(self.nodes * self.gpus, self.nodes, self.gpus)
        times = {
            name: way.time_s(fabric, rate)
            for name, way in ways(Kind(self.collective), spread, self.nbytes, fabric).items()
            if name.startswith(self.algorithm)
        }
        name = min(times, key=times.__getitem__)
        time_s = times[name] if self.algorithm else self._price()
        return time_s * 1e6 + self._besides_us, name

    @property
    def _besides_us(self) -> float:
        if self.timing == "queued":
            return 0.0
        return ALONE_US if self.nodes == 1 else ALONE_BETWEEN_US

    def _price(self) -> float:
        """Of a plain call on bytes of float32, as `hpccoll plan --machine` has it."""
        machine = MACHINES[self.machine]
        layout = machine.layout(self.nodes, self.gpus)
        count = self.nbytes // 4 // (layout.size if self.collective in BLOCKED else 1)
        plan = make_plan("flat", Collective(self.collective, layout.size, count), layout, segment=count)
        return price(plan, 4, machine.links).time_s

    @property
    def calibrates(self) -> str:
        """What was fitted to this figure."""
        return self.use.removeprefix("calibrates ") if self.use.startswith("calibrates ") else ""

    @property
    def met(self) -> bool:
        """The prediction is within the bound, where there is one."""
        return self.bound is None or self.bound[0] <= self.ratio <= self.bound[1]

    @property
    def ratio(self) -> float:
        """The predicted time over the measured one."""
        return self.predicted()[0] / self.time_us

    @property
    def bound(self) -> tuple[float, float] | None:
        """What the ratio has to be between; None: no bound is set for such a figure."""
        if self.calibrates:
            return None
        if self.nbytes >= LARGE:
            return 0.85, 1.15
        return (1 / 1.5, 1.5) if self.nbytes == 1 << 20 else None


@dataclass(frozen=True)
class Recorded:
    """An all-reduce measured by `python -m benchmarks.cluster`, 2 ranks a host."""

    hosts: int
    nbytes: int
    algorithm: str
    measured_s: float
    predicted_s: float

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.measured_s


def recorded() -> tuple[Recorded, ...]:
    """Our own plans in the results file, over Ethernet of 1 Gbit/s."""
    machine = MACHINES["cpu-1gbit"]
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    return tuple(
        _recorded(machine, run["hosts"], document["ranks_per_host"], row)
        for run in document["runs"]
        for row in run["rows"]
        if row["algorithm"] in RECIPE_NAMES - {"flat"}
    )


def _recorded(machine: Machine, hosts: int, ranks: int, row: dict[str, Any]) -> Recorded:
    layout, nbytes, name = machine.layout(hosts, ranks), row["bytes"], row["algorithm"]
    call = Collective("allreduce", layout.size, nbytes // 4)
    best = candidates(call, layout, 4, Tuning(links=machine.links), name)[0]
    return Recorded(hosts, nbytes, name, row["median_s"], best.time_s)


def figures() -> tuple[Figure, ...]:
    """All of figures.csv."""
    with (Path(__file__).parent / "figures.csv").open(newline="", encoding="utf-8") as file:
        return tuple(
            Figure(
                row["machine"],
                int(row["nodes"]),
                int(row["gpus"]),
                row["collective"],
                int(row["bytes"]),
                float(row["busbw_gbs"]),
                *(row[name] for name in ("algorithm", "timing", "source", "use")),
            )
            for row in csv.DictReader(file)
        )
