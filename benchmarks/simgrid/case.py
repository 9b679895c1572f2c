"""A plan and a machine of hosts as the file that `replay` reads, and the replay as a child process."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hpccoll.plans.cost import agreement_s
from hpccoll.plans.demand import demands
from hpccoll.plans.links import Links
from hpccoll.plans.lower import lower
from hpccoll.plans.program import Combine, GroupCall, Operation, Program, Receive, Send
from hpccoll.plans.steps import Plan
from hpccoll.scaling.network import OUT, UP, Contention, Network

PYTHON = "/usr/bin/python3"
REPLAY = Path(__file__).with_name("replay.py")
# Messages share links max-min fairly and nothing else is assumed of them; LV08, SimGrid's default, also
# takes 3 % of the bandwidth, thirteen times the latency, and acknowledgements that go the other way.
PLAIN = ("network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0")


class ReplayError(Exception):
    """SimGrid could not replay a plan; what it said."""


@functools.cache
def available() -> str | None:
    """Why there can be no replay here, or None where there can."""
    if not Path(PYTHON).exists():
        return f"there is no {PYTHON}"
    try:
        done = subprocess.run([PYTHON, "-c", "import simgrid"], capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return f"{PYTHON} cannot import simgrid within a minute"
    return (
        None if done.returncode == 0 else "SimGrid is missing (Debian, Ubuntu: apt install python3-simgrid)"
    )


def replay_s(
    plan: Plan,
    itemsize: int,
    links: Links,
    contention: Contention | None = None,
    settings: tuple[str, ...] = PLAIN,
    timeout_s: float = 300.0,
) -> float:
    """What SimGrid takes for a plan; `settings`: of SimGrid.

    Raises: ReplayError.
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "case.json"
        file.write_text(json.dumps(document(plan, itemsize, links, contention or Contention())))
        command = [PYTHON, str(REPLAY), str(file), *settings]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise ReplayError(f"SimGrid was not done after {timeout_s:g} s") from None
    if done.returncode:
        raise ReplayError(f"SimGrid ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return float(done.stdout.split()[-1])


def document(plan: Plan, itemsize: int, links: Links, contention: Contention) -> dict[str, Any]:
    """All that the replay needs.  Hosts only: what NCCL does inside its calls is not known here."""
    layout = plan.layout
    network = Network(layout, links, contention)
    out, up = network.first(OUT), network.first(UP)
    begin_s = max(contention.late_us.values(), default=0.0) * 1e-6 + agreement_s(plan, links)
    asked = [demands(plan, step, itemsize, links) for step in plan.steps]
    calls: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for number, step in enumerate(plan.steps):
        for members, demand in zip(step.groups, asked[number], strict=True):
            if step.algorithm == "native" and len(members) > 1:
                slow = float(network.slow[list(members)].min())
                calls.setdefault(members, []).append(
                    {
                        "name": f"{number}:{members[0]}",
                        "members": members,
                        "latency_s": demand.fixed_s,
                        "bytes": demand.inside[0] / slow,
                    }
                )
    return {
        "network_latency_s": links.network_latency_us * 1e-6,
        "message_latency_s": links.message_latency_us * 1e-6,
        "messages": links.message_gbs * 1e9,
        "memory": links.memory_gbs * 1e9,
        "leaves": [float(network.capacity[up + leaf]) for leaf in range(int(network.leaf_of[-1]) + 1)],
        "nodes": [
            {"network": float(network.capacity[out + node]), "leaf": int(network.leaf_of[node])}
            for node in range(layout.node_count)
        ],
        "groups": [{"node": layout.node_of[members[0]], "calls": found} for members, found in calls.items()],
        "ranks": [
            {
                "node": layout.node_of[rank],
                "combines_per_s": links.combine_gbs * 1e9 * float(network.slow[rank]),
                "start_s": begin_s,
                "operations": _operations(lower(plan, rank), itemsize, plan),
            }
            for rank in range(layout.size)
        ],
    }


def _operations(program: Program, itemsize: int, plan: Plan) -> list[dict[str, Any]]:
    return [_operation(one, itemsize, plan) for one in program.operations]


def _operation(one: Operation, itemsize: int, plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {"what": "copy", "after": one.after, "previous": -1, "step": one.step}
    match one:
        case Send():
            nbytes = (one.source.stop - one.source.start) * itemsize
            found |= {"what": "send", "peer": one.peer, "bytes": nbytes, "previous": one.previous}
        case Receive():
            found |= {"what": "receive", "peer": one.peer, "previous": one.previous}
        case Combine():
            found |= {"what": "combine", "bytes": (one.target.stop - one.target.start) * itemsize}
        case GroupCall():
            found |= {"what": "call", "name": f"{one.step}:{one.members[0]}", "previous": one.previous}
    return found
