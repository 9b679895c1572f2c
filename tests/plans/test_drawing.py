"""Plans as text and as SVG."""

from __future__ import annotations

import re
import time
from xml.etree import ElementTree

import pytest

from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import Collective
from hpccoll.plans.cost import price
from hpccoll.plans.draw import draw_svg, draw_text
from hpccoll.plans.links import Links
from hpccoll.plans.lower import lower
from hpccoll.plans.steps import Plan
from hpccoll.plans.text import bytes_text, groups_text, operation_text, time_text
from hpccoll.topology.layout import Layout
from tests.plans.cases import COLLECTIVES, plans, text_of

SVG = "{http://www.w3.org/2000/svg}"
# Inside and between nodes take about the same time.
BALANCED = Links(memory_gbs=25, network_gbs=1, network_latency_us=1, node_latency_us=1)


def plan_of(name: str, text: str, count: int, collective: str = "allreduce", chunks: int = 1) -> Plan:
    layout = Layout.parse(text)
    call = Collective(collective, layout.size, count)
    return make_plan(name, call, layout, segment=4096, chunks=chunks)


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def test_a_table_of_the_steps() -> None:
    lines = draw_text(plan_of("reduce_ring_broadcast", "3+1", 1 << 18, chunks=2), 4).splitlines()
    head = ["step", "mark", "action", "groups", "root", "algorithm"]
    assert cells(lines[0]) == [*head, "bytes a group", "time", "waits for"]
    assert [cells(line)[:7] + cells(line)[8:] for line in lines[1:7]] == [
        ["0", "R0", "reduce of chunk 0", "NODE", "0,3", "native", "512 KiB", "-"],
        ["1", "A0", "allreduce of chunk 0", "LEADERS", "-", "ring", "512 KiB", "0"],
        ["2", "R1", "reduce of chunk 1", "NODE", "0,3", "native", "512 KiB", "-"],
        ["3", "A1", "allreduce of chunk 1", "LEADERS", "-", "ring", "512 KiB", "2"],
        ["4", "B0", "broadcast of chunk 0", "NODE", "0,3", "native", "512 KiB", "1"],
        ["5", "B1", "broadcast of chunk 1", "NODE", "0,3", "native", "512 KiB", "3"],
    ]
    assert [cells(line) for line in lines[8:10]] == [
        ["NODE:", "2 of 1 to 3: 0-2 | 3"],
        ["LEADERS:", "1 of 2: 0,3"],
    ]


def test_the_time_line_has_the_steps_of_each_level_in_order() -> None:
    plan = plan_of("reduce_ring_broadcast", "2+2", 3 << 18, chunks=3)
    node, network = draw_text(plan, 4, BALANCED).splitlines()[-3:-1]
    assert re.findall(r"[A-Z]+\d", node.removeprefix("NODE")) == ["R0", "R1", "B0", "R2", "B1", "B2"]
    assert re.findall(r"[A-Z]+\d", network) == ["A0", "A1", "A2"]
    # Chunk 0 is between the nodes while chunk 1 is inside, and comes back only then.
    assert node.index("R0") < network.index("A0") <= node.index("R1") < node.index("B0")
    assert network.index("A2") > node.index("R2")
    for number, level in enumerate((node, network)):
        bars = level[9:].split()
        assert all(re.fullmatch(r"[A-Z]+\d=*", bar) for bar in bars), (number, level)


def test_bars_are_to_scale() -> None:
    plan = plan_of("two_level", "2+2", 1 << 20, "broadcast")
    cost = price(plan, 4)
    *_, node, network, _ = draw_text(plan, 4).splitlines()
    lengths = [len(line[9:].split()[0]) for line in (network, node)]
    times = [step.time_s for step in cost.steps]
    assert lengths[0] / sum(lengths) == pytest.approx(times[0] / sum(times), abs=0.05)


def test_the_time_line_ends_with_the_predicted_time_and_begins_with_the_check() -> None:
    plan = plan_of("ring", "2+2", 1 << 20)
    last = draw_text(plan, 4).splitlines()[-1]
    cost = price(plan, 4)
    assert last.split("0 (the check: ")[1].startswith(time_text(cost.start_s[0]))
    assert last.endswith(time_text(cost.time_s))


def test_a_large_layout_is_abbreviated() -> None:
    plan = plan_of("scatter_rail_gather", "512x8", 1 << 24, chunks=8)
    text = draw_text(plan, 4)
    assert "512 of 8: 0-7 | 8-15 |" in text
    assert "| ... | 4088-4095" in text
    assert "8 of 512: 0,8,16,24,32,40,48,56,...,4088 |" in text
    assert len(text.splitlines()) < 40
    assert max(map(len, text.splitlines())) < 500
    svg = draw_svg(plan, 4)
    assert "and 504 more nodes" in svg
    assert len(svg) < 300_000


