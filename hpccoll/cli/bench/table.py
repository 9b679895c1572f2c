"""The table of nccl-tests, to the column, with the plan in a last column of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpccoll.cli.bench.choice import WITHIN_PCT, choice_lines, judge
from hpccoll.cli.bench.facts import RankFacts, RunFacts
from hpccoll.cli.bench.modes import Mode
from hpccoll.cli.bench.options import AVERAGES, Options
from hpccoll.cli.bench.results import REPRODUCIBLE, Half, Outcome, Row
from hpccoll.cli.bench.timing import BARRIER_TIMED, BARRIER_UNTIMED, WAITED_FOR

TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
_LEADING = "# %10s  %12s  %8s  %6s  %6s"
_CASE = "%12i  %12i  %8s  %6s  %6i"
_HALF = "  %7s  %6s  %6s  %6s"
_SPREAD = "  %7s  %7s  %7s  %7s"
_TIMESTAMP = "%21s"
_PRICE = "  %7s  %7s"
_OVERLAP = "  %8s  %8s"
_LEVELS = "  %12s  %12s  %6s  %6s"


def number(value: float, width: int) -> str:
    """A number in so many characters: two, one or no decimals, else by exponent."""
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def title_lines(options: Options, facts: RunFacts) -> Iterator[str]:
    """What comes before the table."""
    step = (options.step_factor, "factor") if options.step_factor else (options.step_bytes, "bytes")
    yield (
        f"# hpccoll version {facts.version} mpi4py={facts.mpi4py} mpi-library={facts.mpi_library}"
        + ("" if facts.nccl_version is None else f" nccl-library={facts.nccl_version}")
    )
    yield f"# Collective test starting: hpccoll bench {options.operation.name}"
    yield (
        f"# nThread 1 nGpus {int(options.on_device)} minBytes {options.min_bytes} maxBytes {facts.max_bytes} "
        f"step: {step[0]}({step[1]}) warmup iters: {options.warmup} iters: {options.iterations} "
        f"agg iters: {options.calls} validation: {options.check} graph: 0 unalign: {options.unalign}"
    )
    yield from _mode_lines(options)
    yield from _blocking_lines(options)
    if options.per_iteration:
        skipped = f"; summary skips first {options.skip} iterations" if options.skip else ""
        yield f"# Per-Iteration Report: i_* uses each iteration's slowest rank{skipped}"
    default = "" if options.average == 1 else "; the default of nccl-tests is -a 1"
    yield f"# Time: {AVERAGES[options.average]} (-a {options.average}{default})"
    if facts.is_two_level and options.operation.sized:
        factor = options.operation.factor(len(facts.ranks))
        counted = "" if options.on_device else "; --per-level counts what crosses each level"
        yield f"# busbw: flat-equivalent, algbw x {factor:g} whatever the plan{counted}"
    if options.compare:
        plain = "nccl: a plain call of nccl4py" if options.on_device else "mpi: MPI's own call"
        yield f"# Compared: the plans in turn, in rounds; * the one that selection takes, {plain}"
    yield from (f"# {note}" for note in facts.notes)
    yield "#"
    yield f"# Using ranks on layout {facts.layout}"
    for one in facts.ranks:
        yield (
            f"#  Rank {one.rank:2d} Group  0 Pid {one.pid:6d} on {one.host:>10s} node {one.node:2d} "
            f"local rank {one.local_rank:2d} {_where(one)} {one.processor}"
        )
    if facts.max_bytes < options.max_bytes:
        yield "#"
        yield f"# Reducing maxBytes to {facts.max_bytes} due to memory limitation"


def _where(one: RankFacts) -> str:
    return "[cpu]" if one.device is None else f"device {one.device:2d} [{one.address}]"


def _mode_lines(options: Options) -> Iterator[str]:
    operation = options.operation
    method = options.mode.method(operation.method)
    if options.mode is Mode.NONBLOCKING:
        yield f"# Nonblocking: {method} and Wait are timed"
    if options.overlap:
        yield "# Overlap: osu_iallreduce's, with a computation that takes as long as the call, without tests"
    if options.mode is Mode.PERSISTENT:
        yield f"# Persistent: {method} once; Start and Wait are timed"
    if options.reproducible:
        yield "# Reproducible: price is its time over that of the default mode, called in turn"
    if operation.ragged:
        block = "of rank r for rank q: 2 - (r + q) % 3" if operation.paired else "of rank r: 2 - r % 3"
        yield f"# Ragged: block {block} times count; size: the longest buffer of any rank"


def _blocking_lines(options: Options) -> Iterator[str]:
    if options.on_device and options.blocking == WAITED_FOR:
        yield "# Blocking Enabled: each call is waited for"
    if options.blocking == BARRIER_TIMED:
        yield "# Blocking Enabled: barrier after each call, inside the time"
    if options.blocking == BARRIER_UNTIMED:
        yield "# Blocking Enabled: barrier after each iteration; time excludes barrier"


def column_lines(options: Options) -> Iterator[str]:
    """The three lines above the rows."""
    time = "cputime" if options.cpu_time else "time"
    spread = options.per_iteration
    yield "#"
    if spread:
        halves = "              out-of-place (+ per-iteration)" + " " * 32 + "in-place (+ per-iteration)"
    else:
        halves = "           out-of-place                       in-place"
    yield _LEADING % (("",) * 5) + halves
    names = (time, "algbw", "busbw", "#wrong"), ("i_min", "i_max", "i_p99", "i_cv%")
    units = ("(us)", "(GB/s)", "(GB/s)", ""), ("(us)", "(us)", "(us)", "(%)")
    yield (
        _LEADING % ("size", "count", "type", "redop", "root")
        + 2 * _heading(*names, spread)
        + (_TIMESTAMP % "timestamp" if options.timestamps else "")
        + (_PRICE % ("price", "price") if options.reproducible else "")
        + (_OVERLAP % ("overlap", "overlap") if options.overlap else "")
        + (_LEVELS % ("in node", "out of node", "netbw", "%link") if options.per_level else "")
        + "  algorithm"
    )
    yield (
        _LEADING % ("(B)", "(elements)", "", "", "")
        + 2 * _heading(*units, spread)
        + (_TIMESTAMP % TIME_FORMAT if options.timestamps else "")
        + (_PRICE % ("(out)", "(in)") if options.reproducible else "")
        + (_OVERLAP % ("(%, out)", "(%, in)") if options.overlap else "")
        + (_LEVELS % ("(B)", "(B)", "(GB/s)", "(%)") if options.per_level else "")
    ).rstrip()


def _heading(half: tuple[str, ...], spread: tuple[str, ...], with_spread: bool) -> str:
    return _HALF % half + (_SPREAD % spread if with_spread else "")


def row_line(row: Row, options: Options, now: str) -> str:
    """One row; `now` is for the timestamp."""
    case = row.case
    parts = [
        _CASE % (case.nbytes, case.count, case.datatype, case.redop or "none", case.root),
        _half(row.out_of_place, options),
        _half(row.in_place, options),
    ]
    if options.timestamps:
        parts.append(_TIMESTAMP % now)
    if options.reproducible:
        parts.append(_price(row))
    if options.overlap:
        halves = (row.out_of_place, row.in_place)
        parts.append(
            _OVERLAP % tuple(_share(None if half is None else half.overlap_percent) for half in halves)
        )
    if options.per_level:
        parts.append(_levels(row, options.link_gbs))
    words = f"{row.plan}{REPRODUCIBLE if row.reproducible else ''}"
    mark = " *" if options.compare and row.selected else ""
    return "".join(parts) + f"  {words}{mark}"


def _half(half: Half | None, options: Options) -> str:
    if half is None:
        return _HALF % (("N/A",) * 4) + (_SPREAD % (("N/A",) * 4) if options.per_iteration else "")
    time_us = half.cpu_us if options.cpu_time else half.time_us
    wrong = "N/A" if half.wrong is None else f"{half.wrong:6g}"
    text = _HALF % (number(time_us, 7), number(half.algbw, 6), number(half.busbw, 6), wrong)
    if half.spread is not None:
        shown = (half.spread.min_us, half.spread.max_us, half.spread.p99_us, half.spread.cv_pct)
        text += _SPREAD % tuple(number(value, 7) for value in shown)
    return text


def _price(row: Row) -> str:
    if row.price is None:
        return _PRICE % ("-", "-")
    return _PRICE % tuple("N/A" if one is None else number(one, 7) for one in row.price.halves)


def _share(percent: float | None) -> str:
    return "N/A" if percent is None else number(percent, 8)


def _levels(row: Row, link_gbs: float | None) -> str:
    if row.crossing is None:
        return _LEVELS % (("n/a",) * 4)
    gbs = row.crossing.network_gbs(row.out_of_place)
    return _LEVELS % (
        row.crossing.node_bytes,
        row.crossing.network_bytes,
        "n/a" if gbs is None else number(gbs, 6),
        "n/a" if gbs is None or link_gbs is None else number(100 * gbs / link_gbs, 6),
    )


def footer_lines(
    outcome: Outcome, options: Options, algorithms: Sequence[str], memory: str | None
) -> Iterator[str]:
    """What comes after the rows; `algorithms` are the contenders compared, `memory` the line of -M."""
    bad = outcome.out_of_bounds
    yield _footer("Out of bounds values", f"{bad} {'FAILED' if bad else 'OK'}")
    if outcome.wrong:
        yield _footer("Wrong elements", f"{outcome.wrong} FAILED")
    wanted, found = options.min_bandwidth, outcome.busbw()
    verdict = "" if wanted is None else "FAILED" if found < 0.9 * wanted else "OK"
    yield _footer("Avg bus bandwidth", f"{found:g} {verdict}")
    for name in algorithms:
        yield _footer(f"  {name}", f"{outcome.busbw(name):g}")
    judged = judge(outcome.rows) if options.compare else []
    yield from choice_lines(judged, WITHIN_PCT if options.within_pct is None else options.within_pct)
    price = outcome.price()
    if price is not None:
        yield _footer("Reproducible price", f"{price:.3g} times default (geometric mean)")
    if memory is not None:
        yield memory
    for error in outcome.errors:
        yield f"# error: {error}"
    yield "#"
    yield f"# Collective test concluded: hpccoll bench {options.operation.name}"


def _footer(what: str, value: str) -> str:
    return f"# {what:<20s} : {value}".rstrip()


def memory_line(buffer_bytes: int, resident_bytes: int) -> str:
    """The line of -M: the most of any rank."""
    text = f"buffers {_mebibytes(buffer_bytes)} | process at its peak {_mebibytes(resident_bytes)}"
    return _footer("Memory usage", text + " (most of any rank)")


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
