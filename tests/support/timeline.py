"""A timeline's file looked at as a viewer does, and by the rules of its form."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROUNDING_US = 2e-3  # times have three digits behind the point


@dataclass
class Shown:
    """What a viewer shows: tracks by (process, name), each with its slices in the order of their begins."""

    about: dict[str, Any]
    processes: dict[int, str]
    tracks: dict[tuple[int, str], list[dict[str, Any]]]
    flows: list[tuple[dict[str, Any], dict[str, Any]]]

    def of(self, process: int, track: str) -> list[dict[str, Any]]:
        """The slices of all rows of a track."""
        found = [
            one
            for (number, name), slices in self.tracks.items()
            if number == process and (name == track or name.startswith(f"{track} ("))
            for one in slices
        ]
        return sorted(found, key=lambda one: one["ts"])


def shown(path: Path | str) -> Shown:
    """Read a file and check it: numbers, nesting in every row, flows that begin and end inside slices."""
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    processes: dict[int, str] = {}
    names: dict[tuple[int, int], str] = {}
    slices: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    ends: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for one in document["traceEvents"]:
        key = one["pid"], one["tid"]
        if one["ph"] == "M" and one["name"] == "process_name":
            processes[one["pid"]] = one["args"]["name"]
        elif one["ph"] == "M" and one["name"] == "thread_name":
            assert key not in names
            names[key] = one["args"]["name"]
        elif one["ph"] == "X":
            assert one["ts"] >= 0
            assert one["dur"] >= 0
            assert one["name"]
            slices[key].append(one)
        elif one["ph"] in "sf":
            assert one["ph"] not in ends[one["id"]]
            ends[one["id"]][one["ph"]] = one
        else:
            assert one["ph"] == "M"
    assert set(slices) <= set(names)
    assert len(set(names.values())) <= len(names)
    for row in slices.values():
        _check_nesting(row)
    for pair in ends.values():
        assert set(pair) == {"s", "f"}
        for one in pair.values():
            around = slices[one["pid"], one["tid"]]
            assert any(a["ts"] - ROUNDING_US <= one["ts"] <= a["ts"] + a["dur"] + ROUNDING_US for a in around)
    flows = [(pair["s"], pair["f"]) for pair in ends.values()]
    tracks = {(key[0], names[key]): row for key, row in slices.items()}
    return Shown(document["otherData"], processes, tracks, flows)


def _check_nesting(row: list[dict[str, Any]]) -> None:
    """Slices are in order, and each is inside the one around it or behind the one before."""
    open_: list[float] = []
    last = 0.0
    for one in row:
        assert one["ts"] >= last - ROUNDING_US, "slices of a row are not in the order of their begins"
        last = one["ts"]
        while open_ and open_[-1] <= one["ts"] + ROUNDING_US:
            open_.pop()
        end = one["ts"] + one["dur"]
        assert not open_ or end <= open_[-1] + ROUNDING_US, "two slices of a row overlap"
        open_.append(end)
