"""Table, JSON and time arithmetic of `hpccoll bench`."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import pytest

from hpccoll.cli.bench.facts import RankFacts, RunFacts
from hpccoll.cli.bench.flags import configure
from hpccoll.cli.bench.operations import OPERATIONS
from hpccoll.cli.bench.options import Options, read
from hpccoll.cli.bench.report import document
from hpccoll.cli.bench.results import Case, Crossing, Half, Outcome, Price, Row, priced
from hpccoll.cli.bench.table import column_lines, footer_lines, number, row_line, title_lines
from hpccoll.cli.bench.timing import spread_of, time_block
from hpccoll.cli.output import json_text

NOW = "2030-01-02 03:04:05"

# A run of nccl-tests' all_reduce_perf prints these lines, character by character.
COLUMNS = (
    "#",
    "#                                                              out-of-place" + 23 * " " + "in-place",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
    "     time   algbw   busbw  #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)        "
    "     (us)  (GB/s)  (GB/s)",
)
ROW = (
    "     1048576        262144     float     sum      -1    30.12   34.81   65.27       0"
    "    30.05   34.89   65.43       0"
)

CASE = Case(OPERATIONS["allreduce"], "float", "sum", -1, 262144, 1048576)
PLAN = "scatter_rail_gather(ring, 4 chunks)"
SAMPLE = Row(
    CASE,
    Half(30.12, 25.0, 34.81, 65.27, 0),
    Half(30.05, 24.0, 34.89, 65.43, 0),
    "scatter_rail_gather",
    PLAN,
    True,
    Crossing(4_000_000, 1_048_576),
)
FACTS = RunFacts(
    "1.2.3",
    "4.1.2",
    "MPICH 5.0.2",
    "2+2",
    2,
    1048576,
    tuple(RankFacts(rank, 100 + rank, "host", rank // 2, rank % 2, "a processor") for rank in range(4)),
)


def options(arguments: str = "", operation: str = "allreduce", **environ: str) -> Options:
    parser = argparse.ArgumentParser()
    configure(parser)
    return read(parser.parse_args([operation, *arguments.split()]), environ)


def test_columns_are_those_of_nccl_tests_and_the_algorithm() -> None:
    assert list(column_lines(options())) == [*COLUMNS[:2], COLUMNS[2] + "  algorithm", COLUMNS[3]]


def test_a_row_is_that_of_nccl_tests_and_the_algorithm() -> None:
    assert row_line(SAMPLE, options(), NOW) == f"{ROW}  {PLAN}"


def test_the_selected_plan_is_marked_where_plans_are_compared() -> None:
    assert row_line(SAMPLE, options("--compare"), NOW).endswith(f"  {PLAN} *")
    assert row_line(replace(SAMPLE, selected=False), options("--compare"), NOW).endswith(f"  {PLAN}")


def test_what_was_not_measured_or_not_checked_is_not_a_number() -> None:
    barrier = Case(OPERATIONS["barrier"], "none", None, -1, 0, 0)
    row = Row(barrier, Half(5.0, 4.0, 0.0, 0.0, None), None, "one_shot", "one_shot", True, None)
    assert row_line(row, options(), NOW) == (
        "           0             0      none    none      -1"
        "     5.00    0.00    0.00     N/A      N/A     N/A     N/A     N/A  one_shot"
    )


def test_wrong_elements_are_shown() -> None:
    wrong = replace(SAMPLE, in_place=Half(30.05, 24.0, 34.89, 65.43, 1234567))
    assert row_line(wrong, options(), NOW).endswith(f"   65.43  1.23457e+06  {PLAN}")


def test_processor_time_timestamps_and_spread_have_columns_of_their_own() -> None:
    chosen = options("-C 1 -S 1 -I 1")
    spread = spread_of((1.0, 2.0, 3.0, 4.0), 0)
    half = replace(SAMPLE.halves[0], spread=spread)
    line = row_line(replace(SAMPLE, out_of_place=half, in_place=half), chosen, NOW)
    assert line == (
        "     1048576        262144     float     sum      -1"
        + 2 * "    25.00   34.81   65.27       0     1.00     4.00     4.00    44.72"
        + f"  {NOW}  {PLAN}"
    )
    header = list(column_lines(chosen))
    assert header[2].split()[1:] == [
        *("size", "count", "type", "redop", "root"),
        *2 * ("cputime", "algbw", "busbw", "#wrong", "i_min", "i_max", "i_p99", "i_cv%"),
        *("timestamp", "algorithm"),
    ]
    for name, text in (("i_min", " 1.00"), ("i_cv%", "44.72"), ("timestamp", NOW)):
        assert header[2].index(name) + len(name) == line.index(text) + len(text)


def test_levels_are_bytes_over_time_and_never_invented() -> None:
    line = row_line(SAMPLE, options("--per-level"), NOW)
    assert line == f"{ROW}       4000000       1048576   34.81     n/a  {PLAN}"
    line = row_line(SAMPLE, options("--link-gbs 50"), NOW)
    assert line == f"{ROW}       4000000       1048576   34.81   69.63  {PLAN}"
    unknown = row_line(replace(SAMPLE, crossing=None, plan="mpi"), options("--link-gbs 50"), NOW)
    assert unknown == f"{ROW}           n/a           n/a     n/a     n/a  mpi"
    inside = row_line(replace(SAMPLE, crossing=Crossing(8, 0)), options("--link-gbs 50"), NOW)
    assert inside == f"{ROW}             8             0     n/a     n/a  {PLAN}"


SLOWER = replace(
    SAMPLE,
    out_of_place=Half(45.18, 0.0, 20.0, 40.0, 0),
    in_place=Half(60.10, 0.0, 15.0, 30.0, 0),
    algorithm="ring",
    plan="ring",
    reproducible=True,
)


def test_the_price_is_over_what_the_default_mode_chooses() -> None:
    other = replace(SAMPLE, out_of_place=Half(1.0, 0.0, 1.0, 1.0, 0), selected=False)
    plain = replace(other, algorithm="mpi", plan="mpi", crossing=None)
    rows = priced([other, SAMPLE, SLOWER, plain])
    assert rows[:2] == [other, SAMPLE]
    assert rows[3] == plain
    assert rows[2].price == Price(pytest.approx(1.5), pytest.approx(2.0))
    assert priced([SAMPLE]) == [SAMPLE]
    alone = priced([other, SLOWER])[1]
    assert alone.price == Price(pytest.approx(45.18), pytest.approx(2.0))
    assert outcome(rows=rows).price() == pytest.approx(3**0.5)
    assert outcome(rows=[SAMPLE]).price() is None


def test_prices_have_columns_and_a_mean() -> None:
    chosen = options("--reproducible --compare")
    header = list(column_lines(chosen))
    first, second = (row_line(row, chosen, NOW) for row in priced([SAMPLE, SLOWER]))
    assert first == f"{ROW}        -        -  {PLAN} *"
    assert second.endswith("       0     1.50     2.00  ring, reproducible *")
    assert header[2].endswith("#wrong    price    price  algorithm")
    assert header[2].index("price") + 5 == second.index("1.50") + 4
    lines = list(footer_lines(outcome(rows=priced([SAMPLE, SLOWER])), chosen, ["ring, reproducible"], None))
    assert "#   ring, reproducible : 35" in lines
    assert "# Reproducible price   : 1.73 times default (geometric mean)" in lines


def test_json_has_mode_and_prices() -> None:
    text = written(outcome(rows=priced([SAMPLE, SLOWER])), options("--reproducible --persistent"))
    assert text["mode"] == "persistent"
    assert [one["reproducible"] for one in text["results"]] == [False, True]
    assert text["results"][0]["price"] is None
    assert text["results"][1]["price"] == pytest.approx({"out_of_place": 1.5, "in_place": 2.0})


@pytest.mark.parametrize(
    ("operation", "arguments", "line"),
    [
        ("broadcast", "--nonblocking", "# Nonblocking: Ibcast and Wait are timed"),
        ("gatherv", "--persistent", "# Persistent: Gatherv_init once; Start and Wait are timed"),
        ("scan", "--reproducible", "# Reproducible: price is its time over that of the default mode"),
        ("reduce_scatterv", "", "# Ragged: block of rank r: 2 - r % 3 times count; size: the longest"),
        ("alltoallw", "", "# Ragged: block of rank r for rank q: 2 - (r + q) % 3 times count; size:"),
    ],
)
def test_the_title_says_what_is_called(operation: str, arguments: str, line: str) -> None:
    lines = list(title_lines(options(arguments, operation), FACTS))
    assert [one for one in lines if one.startswith(line)]


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0.0, 6, "  0.00"),
        (34.814, 6, " 34.81"),
        (999.99, 6, "999.99"),
        (1234.56, 6, "1234.6"),
        (99999.6, 6, "100000"),
        (1234567.0, 6, " 1e+06"),
        (12345678.9, 7, "1.2e+07"),
        (30.12, 7, "  30.12"),
    ],
)
def test_numbers_fit_their_column(value: float, width: int, text: str) -> None:
    assert number(value, width) == text
    assert len(text) == width


def test_the_title_says_whose_time_it_is_and_that_busbw_is_flat_equivalent() -> None:
    lines = list(title_lines(options("-b 8 -e 1M -f 2"), FACTS))
    assert lines[0] == "# hpccoll version 1.2.3 mpi4py=4.1.2 mpi-library=MPICH 5.0.2"
    assert lines[1] == "# Collective test starting: hpccoll bench allreduce"
    assert lines[2] == (
        "# nThread 1 nGpus 0 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 1 iters: 20 "
        "agg iters: 1 validation: 1 graph: 0 unalign: 0"
    )
    assert "# Time: the slowest rank's (-a 3; the default of nccl-tests is -a 1)" in lines
    assert any("flat-equivalent, algbw x 1.5" in line for line in lines)
    assert "#  Rank  3 Group  0 Pid    103 on       host node  1 local rank  1 [cpu] a processor" in lines
    one_node = list(title_lines(options("-a 1"), replace(FACTS, node_count=1)))
    assert "# Time: the average of all ranks' (-a 1)" in one_node
    assert not any("flat-equivalent" in line for line in one_node)


def test_less_memory_than_asked_for_is_said() -> None:
    lines = list(title_lines(options("-e 1G"), FACTS))
    assert lines[-1] == "# Reducing maxBytes to 1048576 due to memory limitation"


def outcome(**changes: Any) -> Outcome:
    return Outcome(**{"rows": [SAMPLE], **changes})


def test_the_end_of_a_good_run_is_that_of_nccl_tests() -> None:
    assert list(footer_lines(outcome(), options(), [], None)) == [
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 65.35",
        "#",
        "# Collective test concluded: hpccoll bench allreduce",
    ]
    assert outcome().is_good(None)


def test_the_end_of_a_bad_run() -> None:
    wrong = replace(SAMPLE, in_place=Half(1.0, 1.0, 1.0, 1.0, 3))
    bad = outcome(rows=[SAMPLE, wrong], out_of_bounds=2, errors=["PeerLostError: rank 3"])
    lines = list(footer_lines(bad, options(), ["scatter_rail_gather"], None))
    assert lines[0] == "# Out of bounds values : 2 FAILED"
    assert lines[1] == "# Wrong elements       : 3 FAILED"
    assert "#   scatter_rail_gather : 49.2425" in lines
    assert "# error: PeerLostError: rank 3" in lines
    for one in (outcome(rows=[wrong]), outcome(out_of_bounds=1), outcome(errors=["x"])):
        assert not one.is_good(None)


@pytest.mark.parametrize(("wanted", "verdict", "good"), [("72.6", "OK", True), ("72.7", "FAILED", False)])
def test_the_bandwidth_asked_for_is_met_at_nine_tenths(wanted: str, verdict: str, good: bool) -> None:
    chosen = options(NCCL_TESTS_MIN_BW=wanted)
    assert f"# Avg bus bandwidth    : 65.35 {verdict}" in list(footer_lines(outcome(), chosen, [], None))
    assert outcome().is_good(chosen.min_bandwidth) is good
    text = written(outcome(), chosen)
    assert text["average_bus_bandwidth"] == {"bandwidth": pytest.approx(65.35), "okay": good}


def written(result: Outcome, chosen: Options) -> Any:
    environ = {"HPCCOLL_LAYOUT": "2+2", "GITHUB_TOKEN": "secret", "HOME": "/root"}
    args = ["hpccoll", "bench"]
    return json.loads(
        json_text(document(result, chosen, FACTS, args=args, environ=environ, times=(NOW, NOW)))
    )


def test_json_has_the_keys_of_nccl_tests_version_3() -> None:
    text = written(outcome(out_of_bounds=4), options("-b 8 -e 1M -f 2 --link-gbs 50"))
    assert text["version"] == 3
    assert text["args"] == ["hpccoll", "bench"]
    assert text["env"] == ["HPCCOLL_LAYOUT=2+2"]
    assert (text["start_time"], text["end_time"]) == (NOW, NOW)
    assert text["out_of_bounds"] == {"count": 4, "okay": False}
    assert text["average_bus_bandwidth"] == {"bandwidth": pytest.approx(65.35), "okay": "unchecked"}
    assert text["config"]["step_factor"] == 2
    assert text["config"]["maximum_bytes"] == 1048576
    assert [device["node"] for device in text["config"]["devices"]] == [0, 0, 1, 1]
    (result,) = text["results"]
    half = {"time": 30.12, "alg_bw": 34.81, "bus_bw": 65.27, "nwrong": 0}
    assert result["out_of_place"] == half
    assert (result["size"], result["count"], result["type"]) == (1048576, 262144, "float")
    assert (result["redop"], result["root"], result["actual_iterations"]) == ("sum", -1, 20)
    assert (result["algorithm"], result["plan"], result["selected"]) == ("scatter_rail_gather", PLAN, True)
    network = result["per_level"]["network"]
    assert network["bytes"] == 1048576
    assert network["gbs"]["out_of_place"] == pytest.approx(34.8133, abs=1e-3)
    assert network["utilisation"]["out_of_place"] == pytest.approx(0.69627, abs=1e-4)
    assert json.loads(json.dumps(text)) == text


def test_json_of_what_was_not_measured() -> None:
    row = replace(SAMPLE, in_place=None, crossing=None, out_of_place=Half(1.0, 2.0, 0.0, 0.0, None))
    (result,) = written(outcome(rows=[row]), options("-C 1"))["results"]
    assert result["in_place"] is None
    assert result["per_level"] is None
    assert result["out_of_place"] == {"cpu_time": 2.0, "alg_bw": 0.0, "bus_bw": 0.0, "nwrong": None}


def test_the_spread_leaves_the_first_iterations_out() -> None:
    spread = spread_of((100.0, *(float(one) for one in range(1, 101))), 1)
    assert (spread.min_us, spread.max_us, spread.avg_us) == (1.0, 100.0, 50.5)
    assert (spread.p50_us, spread.p95_us, spread.p99_us) == (51.0, 95.0, 99.0)
    assert spread.cv_pct == pytest.approx(100 * 28.86607 / 50.5)
    assert len(spread.times_us) == 101


@pytest.mark.parametrize(
    ("blocking", "each", "trace"),
    [
        (0, False, "Bcccccc"),
        (2, False, "Bcccccc"),
        (0, True, "Bcccccc"),
        (1, False, "BcBcBcBcBcBcB"),
        (3, False, "BccBccBccB"),
    ],
)
def test_barriers_are_where_they_should_be(blocking: int, each: bool, trace: str) -> None:
    seen: list[str] = []
    block = time_block(
        lambda: seen.append("c"),
        lambda: seen.append("B"),
        iterations=3,
        calls=2,
        blocking=blocking,
        each=each,
    )
    assert "".join(seen) == trace
    assert block.calls == 6
    assert block.elapsed_s > 0
    assert len(block.each_s) == (3 if each or blocking in (1, 3) else 0)


@pytest.mark.parametrize(
    ("blocking", "each", "trace"),
    [
        (0, False, "sBccccccs"),
        (0, True, "sBccsccsccs"),
        (1, False, "sBcsBcsBcsBcsBcsBcsB"),
        (2, False, "sBcscscscscscs"),
        (3, False, "sBccsBccsBccsB"),
    ],
)
def test_calls_that_only_enqueue_are_waited_for(blocking: int, each: bool, trace: str) -> None:
    seen: list[str] = []

    def settle() -> None:
        seen.append("s")
        time.sleep(0.002)

    block = time_block(
        lambda: seen.append("c"),
        lambda: seen.append("B"),
        iterations=3,
        calls=2,
        blocking=blocking,
        each=each,
        settle=settle,
    )
    assert "".join(seen) == trace
    waits_inside = trace.count("s") - 1
    assert block.elapsed_s > 0.002 * waits_inside
    if blocking in (0, 3):  # the time to enqueue is without the waits
        assert 0 < block.cpu_s < block.elapsed_s - 0.0015 * waits_inside


def test_a_table_of_device_arrays() -> None:
    devices = tuple(replace(one, device=one.local_rank, address="0000:0a:00.0") for one in FACTS.ranks)
    facts = replace(FACTS, ranks=devices, nccl_version=23203, notes=("Arrays on devices travel by nccl",))
    lines = list(title_lines(options("--device cuda --compare -z 2"), facts))
    assert lines[0].endswith(" nccl-library=23203")
    assert "nGpus 1 " in lines[2]
    assert any(line.endswith(", nccl: a plain call of nccl4py") for line in lines)
    assert "# Arrays on devices travel by nccl" in lines
    assert "# Blocking Enabled: each call is waited for" in lines
    assert any(line.endswith("local rank  1 device  1 [0000:0a:00.0] a processor") for line in lines)
    assert not any("per-level" in line for line in lines)


@pytest.mark.parametrize("processor", ["NVIDIA H100", "NVIDIA CPU stand-in"])
def test_json_of_device_arrays(processor: str) -> None:
    ranks = tuple(replace(one, device=3, address="0000:0a:00.0", processor=processor) for one in FACTS.ranks)
    facts = replace(FACTS, ranks=ranks, nccl_version=23203, notes=("a note",))
    found = document(outcome(), options("--device cuda"), facts, args=(), environ={}, times=("a", "b"))
    assert (found["device"], found["nccl_version"], found["notes"]) == ("cuda", 23203, ["a note"])
    assert found["stand_in"] is ("stand-in" in processor)
    assert found["config"]["ngpus"] == 1
    assert found["config"]["devices"][0] | {"pid": 0} == {
        "rank": 0,
        "group": 0,
        "pid": 0,
        "hostname": "host",
        "device": 3,
        "device_hex": "0000:0a:00.0",
        "device_info": processor,
        "node": 0,
        "local_rank": 0,
    }
