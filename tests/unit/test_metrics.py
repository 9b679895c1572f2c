"""Meters, rates, and what is made of them: as data, as a table, as JSON lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpccoll import _native
from hpccoll.config import Config, load
from hpccoll.errors import UsageError
from hpccoll.observe.meter import TIME_BINS, PythonMeter, Sums, new_meter
from hpccoll.observe.metrics import class_of
from hpccoll.observe.overlapped import Times
from hpccoll.observe.rates import NETWORK, NODE, Rate, Rates, nominal_network, nominal_rates
from hpccoll.observe.snapshot import BLOCKING, HOST, NCCL, STARTED, Kind, row_of
from hpccoll.observe.summary import Told, together
from hpccoll.topology.hardware.model import Interface, RdmaPort

KINDS = [False, pytest.param(True, marks=pytest.mark.skipif(bool(_native.reason()), reason="no extension"))]
KIND = Kind("allreduce", "ring", BLOCKING, HOST, 1 << 20, True)


@pytest.mark.parametrize("native", KINDS)
def test_a_meter(native: bool) -> None:
    meter = new_meter(native)
    assert isinstance(meter, PythonMeter) is not native
    nothing = (tuple(Sums()), (0,) * TIME_BINS)
    assert meter.read(False) == nothing
    for nanoseconds in (1000, 0, 1 << 60, 1023):
        meter.count(8, 3, 2, nanoseconds, nanoseconds // 2)
    meter.count(8, 0, 0, -1, 0)  # whose time is not known
    meter.waited(5)
    sums, bins = meter.read(True)
    assert Sums(*sums) == Sums(5, 40, 12, 8, (1 << 60) + 2023, (1 << 59) + 1011, 5, 0, 1 << 60)
    assert {bin: calls for bin, calls in enumerate(bins) if calls} == {0: 1, 9: 2, TIME_BINS - 1: 1}
    assert meter.read(False) == nothing


@pytest.mark.skipif(bool(_native.reason()), reason="no extension")
def test_what_a_meter_does_not_take() -> None:
    meter: Any = new_meter(True)
    for bad in ((), (1, 2, 3, 4), (1, 2, 3, 4, "5"), (1, 2, 3, 4, 1 << 64)):
        with pytest.raises((TypeError, OverflowError)):
            meter.count(*bad)
    with pytest.raises(TypeError):
        meter.waited(None)
    assert meter.read(False)[0] == tuple(Sums())


@pytest.mark.parametrize(
    ("nbytes", "wanted"), [(0, 0), (1, 1), (2, 2), (3, 4), (8, 8), (9, 16), (1 << 20, 1 << 20)]
)
def test_size_classes(nbytes: int, wanted: int) -> None:
    assert class_of(nbytes) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ""), ("0", ""), ("off", ""), ("1", "1"), ("ON", "1"), ("count", "count"), ("m.jsonl", "m.jsonl"),
        ("dir/", "dir/"), ("/tmp/x", "/tmp/x"),
    ],
)  # fmt: skip
def test_the_setting(text: str, wanted: str) -> None:
    assert load(environ={"HPCCOLL_METRICS": text}).metrics == wanted


@pytest.mark.parametrize("text", ["2", "yess", "metrics", "metrics.json", "counts"])
def test_what_is_no_setting(text: str) -> None:
    with pytest.raises(UsageError, match=rf"metrics is '{text}': must be 1, 0, count, a file"):
        Config(metrics=text)


@pytest.mark.parametrize(
    "text", ["3", "network", "network:", "network:x", "network:-1", "network:inf", "nic:3"]
)
def test_what_are_no_rates(text: str) -> None:
    with pytest.raises(UsageError, match=r"metrics_rates is .*: must be like network:11.5,node:9"):
        Config(metrics_rates=text)


def port(number: int, rate_gbit_s: float | None, state: str = "ACTIVE") -> RdmaPort:
    return RdmaPort("mlx5_0", number, state=state, rate_gbit_s=rate_gbit_s)


def card(name: str, speed_mbit_s: int | None, state: str = "up", kind: str = "ethernet") -> Interface:
    return Interface(name, kind, state=state, speed_mbit_s=speed_mbit_s)


@pytest.mark.parametrize(
    ("ports", "cards", "gbs", "said"),
    [
        ([port(1, 400), port(2, 200), port(3, 400, "DOWN")], [card("eth0", 1000)], 75, "mlx5_0:1, mlx5_0:2"),
        ([port(1, 400), port(2, None)], [], None, "not all of mlx5_0:1, mlx5_0:2 tell their rate"),
        ([port(1, 400, "DOWN")], [card("eth0", 10_000), card("lo", None, kind="loopback")], 1.25, "eth0"),
        ([], [card("eth0", None)], None, "eth0 does not tell its rate"),
        ([], [card("eth0", 1000), card("eth1", 1000)], None, "several network cards are up"),
        ([], [card("eth0", 1000, "down")], None, "no network card is up"),
    ],
)
def test_the_nominal_rate_of_a_network(
    ports: list[RdmaPort], cards: list[Interface], gbs: float | None, said: str
) -> None:
    found = nominal_network(ports, cards)
    assert found.gbs == gbs
    assert said in found.source


def test_what_has_no_nominal_rate() -> None:
    assert "virtual" in nominal_rates(virtual=True, several=True)[NETWORK].source
    assert "one node" in nominal_rates(virtual=False, several=False)[NETWORK].source
    assert nominal_rates(virtual=True, several=True)[NODE].gbs is None


def sums(**changed: int) -> Sums:
    some = Sums(10, 10 << 20, 4 * 10**9, 10**9, 2 * 10**9, 10**9, 0, 10**8, 3 * 10**8)
    return some._replace(**changed)


def test_shares_are_of_the_measured_rate_or_of_the_nominal_one() -> None:
    rates = Rates({NODE: Rate(None, "why"), NETWORK: Rate(4.0, "card")}, {NODE: Rate(5.0, "tune")})
    row = row_of(KIND, sums(), [0] * TIME_BINS, 4, rates)
    node, network = row.levels
    assert (node.gbs, node.of_nominal, node.of_measured, node.share) == (4.0, None, 0.8, 0.8)
    assert (network.gbs, network.of_nominal, network.of_measured, network.share) == (1.0, 0.25, None, 0.25)
    assert row.bound == NODE
    assert row.algbw == pytest.approx((10 << 20) / 2e9)
    assert row.busbw == pytest.approx(1.5 * row.algbw)
    unknown = row_of(KIND, sums(), [0] * TIME_BINS, 4, Rates())
    assert unknown.bound is None
    assert row_of(KIND, sums(inside=0), [0] * TIME_BINS, 4, Rates()).bound == NETWORK


def test_what_nccl_does_has_no_times() -> None:
    kind = KIND._replace(memory=NCCL, form=STARTED, levels=False)
    row = row_of(kind, Sums(calls=3, nbytes=30), [0] * TIME_BINS, 4, Rates())
    assert (row.calls, row.nbytes) == (3, 30)
    assert {row.seconds, row.mean_s, row.waited_s, row.hidden_s, row.algbw, row.busbw, row.bound} == {None}
    assert row.levels == ()


def told(rank: int, **changed: int) -> Told:
    bins = [0] * TIME_BINS
    bins[27] = 10
    return Told(
        rank, 4.0, ((KIND, sums(**changed), bins), (KIND._replace(form=STARTED), sums(waited_ns=5), bins))
    )


def test_the_summary_of_two_ranks() -> None:
    both = [told(0), told(1, ns=4 * 10**9, longest_ns=10**9)]
    assert [Told.from_bytes(one.to_bytes()) for one in both] == [
        Told(one.rank, one.seconds, tuple((k, s, list(b)) for k, s, b in one.counted)) for one in both
    ]
    found = together("solver", 2, "1+1", Rates({}, {NODE: Rate(8.0, "tune")}), both)
    line, started = found.lines
    assert (line.row.calls, line.row.seconds, line.row.shortest_s, line.row.longest_s) == (10, 3.0, 0.1, 1.0)
    assert line.row.times == {0.134217728: 20}
    assert (line.skew_s, line.last) == (pytest.approx(0.2), 0)
    assert started.skew_s == 0
    assert found.waiting_s == pytest.approx(3.0)  # started calls count by their waits
    text = found.text()
    assert "solver, 2 ranks on layout 1+1; 4 s, of which 3 s (75%) in blocking calls and waits" in text
    assert "node: measured rate 8 GB/s (tune)" in text
    first, *rows = [json.loads(one) for one in found.json_lines()]
    assert first["kind"] == "communicator"
    assert first["told"] == [0, 1]
    assert [row["form"] for row in rows] == [BLOCKING, STARTED]
    assert rows[0]["last"] == 0
    assert rows[0]["times"] == {"134218": 20}


def test_one_rank_of_several() -> None:
    found = together("", 3, "3", Rates(), [told(2)])
    assert "a communicator, 3 ranks on layout 3, as rank 2 alone saw them" in found.text()
    assert {line.last for line in found.lines} == {None}


def test_steps_of_buckets_are_those_of_the_mean_rank() -> None:
    both = [replace(told(rank), steps=Times(4, 2.0 + rank, 1.0, 1.5)) for rank in (0, 1)]
    assert Told.from_bytes(both[1].to_bytes()).steps == both[1].steps
    found = together("solver", 2, "2", Rates(), both)
    assert found.steps == Times(4, 2.5, 1.0, 1.5)
    assert found.steps.mean == Times(1, 0.625, 0.25, 0.375)
    shares = "375 ms hidden (60 %), 250 ms exposed; 375 ms in wait()"
    assert f"steps of buckets: 4, of each 625 ms under way: {shares}" in found.text()
    assert json.loads(next(iter(found.json_lines())))["steps"]["hidden_s"] == 1.5


def test_the_keys_are_documented() -> None:
    found = together("", 1, "1", Rates(), [told(0)])
    page = Path(__file__).parents[2].joinpath("docs", "metrics.md").read_text()
    for line in found.json_lines():
        for key in json.loads(line):
            assert f"`{key}`" in page, key
