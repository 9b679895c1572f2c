"""One step of a timeline (chrome.py) as a figure: what each rank computed, waited for and had under way.

Rows of a rank, from above: the program; buckets under way; the operations on each level of the machine.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from hpccoll.errors import UsageError
from hpccoll.plans.text import time_text

STEP = "step"  # the name of a part of the program by which it marks its steps
MOST_RANKS = 8
LEAST_NAMED = 0.005  # of the step: what of the computation is shorter has no place in the legend
# Paul Tol's "muted" and "bright" schemes, which colour-blind readers can tell apart.
PARTS = ("#88CCEE", "#DDCC77", "#B8C5A2", "#AA8FC0", "#C9B29B", "#BBBBBB")
EXPOSED, BUCKET, NODE, NETWORK, LOCAL = "#CC3311", "#4477AA", "#117733", "#EE7733", "#BBBBBB"
WAITING = ("call", "wait", "enqueue")


@dataclass
class Bar:
    """A slice: `name` and `kind` as in the file, times in us."""

    name: str
    kind: str
    begin: float
    end: float
    lane: int
    details: Mapping[str, Any]


@dataclass
class RankRows:
    """The slices of a rank by track."""

    name: str
    order: int = 0
    tracks: dict[str, list[Bar]] = field(default_factory=lambda: defaultdict(list))

    def waits(self) -> list[Bar]:
        """The waits for buckets, a step each."""
        return [one for one in self.tracks["program"] if one.kind == "wait" and "step" in one.details]

    def steps(self) -> list[tuple[float, float]]:
        """Begin and end of each step: those that the program has named, else from one wait for buckets to the
        next.
        """
        marked = [one for one in self.tracks["program"] if one.kind == "part" and one.name == STEP]
        if marked:
            return sorted((one.begin, one.end) for one in marked)
        ends = sorted(one.end for one in self.waits())
        first = min((one.begin for one in self.tracks["buckets"]), default=0.0)
        earlier = [one.begin for one in self.tracks["computation"] if one.end > first]
        return list(zip([min(earlier, default=first), *ends], ends, strict=False))


def read(path: str) -> list[RankRows]:
    """The ranks of a timeline's file.  Raises: UsageError where it is none."""
    try:
        events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
        ranks: dict[int, RankRows] = {}
        threads: dict[tuple[int, int], tuple[str, int]] = {}
        for one in events:
            if one["ph"] == "M" and one["name"] == "process_name":
                ranks[one["pid"]] = RankRows(one["args"]["name"])
            elif one["ph"] == "M" and one["name"] == "process_sort_index":
                ranks[one["pid"]].order = one["args"]["sort_index"]
            elif one["ph"] == "M" and one["name"] == "thread_name":
                track, _, lane = one["args"]["name"].partition(" (")
                number = re.fullmatch(r"(?:.*\()?(\d+)\)", lane)
                threads[one["pid"], one["tid"]] = track, int(number[1]) - 1 if number else 0
            elif one["ph"] == "X":
                track, row = threads[one["pid"], one["tid"]]
                bar = Bar(
                    one["name"], one["cat"], one["ts"], one["ts"] + one["dur"], row, one.get("args", {})
                )
                ranks[one["pid"]].tracks[track].append(bar)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no timeline of hpccoll: {error!r}") from error
    return sorted(ranks.values(), key=lambda one: one.order)


def typical(ranks: Sequence[RankRows]) -> int:
    """The number, from 1 on, of the first rank's step of median length; not the first, if there are more.

    Raises: UsageError where there is no step.
    """
    lengths = [end - begin for begin, end in ranks[0].steps()] if ranks else []
    if not lengths:
        raise UsageError(
            f'there is no step: no GradientBuckets in this timeline, no part named "{STEP}" (comm.annotate)'
        )
    warm = list(enumerate(lengths))[1:] or [(0, lengths[0])]
    middle = median(length for _, length in warm)
    return 1 + min(warm, key=lambda one: abs(one[1] - middle))[0]


