"""Studies as data: numbers of nodes asked for, what is kept, their file, tables and the page."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hpccoll.cli.scale import node_counts
from hpccoll.errors import UsageError
from hpccoll.scaling.report import write_report
from hpccoll.scaling.study import MEASURED, SIMULATED, Point, Study, read, write
from hpccoll.scaling.table import as_csv, lines


def point(nodes: int, nbytes: int, time_us: float, busbw: float, ranks: int = 0) -> Point:
    layout = f"{nodes}x2"
    return Point(nodes, ranks or 2 * nodes, layout, nbytes, "ring", time_us, busbw, predicted_us=2 * time_us)


POINTS = (
    point(1, 1024, 10.0, 0.1),
    point(2, 1024, 20.0, 0.075),
    point(4, 1024, 40.0, 0.05),
    point(1, 4096, 11.0, 0.4),
    point(2, 4096, 22.0, 0.3),
    point(4, 4096, 44.0, 0.2),
)
STUDY = Study("allreduce", "float", "sum", MEASURED, "4x2 ranks on node0", POINTS, "hpccoll scale allreduce")


@pytest.mark.parametrize(
    ("text", "most", "wanted"),
    [
        (None, 1, (1,)),
        (None, 8, (1, 2, 4, 8)),
        (None, 6, (1, 2, 4, 6)),
        ("3", 4, (3,)),
        ("4,1,1", 4, (1, 4)),
        ("1..64", 64, (1, 2, 4, 8, 16, 32, 64)),
        ("2..5, 7", 9, (2, 4, 5, 7)),
    ],
)
def test_numbers_of_nodes(text: str | None, most: int, wanted: tuple[int, ...]) -> None:
    assert node_counts(text, most) == wanted


@pytest.mark.parametrize(
    "text", ["", "0", "5", "1..5", "3..2", "x", "1..", "..2", "-1", "1.5", "1,,2", "1e9"]
)
def test_numbers_of_nodes_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="--nodes"):
        node_counts(text, 4)


def test_what_is_kept() -> None:
    assert [STUDY.kept(one) for one in STUDY.of_size(1024)] == pytest.approx([1.0, 0.75, 0.5])
    alone = replace(
        STUDY, points=(point(1, 8, 1.0, 0.0, ranks=1), point(2, 8, 2.0, 0.4), point(4, 8, 2.0, 0.3))
    )
    assert [alone.kept(one) for one in alone.of_size(8)] == [None, 1.0, pytest.approx(0.75)]


def test_points_of_the_same_place_are_replaced() -> None:
    grown = STUDY.with_points([replace(POINTS[0], time_us=5.0), point(8, 1024, 80.0, 0.04)])
    assert len(grown.points) == len(POINTS) + 1
    assert [one.time_us for one in grown.of_size(1024)] == [5.0, 20.0, 40.0, 80.0]
    assert (grown.sizes, grown.node_counts) == ((1024, 4096), (1, 2, 4, 8))


def test_the_file(tmp_path: Path) -> None:
    write(tmp_path / "one.json", STUDY)
    assert read(tmp_path / "one.json") == STUDY
    assert [one.name for one in tmp_path.iterdir()] == ["one.json"]
    with pytest.raises(UsageError, match="cannot write"):
        write(tmp_path / "none" / "one.json", STUDY)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-10],
        lambda text: "[]",
        lambda text: text.replace('"version": 1', '"version": 99'),
        lambda text: text.replace('"busbw": 0.1', '"busbw": "fast"'),
        lambda text: text.replace('"time_us": 10.0', '"time_us": -1'),
        lambda text: text.replace('"time_us": 10.0', '"time_us": NaN'),
        lambda text: text.replace('"plan"', '"plans"'),
        lambda text: json.dumps({**json.loads(text), "points": None}),
        lambda text: json.dumps({**json.loads(text), "points": [1]}),
    ],
)
def test_files_that_are_none(tmp_path: Path, spoil: object) -> None:
    file = tmp_path / "one.json"
    write(file, STUDY)
    file.write_text(spoil(file.read_text()))  # type: ignore[operator]
    with pytest.raises(UsageError, match=r"one\.json"):
        read(file)


def test_the_table_has_every_point() -> None:
    rows = [one.split() for one in lines(STUDY) if not one.startswith("#")]
    assert [one[:4] for one in rows[:2]] == [["1", "2", "1K", "10.0"], ["2", "4", "1K", "20.0"]]
    assert [one[-3:] for one in rows[:2]] == [["100", "200", "ring"], ["75", "200", "ring"]]
    assert len(rows) == len(POINTS)


def test_what_limits_a_simulated_point() -> None:
    busy = replace(POINTS[0], used={"network out": 0.9, "NVLink": 0.2})
    assert busy.limit == "network out"
    assert replace(POINTS[0], used={"network out": 0.3}).limit == "latency"
    assert POINTS[0].limit == ""
    study = STUDY.with_points([busy])
    assert next(one for one in lines(study) if not one.startswith("#")).endswith("ring; network out 90 %")
    (row, *_) = csv.DictReader(io.StringIO(as_csv([study])))
    assert (row["limit"], row["used"]) == ("network out", "network out=0.900 NVLink=0.200")


def test_wrong_elements_are_seen_in_the_table() -> None:
    spoiled = STUDY.with_points([replace(POINTS[0], wrong=3)])
    assert spoiled.wrong == 3
    assert "3 WRONG" in next(one for one in lines(spoiled) if not one.startswith("#"))


def test_comma_separated_values() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv([STUDY]))))
    assert len(rows) == len(POINTS)
    assert [float(one["kept"]) for one in rows[:3]] == pytest.approx([1.0, 0.75, 0.5])


FIGURES = ("busbw", "kept", "time", "used", "against", "model")


class Page(HTMLParser):
    """What a page would load, and how often each element is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href") and tag != "use"]


def test_the_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (docs/dependencies.md)")
    points = tuple(replace(one, used={"network out": 0.9, "NVLink": 0.2}) for one in POINTS)
    priced = replace(STUDY, kind=SIMULATED, source="<dgx> & co", points=points)
    page = write_report(tmp_path / "report", [STUDY, priced])
    text = page.read_text()
    parser = Page()
    parser.feed(text)
    assert parser.tags.count("svg") == 6
    assert parser.tags.count("table") == 2
    assert all(one.startswith(("data:", "#")) for one in parser.loads)  # it opens without a network
    assert "<dgx>" not in text
    assert "&lt;dgx&gt;" in text
    files = {one.name for one in page.parent.iterdir()}
    figures = {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert files == {"index.html", "points.csv", *figures}
    for name in figures:
        begin = (page.parent / name).read_bytes()[:5]
        assert begin == (b"\x89PNG\r" if name.endswith("png") else b"<svg ")


def test_a_report_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no points"):
        write_report(tmp_path, [replace(STUDY, points=())])
