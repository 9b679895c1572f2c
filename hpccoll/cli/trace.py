"""`hpccoll trace`: what is stuck, and because of whom, from the files in which ranks record their calls.

And timelines: put together from such files, and one step of one as a figure.
"""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpccoll.cli.output import STANDARD_OUTPUT, write_json
from hpccoll.errors import UsageError
from hpccoll.files import write_text

if TYPE_CHECKING:
    from hpccoll.observe.reading import Call, RankTrace
    from hpccoll.observe.verdict import Finding, Job

NAME = "trace"
HELP = "say from the records of all ranks which calls are stuck, and because of whom"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll trace`."""
    parser.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        help="with the ranks' files, or with folders of them (default: where this user's ranks put them); "
        "or a timeline, for --figure",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const=STANDARD_OUTPUT,
        metavar="FILE",
        help="write all as JSON; without FILE to standard output alone",
    )
    parser.add_argument("--html", metavar="FILE", help="write a time line as one page of HTML")
    parser.add_argument(
        "--timeline",
        metavar="FILE",
        help="write what ranks have recorded as a timeline for ui.perfetto.dev (HPCCOLL_TRACE does so at the "
        "end of a job; this is for one that was killed)",
    )
    parser.add_argument(
        "--figure",
        metavar="FILE",
        help="draw one step of a timeline: FILE ends in .png, .svg or .pdf (needs matplotlib)",
    )
    parser.add_argument(
        "--step", type=int, metavar="K", help="which step, from 1 on (default: one of median length)"
    )
    parser.add_argument(
        "--stuck-after-s",
        type=float,
        default=5.0,
        metavar="S",
        help="a call in which a live rank waits for less is under way, not stuck (default: 5)",
    )


def run(args: argparse.Namespace) -> int:
    """Read, judge, print.  Returns 0; 1 when something is stuck or has failed.  UsageError for misuse."""
    if args.step is not None and args.figure is None:
        raise UsageError("--step says which step --figure draws")
    if args.figure is not None:
        return _draw(args)
    from hpccoll.observe.files import default_directory
    from hpccoll.observe.reading import read_directory
    from hpccoll.observe.timeline import page
    from hpccoll.observe.verdict import judge

    directory = args.directory or default_directory()
    if not args.stuck_after_s >= 0:
        raise UsageError(f"--stuck-after-s is {args.stuck_after_s}: must be at least 0")
    try:
        traces, problems = read_directory(directory)
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}") from error
    if args.timeline is not None:
        return _put_together(args.timeline, directory, traces, problems)
    jobs = judge(traces, time.time_ns(), args.stuck_after_s)
    if args.html is not None:
        write_text(args.html, page(jobs))
    if args.json is not None:
        write_json(args.json, _as_dict(jobs, problems))
    if args.json != STANDARD_OUTPUT:
        print(_as_text(directory, jobs, problems))
    return int(any(one.wrong for _, findings in jobs for one in findings))


def _put_together(path: str, directory: str, traces: Sequence[RankTrace], problems: Sequence[str]) -> int:
    """Write the timeline of all ranks whose files are there."""
    from hpccoll.observe.chrome import written
    from hpccoll.observe.parts import write_lines
    from hpccoll.observe.tracks import job_of

    if not traces:
        raise UsageError(f"{directory}: there are no files of ranks")
    job = job_of(traces)
    try:
        write_lines(path, written(job))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    count = sum(len(one.slices) for one in job.processes)
    print(f"{path}: {len(job.processes)} ranks, {count} slices; open it in https://ui.perfetto.dev")
    for one in problems:
        print(f"left out: {_printable(one)}")
    return 0


def _draw(args: argparse.Namespace) -> int:
    """Draw a step."""
    from hpccoll.observe import figure

    path = args.directory
    if path is None:
        raise UsageError("--figure: name the timeline, or the directory that it is in")
    if Path(path).is_dir():
        found = sorted(Path(path).glob("timeline*.json"), key=lambda one: one.stat().st_mtime)
        if not found:
            raise UsageError(f"{path}: there is no timeline; of a killed job --timeline FILE makes one")
        path = str(found[-1])
    ranks = figure.read(path)
    step = figure.typical(ranks) if args.step is None else args.step
    figure.save(figure.draw(ranks, step), args.figure)
    print(f"{args.figure}: step {step} of {path}")
    return 0


def _as_text(directory: str, jobs: Sequence[tuple[Job, Sequence[Finding]]], problems: Sequence[str]) -> str:
    lines = []
    for job, findings in jobs:
        have = "" if len(job.ranks) == job.size else f", traces of {len(job.ranks)}"
        lines.append(f"{job.name}: {job.size} ranks{have}")
        lines += [_wrapped(f"{one.kind}: {_printable(one.text)}") for one in findings] or [
            "  nothing is wrong"
        ]
    if not jobs:
        lines.append(f"no traces in {directory}: those of jobs that end well are taken away")
    lines += [f"left out: {_printable(one)}" for one in problems]
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def _printable(text: str) -> str:
    """Names in files may hold what moves a terminal's cursor."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _as_dict(jobs: Sequence[tuple[Job, Sequence[Finding]]], problems: Sequence[str]) -> dict[str, Any]:
    return {
        "communicators": [
            {
                "name": job.name,
                "size": job.size,
                "findings": [asdict(one) for one in findings],
                "ranks": [_rank(job, one) for _, one in sorted(job.ranks.items())],
            }
            for job, findings in jobs
        ],
        "left_out": list(problems),
    }


_STATES = ("at work", "closed", "left", "over")  # form.AT_WORK and so on


def _rank(job: Job, trace: RankTrace) -> dict[str, Any]:
    return {
        "rank": trace.rank,
        "node": trace.node,
        "host": trace.host,
        "pid": trace.pid,
        "process": job.processes[trace.rank],
        "state": _STATES[trace.state] if 0 <= trace.state < len(_STATES) else "unknown",
        "error": trace.error,
        "path": trace.path,
        "torn": trace.torn,
        "calls": [_call(job, trace, one) for one in trace.calls.values()],
    }


def _call(job: Job, trace: RankTrace, call: Call) -> dict[str, Any]:
    from hpccoll.observe import form

    times = {
        name: job.clocks.of(trace, value) if value else None
        for name, value in (
            ("entered_ns", call.entered_ns), ("agreed_ns", call.agreed_ns), ("ended_ns", call.ended_ns),
        )
    }  # fmt: skip
    place = None if call.place is None else asdict(call.place)
    fields = {} if call.called is None else call.called.fields()
    return {
        "sequence": call.sequence, "collective": call.collective, "state": form.STATES[call.state],
        "dtype": fields.get("dtype"), "count": fields.get("count"), "operator": fields.get("operator"),
        "root": fields.get("root"), "memory": fields.get("memory"), "plan": call.plan, "step": call.step,
        "steps": call.steps, "chunk": call.chunk, "chunks": call.chunks, "group": call.family,
        "peer": call.peer, "bytes_done": call.bytes_done, "bytes_total": call.bytes_total,
        "thread": call.thread, "place": place, "error": call.error, **times,
    }  # fmt: skip
