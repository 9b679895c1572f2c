"""A job's timeline in Chrome's trace format, which ui.perfetto.dev and chrome://tracing open.

A process for each rank, a thread for each row of its tracks (tracks.py), arrows from sends to receives.
Times are in microseconds since the first slice.  `otherData` says how clocks were aligned, and what is
missing.
Source: Trace Event Format (Google, 2016), sections "Complete Events", "Flow Events", "Metadata Events".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from hpccoll._version import __version__
from hpccoll.observe.reading import RankTrace
from hpccoll.observe.tracks import Job, Process, Slice, job_of

SHORTEST_DRIFT_S = 1.0  # between two measurements, for a drift to mean anything


def lines(traces: Sequence[RankTrace]) -> Iterator[str]:
    """The lines of the file.  `traces`: of one job."""
    return written(job_of(traces))


def written(job: Job) -> Iterator[str]:
    """The lines of a job's file: one for each event, so that it need not be in memory as a whole."""
    yield '{"displayTimeUnit": "ms",'
    yield f'"otherData": {json.dumps(_about(job))},'
    yield '"traceEvents": ['
    where: dict[int, tuple[int, int]] = {}
    before = ""
    for number, process in enumerate(job.processes):
        for event in _of_process(job, number, process, where):
            yield f"{before}{json.dumps(event)}"
            before = ","
    for event in _flows(job, where):
        yield f"{before}{json.dumps(event)}"
        before = ","
    yield "]}"


def _about(job: Job) -> dict[str, Any]:
    clocks = {
        clock.split(" ")[0]: {
            "offset_us": _us(one.offset_ns[0]),
            "offset_at_close_us": _us(one.offset_ns[1]),
            "drift_ppm": one.drift_ppm if one.at_ns[1] - one.at_ns[0] >= SHORTEST_DRIFT_S * 1e9 else None,
            "error_us": None if one.error_ns is None else _us(one.error_ns),
        }
        for clock, one in job.clocks.offsets.items()
    }
    errors = [one.error_ns for one in job.clocks.offsets.values()]
    return {
        "hpccoll": __version__,
        "program": job.name,
        "begin_unix_s": (job.wall_ns + job.begin_ns) / 1e9,
        "ranks": len(job.processes),
        "reference_clock": job.clocks.reference.split(" ")[0],
        "clocks": clocks,
        # Two ranks may each be off by the error of their clock.
        "alignment_error_us": None if None in errors else _us(max(one or 0 for one in errors)),
        "messages": len(job.messages),
        "earliest_arrival_before_send_us": _us(max(0, job.disorder_ns)),
        "lost_calls": job.lost_calls,
        "lost_events": job.lost_events,
    }


def _us(ns: int) -> float:
    return ns / 1000


def _of_process(
    job: Job, number: int, process: Process, where: dict[int, tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    yield _name("process_name", number, 0, name=f"rank {process.rank} on {process.host}")
    yield _name("process_labels", number, 0, labels=f"process {process.pid}")
    yield _name("process_sort_index", number, 0, sort_index=process.rank)
    for thread, row in enumerate(process.rows, 1):
        lane = f" ({row.lane + 1})" if row.lane else ""
        yield _name("thread_name", number, thread, name=f"{_TITLES.get(row.track, row.track)}{lane}")
        yield _name("thread_sort_index", number, thread, sort_index=thread)
        for one in row.slices:
            where[id(one)] = number, thread
            yield _complete(job, one, number, thread)


_TITLES = {"program": "program (caller)", "progress": "started calls (progress worker)"}


def _name(what: str, process: int, thread: int, **details: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": details}


def _complete(job: Job, one: Slice, process: int, thread: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "ph": "X",
        "name": one.name,
        "cat": one.kind,
        "pid": process,
        "tid": thread,
        "ts": _us(one.begin_ns - job.begin_ns),
        "dur": _us(one.end_ns - one.begin_ns),
    }
    if one.details:
        event["args"] = one.details
    return event


def _flows(job: Job, where: dict[int, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    for number, (send, receive) in enumerate(job.messages, 1):
        # Inside the slices, which an arrow binds to: from the begin of the one to the end of the other.
        ends = (("s", send, send.begin_ns), ("f", receive, max(receive.begin_ns, receive.end_ns - 1)))
        for phase, one, at_ns in ends:
            process, thread = where[id(one)]
            event = {
                "ph": phase, "id": number, "name": "message", "cat": "message", "pid": process, "tid": thread,
                "ts": _us(at_ns - job.begin_ns),
            }  # fmt: skip
            yield event | ({"bp": "e"} if phase == "f" else {})