def test_a_barrier_has_nothing_to_draw() -> None:
    layout = Layout.parse("2+2")
    plan = make_plan("one_shot", Collective("barrier", 4, 0), layout, segment=1)
    assert draw_text(plan, 1).startswith("no steps")
    ElementTree.fromstring(draw_svg(plan, 1))


@pytest.mark.parametrize("text", ["1", "4", "2+2", "3+1", "cyclic:2+2+2", "1+1+1", "3x12"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_plan_can_be_drawn(text: str, collective: str) -> None:
    layout = Layout.parse(text)
    for plan in plans(collective, layout, (0, 1 << 12), (layout.size - 1,), (1, 3)):
        lines = draw_text(plan, 4).splitlines()
        assert [line.split()[0] for line in lines[1 : len(plan.steps) + 1]] == [
            str(number) for number in range(len(plan.steps))
        ], text_of(plan)
        picture = ElementTree.fromstring(draw_svg(plan, 4))
        told = [one.text or "" for one in picture.iter(f"{SVG}title")]
        for number in range(len(plan.steps)):
            assert sum(one.startswith(f"step {number}: ") for one in told) == 1, text_of(plan)


def test_the_picture_is_self_contained_and_stays_inside() -> None:
    svg = draw_svg(plan_of("scatter_rail_gather", "4x8", 1 << 24, chunks=4), 4)
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<(image|script|style|foreignObject|use)\b|@import|@font-face|\bhref=", svg)
    picture = ElementTree.fromstring(svg)
    width, height = (float(picture.attrib[name]) for name in ("width", "height"))
    boxes = list(picture.iter(f"{SVG}rect"))
    assert len(boxes) > 4 * 3 + len(plan_of("scatter_rail_gather", "4x8", 1 << 24, chunks=4).steps)
    for box in boxes:
        x, y, wide, high = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + wide <= width + 0.1
        assert y + high <= height + 0.1


def test_the_picture_shows_ranks_chunks_and_messages() -> None:
    plan = plan_of("scatter_rail_gather", "2+2", 1 << 20, chunks=2)
    picture = ElementTree.fromstring(draw_svg(plan, 4))
    circles = list(picture.iter(f"{SVG}circle"))
    assert len(circles) == 3 * 4  # three steps of chunk 0, four ranks each
    arrows = [one for one in picture.iter(f"{SVG}path") if "between" in one.attrib.get("marker-end", "")]
    assert len(arrows) == 4  # two rails of two, both ways
    colours = {box.attrib["fill"] for box in picture.iter(f"{SVG}rect")}
    assert {"#3b6fb6", "#e08a2e"} <= colours


def arrows(picture: ElementTree.Element, level: str) -> int:
    return sum(level in one.attrib.get("marker-end", "") for one in picture.iter(f"{SVG}path"))


def words(picture: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in picture.iter(f"{SVG}text")]


def test_an_alltoall_through_leaders() -> None:
    plan = plan_of("two_level", "2+2+2", 100, "alltoall")
    lines = draw_text(plan, 4).splitlines()
    assert [cells(line)[:7] + cells(line)[8:] for line in lines[1:5]] == [
        ["0", "G0", "gather", "NODE", "0,2,4", "native", "3.12 KiB", "-"],
        ["1", "X0", "alltoall", "NODE", "-", "native", "1.56 KiB", "-"],
        ["2", "X0", "alltoall", "LEADERS", "-", "direct", "9.38 KiB", "0"],
        ["3", "S0", "scatter", "NODE", "0,2,4", "native", "3.12 KiB", "2"],
    ]
    picture = ElementTree.fromstring(draw_svg(plan, 4))
    assert arrows(picture, "between") == 3 * 2
    # Into memory and out of it: all and the leader, all and all, the leader and all.
    assert arrows(picture, "inside") == (6 + 3) + (6 + 6) + (3 + 6)
    assert "14.1 KiB of all ranks on layout 3x2" in words(picture)[1]


@pytest.mark.parametrize(("name", "collective"), [("direct", "alltoall"), ("fold", "reduce_scatter")])
def test_where_everybody_sends_to_everybody_one_rank_stands_for_all(name: str, collective: str) -> None:
    picture = ElementTree.fromstring(draw_svg(plan_of(name, "4x8", 1000, collective), 4))
    assert (arrows(picture, "inside"), arrows(picture, "between")) == (7, 24)
    assert "what rank 0 sends; the others do likewise" in words(picture)
    few = ElementTree.fromstring(draw_svg(plan_of(name, "2+2", 1000, collective), 4))
    assert (arrows(few, "inside"), arrows(few, "between")) == (4, 8)
    assert "what rank 0 sends; the others do likewise" not in words(few)


def test_a_scan_by_nodes() -> None:
    plan = plan_of("two_level", "3+1+2", 256, "exscan")
    lines = draw_text(plan, 4).splitlines()
    assert [cells(line)[1:6] for line in lines[1:6]] == [
        ["E0", "exscan", "NODE", "-", "native"],
        ["R0", "reduce", "NODE", "2,3,5", "native"],
        ["E0", "exscan", "LAST", "-", "doubling_scan"],
        ["B0", "broadcast", "NODE", "3,5", "native"],
        ["F0", "prepend", "NODE", "-", "native"],
    ]
    assert cells(lines[7]) == ["NODE:", "3 of 1 to 3: 0-2 | 3 | 4,5"]  # of steps without the first node too
    assert cells(lines[8]) == ["LAST:", "1 of 3: 2,3,5"]
    picture = ElementTree.fromstring(draw_svg(plan, 4))
    assert arrows(picture, "between") == 2 + 1
    # In exscan all give and all but the first of each node get; in reduce the last gets.
    assert arrows(picture, "inside") == (5 + 3) + (5 + 2) + 2
    said = " ".join(words(picture))
    assert "step 2: exscan over the last rank of each node (doubling scan)" in said
    assert "step 4: prepend in every node but the first" in said


def test_roots_of_many_nodes_in_words() -> None:
    scan = draw_text(plan_of("two_level", "6x2", 256, "exscan"), 4).splitlines()
    assert [cells(line)[4] for line in scan[1:6]] == ["-", "last of each", "-", "last of each", "-"]
    reduced = draw_text(plan_of("two_level", "6x2", 256, "reduce"), 4).splitlines()
    assert cells(reduced[1])[4] == "first of each"


@pytest.mark.parametrize(
    ("collective", "name"),
    [("alltoall", "two_level"), ("alltoall", "rail"), ("alltoall", "direct"), ("gather", "binomial")],
)
def test_sixteen_thousand_ranks_are_drawn_in_a_moment(collective: str, name: str) -> None:
    plan = plan_of(name, "256x64", 1000, collective)
    begin = time.process_time()
    assert len(draw_svg(plan, 4)) < 300_000
    assert len(draw_text(plan, 4).splitlines()) < 40
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (12, "12 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1048572, "1 MiB"),
     (64 << 20, "64 MiB"), (5 << 40, "5 TiB")],
)  # fmt: skip
def test_bytes_in_words(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 us"),
        (1.234e-6, "1.23 us"),
        (37e-6, "37 us"),
        (999.96e-6, "1 ms"),
        (0.0125, "12.5 ms"),
        (3.25, "3.25 s"),
    ],
)
def test_times_in_words(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_groups_in_words() -> None:
    assert groups_text(Layout.parse("cyclic:2+2").nodes) == "2 of 2: 0,2 | 1,3"
    assert groups_text(((0,), (1, 2, 3))) == "2 of 1 to 3: 0 | 1-3"
    assert groups_text(((2, 1, 0),)) == "1 of 3: 2,1,0"


def test_operations_in_words() -> None:
    said = [operation_text(one) for one in lower(plan_of("ring", "2", 4), 0).operations]
    assert said == [
        "send input[2:4] to rank 1",
        "receive scratch[0:2] from rank 1",
        "combine scratch[0:2] with input[0:2] into output[0:2]",
        "send output[0:2] to rank 1",
        "receive output[2:4] from rank 1",
    ]
    call = lower(plan_of("flat", "4", 8), 1).operations[0]
    assert operation_text(call) == "allreduce of WORLD, ranks 0-3: give input[0:8], get output[0:8]"
    first = lower(plan_of("flat", "4", 8, "exscan"), 0).operations[0]
    assert operation_text(first) == "exscan of WORLD, ranks 0-3: give input[0:8], get nothing"
    rows = lower(plan_of("two_level", "2+2", 1, "alltoall"), 1).operations
    assert [operation_text(one) for one in rows] == [
        "gather of NODE, ranks 0, 1: give input[2:4], get nothing",
        "alltoall of NODE, ranks 0, 1: give input[0:2], get output[0:2]",
        "scatter of NODE, ranks 0, 1: give nothing, get output[2:4]",
    ]
