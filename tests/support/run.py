"""The whole test suite by one command: `python -m tests.support.run [PATH ...]`, which `make test` calls.

Tests without MPI run in one process, which also collects all others; then, for each number of ranks that
any test asks for, one mpiexec runs the tests of that number. Every process records its outcomes in files
(record.py); this program merges them, and prints one total. A test fails at n ranks when any rank failed,
left no outcome, or disagrees with the others on whether to skip.

What cannot happen is a run that hangs: a rank that finished a test waits for the others only so long
(plugin.py); pytest-timeout ends a rank whose test takes too long; and a launch from which nothing is heard
is ended with all of its processes. In each case the test that was running has failed, and the others go on
in another launch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.console import Console
from tests.support.launch import REPOSITORY, environment, find_mpiexec, started
from tests.support.record import Event, Reading, output_file, record_file, stacks_file
from tests.support.verdict import BAD, Case, Trial, Verdict

POLL_S = 0.03
# Until Python and MPI have started and tests are collected, nothing is heard; 64 ranks take longest.
START_LIMIT_S = 180.0
END_LIMIT_S = 30.0
MARGIN_S = 15.0
# A number of ranks at which so many tests took the launch down has something else wrong.
MOST_LAUNCHES = 6
TAIL_LINES = 60
# Frames that say nothing about where a test is stuck.
HARNESS = ("/_pytest/", "/pluggy/", "/tests/support/rank.py", "<frozen runpy>")


class Launch:
    """The tests of one number of ranks (0 = without MPI), in as many launches as it takes.

    Without `cases` the first launch finds them; then `found` are those for all numbers of ranks. `pending`
    are those that have no verdict yet.
    """

    def __init__(
        self, options: argparse.Namespace, folder: Path, ranks: int, cases: Sequence[Case] | None
    ) -> None:
        self.options = options
        self.folder = folder
        self.ranks = ranks
        self.found = None if cases is None else list(cases)
        self.pending = {case.id: case for case in cases or ()}
        self.deselected = 0
        self.trials: dict[str, Trial] = {}
        self.pids: list[int] = []
        self.ended: set[int] = set()
        self.said: list[str] = []
        self.stopped_by = ""

    def run(self) -> Iterator[Verdict]:
        """Yield a verdict as soon as it is known; all tests have one in the end."""
        for attempt in range(MOST_LAUNCHES):
            if attempt and not self.pending:
                return
            folder = self.folder / f"{self.ranks}-{attempt}"
            folder.mkdir()
            yield from self._once(folder)
        for test in self.pending:
            text = f"not run: {MOST_LAUNCHES} launches at this number of ranks have ended early"
            yield Verdict(test, self.ranks, "error", text=text)

    def _once(self, folder: Path) -> Iterator[Verdict]:
        """One launch; what it leaves in `pending` has not run."""
        self.trials, self.pids, self.ended, self.said, self.stopped_by = {}, [], set(), [], ""
        readings = [Reading(record_file(folder, rank)) for rank in range(max(self.ranks, 1))]
        with (folder / "launcher.out").open("wb") as out:
            command = self._command(folder)
            env = environment({"HPCCOLL_TRACE_DIR": str(folder / "traces")})
            with started(command, env=env, stdout=out, stderr=out, cwd=REPOSITORY) as process:
                begin = heard = time.monotonic()
                while True:
                    status = process.poll()
                    events = [
                        (rank, event) for rank, reading in enumerate(readings) for event in reading.fresh()
                    ]
                    yield from self._take(events)
                    now = time.monotonic()
                    heard = now if events else heard
                    if status is not None:
                        break
                    self.stopped_by = self._overdue(now - heard, now - begin)
                    if self.stopped_by:
                        break
                    time.sleep(POLL_S)
        clean = status == 0 and not self.stopped_by and len(self.ended) == max(self.ranks, 1)
        left = self._sweep(folder)
        yield from self._close(folder, clean, status)
        if clean and left:
            yield self._fault(f"left in /dev/shm: {', '.join(left)}")

    def _command(self, folder: Path) -> list[str]:
        options = self.options
        arguments = [
            "-p",
            "tests.support.plugin",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
        ]
        # Hypothesis's plugin imports all of Hypothesis at the end, in every rank, used or not.
        arguments += ["-p", "no:hypothesispytest", "-q", "--no-header", "--no-summary"]
        arguments += ["-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", options.rootdir]
        arguments += ["--timeout", str(options.timeout_s), "--resync-s", str(options.resync_s)]
        if self.found is None:
            paths = options.paths
            arguments += [*(["--slow"] * options.slow), *(["--only-slow"] * options.only_slow)]
            arguments += ["-k", options.keyword] if options.keyword else []
        else:
            paths = list(dict.fromkeys(case.file for case in self.pending.values()))
            ids = folder / "ids"
            ids.write_text("\n".join(self.pending))
            arguments += ["--slow", "--only-ids", str(ids)]
        program = [
            sys.executable,
            "-m",
            "tests.support.rank",
            str(folder),
            str(self.ranks),
            *arguments,
            *paths,
        ]
        return find_mpiexec().command(self.ranks, program) if self.ranks else program

    def _take(self, events: Sequence[tuple[int, Event]]) -> Iterator[Verdict]:
        for rank, event in events:
            kind = event["event"]
            if kind == "begin":
                self.pids.append(event["pid"])
            elif kind == "collected":
                self._collected(event)
            elif kind == "not_collected":
                yield from self._not_collected(event)
            elif kind == "end":
                self.ended.add(rank)
            elif kind == "out_of_step":
                self.said.append(f"rank {rank}: {event['text']}")
            elif kind == "start" and event["id"] in self.pending:
                self.trials.setdefault(event["id"], Trial(self.pending[event["id"]], self.ranks))
            elif kind in ("report", "finish") and event["id"] in self.trials:
                self.trials[event["id"]].add(rank, event)
        for trial in [trial for trial in self.trials.values() if trial.settled]:
            yield self._settle(trial)

    def _collected(self, event: Event) -> None:
        if self.found is None:
            self.found = [Case.from_event(fields) for fields in event["tests"]]
            self.pending = {case.id: case for case in self.found if not case.ranks}
            self.deselected = event["deselected"]

    def _not_collected(self, event: Event) -> Iterator[Verdict]:
        """Said once, by the process that collects for all."""
        if self.found is None:
            outcome = "error" if event["outcome"] == "failed" else "skipped"
            yield Verdict(event["id"], 0, outcome, text=event["text"], reason=event["text"])

    def _settle(self, trial: Trial, remarks: Sequence[str] | None = None) -> Verdict:
        del self.trials[trial.case.id]
        del self.pending[trial.case.id]
        return trial.verdict(remarks)

    def _overdue(self, silent_s: float, total_s: float) -> str:
        """Why the launch must be ended now; "" when it need not."""
        options = self.options
        if total_s > options.launch_limit_s:
            return f"the launch took more than {options.launch_limit_s:g} s"
        limit_s = START_LIMIT_S
        if self.ended:
            limit_s = END_LIMIT_S
        elif self.trials:
            own_s = max(trial.case.timeout_s or 0.0 for trial in self.trials.values())
            limit_s = max(options.timeout_s, own_s) + max(options.resync_s, own_s) + MARGIN_S
        return f"nothing was heard from the ranks for {limit_s:g} s" if silent_s > limit_s else ""

    def _close(self, folder: Path, clean: bool, status: int | None) -> Iterator[Verdict]:
        """After the end of a launch: the test it ended in, else an error of the launch itself."""
        if self.trials:
            culprit = next(iter(self.trials.values()))
            remarks = [self._remark(folder, rank) for rank in range(max(self.ranks, 1))]
            launcher = _tail(folder / "launcher.out")
            verdict = self._settle(culprit, remarks)
            notes = [*self.said, self.stopped_by, launcher and f"---- launcher ----\n{launcher}"]
            note = "\n".join(filter(None, notes))
            # A test after the culprit may have begun on some ranks; it runs in the next launch.
            yield replace(verdict, text=f"{verdict.text}\n\n{note}".rstrip())
            return
        if not clean or self.pending:
            why = self.stopped_by or (f"exit status {status}" if status else "some tests were not run")
            tails = [_tail(output_file(folder, rank)) for rank in range(max(self.ranks, 1))]
            text = "\n".join(
                filter(None, dict.fromkeys([why, *self.said, _tail(folder / "launcher.out"), *tails]))
            )
            yield self._fault(f"the test process ended outside of a test: {text}")
            self.pending.clear()

    def _remark(self, folder: Path, rank: int) -> str:
        frames = _tail(stacks_file(folder, rank), most=1000).splitlines()
        stacks = "\n".join(line for line in frames if not any(place in line for place in HARNESS))
        output = _tail(output_file(folder, rank))
        parts = [stacks and f"---- where it was ----\n{stacks}", output and f"---- its output ----\n{output}"]
        return "\n".join(filter(None, parts))

    def _fault(self, text: str) -> Verdict:
        return Verdict(f"({self.ranks} ranks)" if self.ranks else "(without MPI)", 0, "error", text=text)

    def _sweep(self, folder: Path) -> list[str]:
        """Kill ranks that outlived their launcher; remove and return the shared memory that ranks left."""
        left = []
        for pid in self.pids:
            # The folder's name in its command line proves that the process is still the one started here.
            with contextlib.suppress(OSError):
                if os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            for path in Path("/dev/shm").glob(f"hpccoll-{os.getuid()}-{pid}-*"):
                left.append(path.name)
                path.unlink(missing_ok=True)
        return left


def _tail(path: Path, most: int = TAIL_LINES) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-most:]).strip()


def run(options: argparse.Namespace, console: Console) -> int:
    """Run what `options` ask for; exit status as pytest's: 0 good, 1 bad, 2 interrupted, 5 nothing ran."""
    begin = time.monotonic()
    verdicts: list[Verdict] = []
    interrupted = False
    deselected = 0
    with tempfile.TemporaryDirectory(prefix="hpccoll-tests-") as name:
        try:
            console.heading("without MPI")
            serial = Launch(options, Path(name), 0, None)
            for verdict in serial.run():
                verdicts.append(verdict)
                console.progress(verdict)
            deselected = serial.deselected
            found = serial.found or []
            for ranks in sorted({count for case in found for count in case.ranks}):
                if options.ranks and ranks not in options.ranks:
                    continue
                console.heading(f"{ranks} rank{'s' if ranks > 1 else ''}")
                cases = [case for case in found if ranks in case.ranks]
                for verdict in Launch(options, Path(name), ranks, cases).run():
                    verdicts.append(verdict)
                    console.progress(verdict)
        except KeyboardInterrupt:
            interrupted = True
    console.summary(verdicts, deselected, time.monotonic() - begin, options.durations)
    if interrupted:
        return 2
    return 1 if any(verdict.outcome in BAD for verdict in verdicts) else 0 if verdicts else 5


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.run", description="Run the tests of hpccoll."
    )
    parser.add_argument("paths", nargs="*", default=["tests"], help="test files or folders (default: tests)")
    parser.add_argument("-k", dest="keyword", help="only tests whose name matches, as in pytest")
    parser.add_argument(
        "--ranks", type=_counts, help="only these numbers of ranks, as in 2,3 (default: all asked for)"
    )
    parser.add_argument("--slow", action="store_true", help="also the tests marked slow or cluster")
    parser.add_argument("--only-slow", action="store_true", help="only the tests marked slow or cluster")
    parser.add_argument("--durations", type=int, default=0, metavar="N", help="list the N slowest tests")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="limit of one test (default: 60)")
    parser.add_argument(
        "--resync-s", type=float, default=45.0, help="ranks wait so long for each other (default: 45)"
    )
    parser.add_argument(
        "--launch-limit-s", type=float, default=1800.0, help="limit of one launch (default: 1800)"
    )
    parser.add_argument("--rootdir", default=str(REPOSITORY), help="node ids are relative to it")
    return parser.parse_args(arguments)


def _counts(text: str) -> set[int]:
    return {int(word) for word in text.split(",")}


def main() -> None:
    """Run from the command line; a request to end comes as Ctrl-C does, so that no process is left."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = parse()
    try:
        find_mpiexec()
    except (OSError, RuntimeError) as error:
        sys.exit(str(error))
    sys.exit(run(options, Console()))


if __name__ == "__main__":
    main()
