"""Schedules of `nemesis.py` between hosts, whose links are cut: for good, in one direction, for a moment.

A host of its own for every node of the layout; the same ranks, and the same judge.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.faults.nemesis import (
    CALLS,
    CHECKED,
    LINK_CUTS,
    PROGRAM,
    START_S,
    TIMEOUT_S,
    Lines,
    broken_promises,
    read,
)
from tests.faults.nemesis_rank import LINKS
from tests.support.launch import find_mpiexec, until
from tests.support.virtual_hosts import VirtualHosts, remote_options

LAYOUTS = ((2, 2), (3, 1), (1, 2, 1), (1, 1))
AWAY_S = 0.3
PATIENT_S = 25.0  # TCP may wait for seconds before it repeats what was lost


def schedule(seed: int, number: int) -> dict[str, Any]:
    """One schedule; `host` is the one whose link is cut, `after_s` so long after one rank's call."""
    chance = random.Random(f"links {seed} {number}")
    hosts = chance.choice(LAYOUTS)
    fault = LINKS[number % len(LINKS)]
    return {
        "seed": chance.randrange(2**31),
        "hosts": hosts,
        "ranks": sum(hosts),
        "fault": fault,
        "rank": chance.randrange(sum(hosts)),
        "call": chance.randrange(3, CALLS - 3),
        "host": chance.randrange(len(hosts)),
        "before": chance.random() < 0.5,
        "delay_s": 0.0,
        "calls": CALLS,
        "timeout_s": TIMEOUT_S if fault in LINK_CUTS else PATIENT_S,
        "checksums": chance.random() < CHECKED,
    }


def judged(plan: dict[str, Any]) -> list[str]:
    """Run a schedule, and what is wrong with it."""
    launcher = find_mpiexec()
    hosts = VirtualHosts(len(plan["hosts"]))
    with tempfile.TemporaryDirectory(prefix="hpccoll-links-") as name, hosts:
        directory = Path(name)
        options = remote_options(launcher.flavour, hosts.hosts, plan["hosts"])
        (directory / "schedule.json").write_text(json.dumps(plan))
        program = f"{sys.executable} {PROGRAM} {name}; sleep {START_S}"
        env = {"HPCCOLL_TRACE_DIR": str(directory / "traces")}
        job = hosts.start(hosts.hosts[0], [launcher.path, *options, "sh", "-c", program], env=env)
        try:
            until(lambda: _struck(directory, plan) is not None, START_S, 1e-3)
            _cut(hosts, plan, directory)
            lines = _ended(directory, plan)
        finally:
            hosts.kill()
            output = job.communicate(timeout=30)
    silent = [rank for rank, all_ in lines.items() if not (all_ and all_[-1].get("end"))]
    if silent:
        return [f"ranks {silent} did not end: {output}"]
    return broken_promises(plan, lines)


def _struck(directory: Path, plan: dict[str, Any]) -> float | None:
    """When the rank that goes on once the link is cut has come so far."""
    return next(
        (one["at"] for one in read(directory, plan["ranks"])[plan["rank"]] if one.get("struck")), None
    )


def _cut(hosts: VirtualHosts, plan: dict[str, Any], directory: Path) -> None:
    """Cut a link, before that rank goes on or while all are at work."""
    host = hosts.hosts[plan["host"]]
    if not plan["before"]:
        (directory / "cut").touch()
    if plan["fault"] == "link cut one way":
        hosts.mute(host)
    else:
        hosts.link(host, up=False)
    (directory / "cut").touch()
    if plan["fault"] == "link comes back":
        time.sleep(AWAY_S)
        hosts.link(host, up=True)


def _ended(directory: Path, plan: dict[str, Any]) -> Lines:
    deadline = time.monotonic() + START_S
    while True:
        lines = read(directory, plan["ranks"])
        if all(all_ and all_[-1].get("end") for all_ in lines.values()) or time.monotonic() > deadline:
            return lines
        time.sleep(0.05)