def draw(ranks: Sequence[RankRows], step: int) -> Any:
    """Matplotlib's figure of a step, counted from 1 on.

    Raises: UsageError without matplotlib, and where there is no such step.
    """
    try:
        import matplotlib
    except ImportError:
        raise UsageError("--figure draws with matplotlib: pip install 'hpccoll[plot]'") from None
    matplotlib.use("agg")
    from matplotlib.figure import Figure

    shown = [one for one in ranks[:MOST_RANKS] if len(one.steps()) >= step >= 1]
    if not shown:
        most = max((len(one.steps()) for one in ranks), default=0)
        raise UsageError(f"--step {step}: there are steps 1 to {most}")
    spans = [one.steps()[step - 1] for one in shown]
    begin, end = min(first for first, _ in spans), max(last for _, last in spans)
    picture = _Picture(shown, begin, end)
    figure = Figure(figsize=(7.2, 0.95 + 0.21 * picture.height), layout="constrained")
    axes = figure.subplots()
    picture.draw(axes)
    axes.set_title(_title(shown, step, begin, end), fontsize=8, loc="left")
    figure.legend(
        handles=picture.marks(), fontsize=6.5, frameon=False, ncols=6, loc="outside lower center",
        handlelength=1.1, columnspacing=1.2,
    )  # fmt: skip
    return figure


def _title(ranks: Sequence[RankRows], step: int, begin: float, end: float) -> str:
    text = f"Step {step}: {_text(end - begin)}"
    under_way = hidden = 0.0
    for rank in ranks:
        bars = [one for one in rank.tracks["buckets"] if one.begin >= begin and one.end <= end]
        total = _covered([(one.begin, one.end) for one in bars if one.kind == "bucket"])
        exposed = _covered([(one.begin, one.end) for one in bars if one.kind == "exposed"])
        under_way, hidden = under_way + total, hidden + total - exposed
    if under_way:
        mean, share = _text(under_way / len(ranks)), hidden / under_way
        text += f"; communication under way for {mean}, {share:.0%} of it hidden behind computation"
    return text


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """The length of their union."""
    total, last = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, last))
        last = max(last, end)
    return total


def _text(us: float) -> str:
    return time_text(us / 1e6)


