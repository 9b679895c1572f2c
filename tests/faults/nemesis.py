"""Random faults at random ranks, calls and moments, and a judge of what the ranks have written down.

    python -m tests.faults.nemesis --schedules 2000 --seed 7        # make soak

A schedule follows from its number and the seed.  The judge knows nothing of how hpccoll works, only what it
promises (docs/reliability.md): results are right, a failure is known to all in time and by its kind, nobody
goes on as if nothing were, and nothing stays behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hpccoll.memory.segments import lives
from tests.faults.nemesis_rank import calls
from tests.support.launch import environment, find_mpiexec, started

PROGRAM = Path(__file__).with_name("nemesis_rank.py")
LAYOUTS = ("4", "2+2", "3+1", "1+3", "cyclic:2+2", "1+1+1+1", "3", "2+1", "1+1")
CALLS = 30
TIMEOUT_S = 1.5
DEAD_S = 2.0
SOON_S = 1.0
CHECKED = 0.2  # of all schedules have checksums
CUTTING_S = 1.0  # until a link that is being cut is
START_S = 40.0
DEATHS = ("SIGKILL",)
DEPARTURES = ("raise", "exit")
DIFFERENCES = ("another count", "another root", "another collective")
HARMLESS = ("none", "late", "stop and go on", "link comes back")
LINK_CUTS = ("link cut", "link cut one way")
FAULTS = (*DEATHS, *DEATHS, *DEPARTURES, "SIGSTOP", *DIFFERENCES, *HARMLESS[:-1])
LOSSES = (*DEATHS, *DEPARTURES, "SIGSTOP", *LINK_CUTS)

Lines = dict[int, list[dict[str, Any]]]


def schedule(seed: int, number: int) -> dict[str, Any]:
    """One schedule."""
    chance = random.Random(f"{seed} {number}")
    layout = chance.choice(LAYOUTS)
    ranks = sum(int(one) for one in layout.removeprefix("cyclic:").split("+"))
    return {
        "seed": chance.randrange(2**31),
        "layout": layout,
        "ranks": ranks,
        "fault": chance.choice(FAULTS),
        "rank": chance.randrange(ranks),
        "call": chance.randrange(3, CALLS - 3),
        "delay_s": chance.choice([1e-6, 1e-4, 1e-3, 1e-2]),
        "calls": CALLS,
        "timeout_s": TIMEOUT_S,
        "checksums": chance.random() < CHECKED,
    }


def run(plan: dict[str, Any]) -> tuple[Lines, list[str]]:
    """What the ranks have written, and what stays behind once the job is over."""
    before = ours()
    with tempfile.TemporaryDirectory(prefix="hpccoll-nemesis-") as name:
        directory = Path(name)
        # Behind shells that stay, or the launcher would end the others when one is killed.
        (directory / "schedule.json").write_text(json.dumps(plan))
        inner = f"{sys.executable} {PROGRAM} {name}; sleep {START_S}"
        command = find_mpiexec().command(plan["ranks"], ["sh", "-c", inner])
        env = environment({"HPCCOLL_LAYOUT": plan["layout"], "HPCCOLL_TRACE_DIR": str(directory / "traces")})
        gone = {plan["rank"]} if plan["fault"] in (*DEATHS, *DEPARTURES, "SIGSTOP") else set()
        wanted = set(range(plan["ranks"])) - gone
        with tempfile.TemporaryFile("w+") as out, started(command, env=env, stdout=out, stderr=out):
            deadline = time.monotonic() + START_S
            while True:
                lines = read(directory, plan["ranks"])
                ended = {rank for rank, all_ in lines.items() if all_ and all_[-1].get("end")}
                if wanted <= ended or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            left = sorted(ours() - before)
            _end_stopped(lines)
            out.seek(0)
            words = (
                []
                if wanted <= ended
                else [f"ranks {sorted(wanted - ended)} did not end: {out.read()[-2000:]}"]
            )
    return lines, words + [f"{one} stays in /dev/shm" for one in left]


def _end_stopped(lines: Lines) -> None:
    """End the process that was stopped, which does not hear its launcher."""
    for process in (one.get("process") for all_ in lines.values() for one in all_):
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def ours() -> set[str]:
    """Files in shared memory whose makers are gone; those of other jobs of this moment do not count."""
    named = ((one, one.split("-")) for one in os.listdir("/dev/shm") if one.startswith("hpccoll-"))
    return {one for one, parts in named if not lives(int(parts[3]), int(parts[4]))}


def read(directory: Path, ranks: int) -> Lines:
    """What every rank has written down; a last line that is not complete is left out."""
    found: Lines = {}
    for rank in range(ranks):
        file = directory / f"{rank}.log"
        text = file.read_text() if file.exists() else ""
        found[rank] = [json.loads(line) for line in text.split("\n")[:-1]]
    return found


# --- the judge --------------------------------------------------------------------------------------


def broken_promises(plan: dict[str, Any], lines: Lines) -> list[str]:
    """What the ranks' lines say that hpccoll does not promise."""
    found = [
        f"rank {rank}: call {one['call']} has a wrong result"
        for rank, all_ in lines.items()
        for one in all_
        if one.get("right") is False
    ]
    struck = [one["at"] for all_ in lines.values() for one in all_ if one.get("struck")]
    errors = [(rank, one) for rank, all_ in lines.items() for one in all_ if "error" in one]
    for rank, one in errors:
        found += [f"rank {rank}: {words}" for words in _wrong_with(plan, rank, one, struck)]
    fatal = [one["call"] for _, one in errors if one["error"] not in ("MismatchError", "UsageError")]
    done = [(rank, one["call"]) for rank, all_ in lines.items() for one in all_ if "right" in one]
    if fatal:
        found += [
            f"rank {rank}: call {call} ended well after call {min(fatal)} had failed elsewhere"
            for rank, call in done
            if call > min(fatal) + 1
        ]
        found += _who_did_not_fail(plan, errors)
    elif plan["fault"] in LOSSES and struck and not _all_was_over(plan, lines):
        found.append(f"nobody has learned of {plan['fault']}")
    else:
        found += _who_did_not_finish(plan, lines)
    return found


