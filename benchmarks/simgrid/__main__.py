"""Our simulation of plans beside SimGrid's, on the same platforms.

    python -m benchmarks.simgrid            # small cases: seconds
    python -m benchmarks.simgrid --large    # and up to 64 ranks: a minute or two

A row for each plan and platform: our time, SimGrid's, and ours over theirs.  SimGrid is the package
python3-simgrid of Debian and Ubuntu.  Exit status: 0; 1 where a row is off by more than 10 %; 2 without
SimGrid.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.simgrid.case import PLAIN, available, replay_s
from hpccoll.plans.collective import BLOCKED, Collective
from hpccoll.plans.machines import machine_of
from hpccoll.plans.select import Tuning, candidates
from hpccoll.plans.steps import Plan
from hpccoll.scaling.flows import simulate_plan
from hpccoll.scaling.network import Contention
from hpccoll.topology.layout import Layout

ITEMSIZE = 4
MIB = 1 << 20
# SimGrid's own default, for comparison only: other latencies and bandwidths than the platform's.
LV08 = ("network/model:LV08",)


@dataclass(frozen=True)
class Case:
    """A plan, by the chunks and algorithm that selection would give it, on a platform."""

    machine: str
    layout: str
    collective: str
    name: str
    nbytes: int
    contention: Contention = field(default_factory=Contention, hash=False)

    def __str__(self) -> str:
        uneven = self.contention.words()
        words = (self.machine, self.layout, self.collective, self.name, f"{self.nbytes // MIB}M", uneven)
        return "-".join(word.replace(" ", "_") for word in words if word)

    def plan(self) -> Plan:
        """The plan."""
        layout = Layout.parse(self.layout)
        count = self.nbytes // ITEMSIZE // (layout.size if self.collective in BLOCKED else 1)
        call = Collective(self.collective, layout.size, count)
        tuning = Tuning(links=machine_of(self.machine).links)
        return candidates(call, layout, ITEMSIZE, tuning, self.name)[0].made

    def times_s(self, settings: tuple[str, ...] = PLAIN) -> tuple[float, float]:
        """Ours, and SimGrid's."""
        made, links = self.plan(), machine_of(self.machine).links
        ours = simulate_plan(made, ITEMSIZE, links, self.contention).time_s
        return ours, replay_s(made, ITEMSIZE, links, self.contention, settings)


_LEAVES = Contention(leaf=2, oversubscription=2.0)
_SLOW = Contention(slow_nodes={1: 0.5}, slow_ranks={0: 0.5}, late_us={2: 500.0})
_PLANS = (
    ("allreduce", "ring"), ("allreduce", "tree"), ("allreduce", "recursive_doubling"),
    ("allreduce", "scatter_rail_gather"), ("allreduce", "reduce_ring_broadcast"), ("reduce", "binomial"),
    ("reduce", "two_level"), ("broadcast", "chain"), ("broadcast", "two_level"), ("allgather", "rail"),
    ("allgather", "ring"), ("reduce_scatter", "rail"), ("reduce_scatter", "ring"), ("allreduce", "fold"),
    ("reduce", "fold"),
)  # fmt: skip
# What latencies and single segments weigh in.
_SHORT = (
    ("allreduce", "ring"), *_PLANS[3:5], ("reduce", "chain"), ("reduce", "two_level"), ("broadcast", "chain"),
    ("broadcast", "two_level"), ("gather", "direct"), ("gather", "two_level"), ("scatter", "direct"),
    ("scatter", "two_level"), *_PLANS[9:14], ("alltoall", "direct"), ("alltoall", "two_level"),
    ("scan", "linear"), ("scan", "two_level"), ("exscan", "linear"),
)  # fmt: skip
CASES = (
    *(Case("plain", "4x2", collective, name, 16 * MIB) for collective, name in _PLANS),
    *(Case("plain", "4x2", *one, MIB) for one in _SHORT),
    *(Case("cpu-1gbit", "4x2", "allreduce", name, MIB) for _, name in _PLANS[3:5]),
    *(Case("plain", "4x2", *one, 16 * MIB, _LEAVES) for one in (_PLANS[0], *_PLANS[2:5])),
    *(Case("plain", "4x2", *one, 16 * MIB, _SLOW) for one in (_PLANS[0], *_PLANS[3:5], _PLANS[8])),
    Case("plain", "3+1+2", "allreduce", "reduce_ring_broadcast", 16 * MIB),
    Case("plain", "cyclic:4x2", "allreduce", "ring", 16 * MIB),
)
LARGE = (
    *(Case("plain", "16x4", collective, name, 16 * MIB) for collective, name in _PLANS),
    *(Case("plain", "16x4", *one, MIB) for one in _SHORT),
    *(Case("plain", "8x8", *one, 16 * MIB, Contention(4, 4.0)) for one in (_PLANS[0], *_PLANS[2:5])),
    *(Case("plain", "16x4", *one, 32 * MIB, Contention(4, 2.0, slow_nodes={5: 0.5})) for one in _PLANS[3:5]),
)


def drive(argv: Sequence[str] | None = None) -> int:
    """Exit status: see above."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simgrid",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--large", action="store_true", help="up to 64 ranks too")
    parser.add_argument("--lv08", action="store_true", help="with SimGrid's default model of networks")
    options = parser.parse_args(argv)
    if (reason := available()) is not None:
        print(f"benchmarks.simgrid is left out: {reason}", file=sys.stderr)
        return 2
    print(f"# {'ours, ms':>10} {'SimGrid, ms':>11} {'ratio':>6}  case")
    worst = 0.0
    for case in (*CASES, *(LARGE if options.large else ())):
        ours, theirs = case.times_s(LV08 if options.lv08 else PLAIN)
        worst = max(worst, abs(ours / theirs - 1))
        print(f"  {ours * 1e3:>10.3f} {theirs * 1e3:>11.3f} {ours / theirs:>6.3f}  {case}", flush=True)
    print(f"# the worst is off by {100 * worst:.1f} %")
    return int(worst > 0.10)


if __name__ == "__main__":
    sys.exit(drive())