class _Picture:
    """The rows of some ranks, from above, each with its height."""

    def __init__(self, ranks: Sequence[RankRows], begin: float, end: float) -> None:
        self._ranks, self._begin, self._end = ranks, begin, end
        shown = [one for rank in ranks for one in self._bars(rank, "computation")]
        kinds = dict.fromkeys(one.name for one in sorted(shown, key=lambda one: one.begin))
        self._colours = {name: PARTS[index % len(PARTS)] for index, name in enumerate(kinds)}
        lengths = {name: sum(one.end - one.begin for one in shown if one.name == name) for name in kinds}
        self._named = [name for name in kinds if lengths[name] >= LEAST_NAMED * (end - begin)]
        self._rows = {rank.name: self._rows_of(rank) for rank in ranks}
        heights = [height + 0.15 for rows in self._rows.values() for _, height in rows]
        self.height = sum(heights) + 0.85 * len(ranks)

    def _bars(self, rank: RankRows, track: str) -> list[Bar]:
        return [one for one in rank.tracks.get(track, []) if one.end > self._begin and one.begin < self._end]

    def _rows_of(self, rank: RankRows) -> list[tuple[str, float]]:
        rows = [("program", 1.0)]
        if bars := self._bars(rank, "buckets"):
            rows.append(("buckets", max(1.0, 0.55 * (1 + max(one.lane for one in bars)))))
        levels = [track for track in sorted(rank.tracks) if track.startswith("level")]
        return rows + [(track, 1.0) for track in levels if self._bars(rank, track)]

    def draw(self, axes: Any) -> None:
        """All rows, axes and the legend."""
        top = 0.0
        ticks: list[tuple[float, str]] = []
        for number, rank in enumerate(self._ranks):
            if number:
                axes.axhline(top + 0.2, color="#999999", linewidth=0.5)
            top += 0.4
            axes.text(0.0, top + 0.1, rank.name, fontsize=7.5, fontweight="bold", va="center")
            top += 0.45
            for track, height in self._rows[rank.name]:
                self._draw_row(axes, rank, track, top, height)
                ticks.append((top + height / 2, track))
                top += height + 0.15
        axes.set_ylim(top + 0.1, 0.0)
        axes.set_xlim(0.0, (self._end - self._begin) / 1e3)
        axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=7)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=7)
        axes.set_xlabel("time since the begin of the step (ms)", fontsize=7.5)
        axes.grid(axis="x", alpha=0.3, linewidth=0.5)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)

    def _draw_row(self, axes: Any, rank: RankRows, track: str, top: float, height: float) -> None:
        if track == "program":
            for one in self._bars(rank, "computation"):
                self._bar(axes, one, top, height, self._colours[one.name])
            for one in self._bars(rank, "program"):
                if one.kind in WAITING:
                    self._bar(axes, one, top, height, EXPOSED)
            return
        bars = self._bars(rank, track)
        lanes = 1 + max(one.lane for one in bars)
        thick = height / lanes
        for one in bars:
            at = top + one.lane * thick
            if one.kind == "exposed":
                self._bar(axes, one, at, thick, "none", hatch="/////", edgecolor="white", linewidth=0.0)
            elif one.kind == "bucket":
                self._bar(axes, one, at, thick, BUCKET, edgecolor="white", linewidth=0.6)
                self._label(axes, one, at + thick / 2)
            else:
                wide = one.end - one.begin > 0.004 * (self._end - self._begin)  # an edge would cover it else
                edge = 0.2 if wide else 0.0
                self._bar(axes, one, at, thick, _colour_of(track, one), edgecolor="white", linewidth=edge)

    def _bar(self, axes: Any, one: Bar, top: float, height: float, colour: str, **style: Any) -> None:
        begin, end = max(one.begin, self._begin), min(one.end, self._end)
        first, width = (begin - self._begin) / 1e3, (end - begin) / 1e3
        style.setdefault("linewidth", 0)
        axes.barh(top, width, height, left=first, align="edge", color=colour, **style)

    def _label(self, axes: Any, one: Bar, middle: float) -> None:
        """A bucket's number, where it has room."""
        number = one.name.removeprefix("bucket ").split(":")[0]
        begin, end = max(one.begin, self._begin), min(one.end, self._end)
        if end - begin > 0.012 * len(number) * (self._end - self._begin):
            at = (begin - self._begin) / 1e3 + 0.004 * (self._end - self._begin) / 1e3
            axes.text(at, middle, number, fontsize=5.5, color="white", va="center", ha="left", clip_on=True)

    def marks(self) -> list[Any]:
        """What the colours mean, for a legend."""
        from matplotlib.patches import Patch

        shown = {track for rows in self._rows.values() for track, _ in rows}
        marks = [Patch(color=self._colours[name], label=name) for name in self._named]
        marks.append(Patch(color=EXPOSED, label="waiting (exposed)"))
        if "buckets" in shown:
            marks.append(Patch(color=BUCKET, label="bucket under way"))
            marks.append(Patch(facecolor=BUCKET, hatch="/////", edgecolor="white", label="exposed part"))
        if "level NODE" in shown:
            marks.append(Patch(color=NODE, label="shared memory"))
        if any(track.startswith("level") and track != "level NODE" for track in shown):
            marks.append(Patch(color=NETWORK, label="messages"))
        if any(track.startswith("level") for track in shown):
            marks.append(Patch(color=LOCAL, label="combine, copy"))
        return marks


def _colour_of(track: str, one: Bar) -> str:
    if one.name.startswith(("combine", "copy")):
        return LOCAL
    return NODE if track == "level NODE" else NETWORK


def save(figure: Any, path: str) -> None:
    """Write a figure; its form is that of the name's ending.  Raises: UsageError."""
    form = Path(path).suffix[1:].lower()
    if form not in ("png", "svg", "pdf"):
        raise UsageError(f"--figure {path}: the name must end in .png, .svg or .pdf")
    metadata = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else {}
    try:
        figure.savefig(path, dpi=200, metadata=metadata)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
