"""The traces as one page of HTML, which loads nothing: a row for each rank, a bar for each call."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hpccoll.observe import form
from hpccoll.observe.reading import Call, RankTrace
from hpccoll.observe.verdict import Finding, Job

SHOWN_CALLS = 200  # the last ones of each rank
SHOWN_RANKS = 256
ROW, BAR, LEFT, WIDTH = 22, 16, 90, 1100  # pixels
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1240px; color: #222; }
h2 { font-size: 1.1em; margin: 2em 0 .3em; }
.wrong { border-left: 4px solid #b3261e; padding-left: .7em; }
.remark { border-left: 4px solid #999; padding-left: .7em; }
svg { display: block; margin: .7em 0; } text { font: 12px system-ui, sans-serif; fill: #444; }
.done { fill: #7da7d9; } .waits { fill: #e3a33b; } .failed { fill: #b3261e; } .refused { fill: #8e5bb0; }
rect:hover { stroke: #000; }
"""


def page(jobs: Sequence[tuple[Job, Sequence[Finding]]]) -> str:
    """The page of some communicators and what was found of each."""
    parts = [_section(job, findings) for job, findings in jobs]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>hpccoll trace</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<style>{STYLE}</style></head>\n<body><h1>hpccoll trace</h1>\n{''.join(parts)}</body></html>\n"
    )


def _section(job: Job, findings: Sequence[Finding]) -> str:
    words = [
        f'<p class="{"wrong" if one.wrong else "remark"}"><b>{escape(one.kind)}</b> {escape(one.text)}</p>\n'
        for one in findings
    ]
    title = f"{job.name}: {job.size} ranks, traces of {len(job.ranks)}"
    return f"<h2>{escape(title)}</h2>\n{''.join(words) or '<p>Nothing is wrong.</p>'}{_drawing(job)}"


def _drawing(job: Job) -> str:
    ranks = sorted(job.ranks.values(), key=lambda one: one.rank)[:SHOWN_RANKS]
    bars = [(row, _span(job, one, call), call) for row, one in enumerate(ranks) for call in _shown(one)]
    if not bars:
        return ""
    begin = min(span[0] for _, span, _ in bars)
    end = max(max(span[1] for _, span, _ in bars), begin + 1)
    scale = WIDTH / (end - begin)
    rects = [
        _bar(row, (span[0] - begin) * scale, (span[1] - begin) * scale, call) for row, span, call in bars
    ]
    names = [f'<text x="0" y="{row * ROW + 13}">rank {one.rank}</text>' for row, one in enumerate(ranks)]
    height = len(ranks) * ROW + 20
    axis = (
        f'<text x="{LEFT}" y="{height - 4}">0</text>'
        f'<text x="{LEFT + WIDTH}" y="{height - 4}" text-anchor="end">{(end - begin) / 1e6:.3f} ms</text>'
    )
    return f'<svg width="{LEFT + WIDTH}" height="{height}">{"".join(names + rects)}{axis}</svg>\n'


def _shown(trace: RankTrace) -> list[Call]:
    return list(trace.calls.values())[-SHOWN_CALLS:]


def _span(job: Job, trace: RankTrace, call: Call) -> tuple[int, int]:
    begin = job.clocks.of(trace, call.entered_ns)
    return begin, max(begin, job.now_ns if call.waits else job.clocks.of(trace, call.ended_ns))


def _bar(row: int, begin: float, end: float, call: Call) -> str:
    kind = "waits" if call.waits else form.STATES[call.state]
    where = "" if call.place is None else f" at {call.place}"
    plan = f", plan {call.plan}" if call.plan else ""
    title = f"{call}{where}{plan}, {form.STATES[call.state]}{': ' if call.error else ''}{call.error}"
    return (
        f'<rect class="{kind}" x="{LEFT + begin:.2f}" y="{row * ROW}" width="{max(end - begin, 1):.2f}" '
        f'height="{BAR}"><title>{escape(title)}</title></rect>'
    )