def _wrong_with(plan: dict[str, Any], rank: int, error: dict[str, Any], struck: list[float]) -> list[str]:
    """What is wrong with an error: its kind, its time, or whom it names."""
    fault, kind = plan["fault"], error["error"]
    if not struck:
        return [f"{kind} before anything has happened: {error['text']}"]
    after = error["at"] - struck[0]
    if fault in (*DEATHS, *DEPARTURES):
        allowed, latest = ("PeerLostError",), DEAD_S
    elif fault == "SIGSTOP":
        allowed, latest = ("CollectiveTimeoutError",), TIMEOUT_S + SOON_S
    elif fault in LINK_CUTS:
        # Of ranks that are not answered others may say that they do not answer.
        allowed = ("CollectiveTimeoutError", *(["AbortedError"] if rank in error["suspects"] else []))
        latest = TIMEOUT_S + SOON_S + CUTTING_S
    elif fault in DIFFERENCES:
        allowed, latest = ("MismatchError", "UsageError"), SOON_S
    else:
        return [f"{kind} though {fault} does no harm: {error['text']}"]
    wrong = []
    if kind not in allowed:
        wrong.append(f"{kind} after {fault}: {error['text']}")
    if after > latest:
        wrong.append(
            f"{kind} {after:.2f} s after {fault}, at most {latest:g} s were promised: {error['text']}"
        )
    if fault in (*DEATHS, *DEPARTURES, "SIGSTOP") and f"rank {plan['rank']}" not in error["text"]:
        wrong.append(f"the rank at fault, {plan['rank']}, is not named: {error['text']}")
    return wrong


def _who_did_not_fail(plan: dict[str, Any], errors: list[tuple[int, dict[str, Any]]]) -> list[str]:
    gone = set() if plan["fault"] in LINK_CUTS else {plan["rank"]}
    wanted = set(range(plan["ranks"])) - gone
    silent = wanted - {rank for rank, _ in errors}
    return [f"rank {rank} has learned nothing of {plan['fault']}" for rank in sorted(silent)]


def _all_was_over(plan: dict[str, Any], lines: Lines) -> bool:
    """A link that is cut once all calls have been made cuts none."""
    made = plan["fault"] in LINK_CUTS and all(
        sum("right" in one for one in all_) == plan["calls"] for all_ in lines.values()
    )
    return made


def _who_did_not_finish(plan: dict[str, Any], lines: Lines) -> list[str]:
    """Every rank makes every call, and they end alike."""
    found = []
    every = {rank: {one["call"]: one for one in all_ if "call" in one} for rank, all_ in lines.items()}
    for call in range(plan["calls"]):
        ends = {
            rank: one[call].get("error", "well") if call in one else "not made" for rank, one in every.items()
        }
        if len(set(ends.values())) > 1 or "not made" in ends.values():
            name = calls(plan["seed"], plan["calls"], plan["ranks"])[call].collective
            found.append(f"call {call} ({name}) ended differently: {ends}")
    return found


def judged(plan: dict[str, Any]) -> list[str]:
    """Run a schedule, and what is wrong with it."""
    lines, behind = run(plan)
    return behind or broken_promises(plan, lines)


def main() -> None:
    """Run schedules and say which promises were broken; the exit status is 1 when any was."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.nemesis")
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="the number of one schedule")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    bad = 0
    for number in [options.only] if options.only is not None else range(options.schedules):
        plan = schedule(options.seed, number)
        counts[plan["fault"]] += 1
        wrong = judged(plan)
        bad += bool(wrong)
        for words in wrong:
            print(f"schedule {number} of seed {options.seed} {plan}: {words}", flush=True)
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {options.schedules}", end="", file=sys.stderr, flush=True)
    print(f"seed {options.seed}: {counts.total()} schedules, {bad} with broken promises; {dict(counts)}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
