"""The table as a file: what is written is read again, and what a person broke in it is named."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hpccoll.errors import UsageError
from hpccoll.plans.measured import MEMORIES, DeviceFacts
from hpccoll.tuning import place
from hpccoll.tuning.fingerprint import layout_part
from hpccoll.tuning.table import Entry, Row, Table, from_toml, to_toml
from tests.tuning.cases import FINGERPRINT, table

TABLE = Table(
    FINGERPRINT,
    (
        Entry("host", "allreduce", 8, (Row("one_shot", 12.5, 12.0, 13.0), Row("ring", 40.0, 39.0, 44.0))),
        Entry("host", "allreduce", 65536, (Row("ring", 400.0, 390.0, 440.0, "ring"),)),
        Entry("device", "allgather", 64, (Row("flat", 1e6, 9e5, 2e6),)),
    ),
    {"network_gbs": 1.25, "network_latency_us": 30.0},
    DeviceFacts(23004, ("4 x a device",)),
    {"date": "2026-12-01", "command": 'hpccoll tune "x"\\', "rounds": 15},
)
TEXT = to_toml(TABLE)


def test_what_is_written_is_read_again() -> None:
    assert from_toml(TEXT, "file") == TABLE
    assert to_toml(from_toml(TEXT, "file")) == TEXT


def test_selection_reads_times_by_size_and_links() -> None:
    found = TABLE.measured("file")
    assert set(found.curves) == {("host", "allreduce"), ("device", "allgather")}
    assert {name: round(one.time_s * 1e6, 6) for name, one in found.times("allreduce", 8).items()} == {
        "one_shot": 12.5, "ring": 40.0
    }  # fmt: skip
    assert set(found.times("allreduce", 65536)) == {"ring"}
    assert found.times("allgather", 64) == {}
    assert set(found.times("allgather", 64, MEMORIES[1])) == {"flat"}
    assert (found.links.network_gbs, found.links.network_latency_us) == (1.25, 30.0)
    assert found.links.memory_gbs == type(found.links)().memory_gbs


def test_a_person_may_leave_out_what_is_not_needed() -> None:
    text = re.sub(r", low_us = [0-9.]+, high_us = [0-9.]+", "", TEXT)
    text = text[: text.index("[run]")] + text[text.index("[[measured]]") :]
    row = from_toml(text, "file").entries[0].rows[0]
    assert (row.time_us, row.low_us, row.high_us) == (12.5, 12.5, 12.5)


BROKEN = {
    "form": ("form = 1", "form = 2", r"file: form is 2: must be 1"),
    "no TOML": ("form = 1", "form = ", r"file: not TOML: .*line 4"),
    "plan": (
        '"one_shot"',
        '"ones_hot"',
        r"line 34: \[\[measured\]\] allreduce of 8 bytes: plan is 'ones_hot'",
    ),
    "plan of another": ('"one_shot"', '"chain"', r"plan is 'chain': must be one of flat, one_shot, ring"),
    "negative": (
        "time_us = 12.5",
        "time_us = -12.5",
        r"plan one_shot: time_us is -12.5: must be a number above 0",
    ),
    "zero": ("time_us = 12.5", "time_us = 0", r"time_us is 0: must be a number above 0"),
    "text": ("time_us = 12.5", 'time_us = "12"', r"time_us is '12': must be a number above 0"),
    "truth": ("time_us = 12.5", "time_us = true", r"time_us is True: must be a number above 0"),
    "not finite": ("time_us = 12.5", "time_us = inf", r"time_us is inf: must be a number above 0"),
    "no time": ("time_us = 12.5, ", "", r"plan one_shot: time_us is missing"),
    "order": (
        "low_us = 12.0",
        "low_us = 12.6",
        r"time_us is 12.5: must lie between low_us, 12.6, and high_us, 13",
    ),
    "field": ("low_us = 12.0", "lo_us = 12.0", r"'lo_us' is unknown; there are plan, time_us, low_us"),
    "twice": ('"one_shot"', '"ring"', r"allreduce of 8 bytes: plan is 'ring': is there twice"),
    "collective": (
        '"allreduce"',
        '"allreduces"',
        r"collective is 'allreduces': must be one of allreduce, reduce",
    ),
    "barrier": ('"allreduce"', '"barrier"', r"collective is 'barrier'"),
    "memory": (
        '"device"',
        '"gpu"',
        r"line 51: \[\[measured\]\] memory is 'gpu': must be one of host, device",
    ),
    "bytes": ("bytes = 8\n", "bytes = 0\n", r"bytes is 0: must be from 1 to"),
    "size twice": ("bytes = 65536\n", "bytes = 8\n", r"bytes is 8: allreduce has this size twice"),
    "link": ("network_gbs = 1.25", "network_gbs = -1.0", r"line 26: \[links\] network_gbs is -1.0"),
    "link unknown": ("network_gbs", "network_gb", r"\[links\] 'network_gb' is unknown"),
    "nccl": ("nccl = 23004", 'nccl = "2.30"', r"line 30: \[device\] nccl is '2.30': must be a whole number"),
    "names": ('names = ["4 x', 'names = [4, "4 x', r"\[device\] names is .*: must be a list of texts"),
    "machine": ("extension = true\n", "", r"line 6: \[machine\] extension is missing: must be true or false"),
    "setting": (
        "small_bytes = 4096",
        "small_bytes = 4096.0",
        r"small_bytes is 4096.0: must be a whole number",
    ),
    "no machine": ("[machine]", "[engine]", r"file: 'engine' is unknown"),
    "plans": ("plans = [", "plans = 3 #", r"not TOML"),
    "sections": ("[[measured]]", "[measured]", r"not TOML|must be sections"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_is_named(what: str) -> None:
    old, new, said = BROKEN[what]
    assert old in TEXT
    with pytest.raises(UsageError, match=said) as caught:
        from_toml(TEXT.replace(old, new, 1), "file")
    assert str(caught.value).startswith("file")


def test_any_cut_or_changed_text_is_read_or_refused() -> None:
    """Nothing else is raised."""
    for at in range(0, len(TEXT), 7):
        for text in (TEXT[:at], TEXT[:at] + "#" + TEXT[at:], TEXT[:at] + "[1]" + TEXT[at + 9 :]):
            with suppress(UsageError):
                from_toml(text, "file").measured("file")


def test_a_newer_table_replaces_collectives_and_keeps_the_others() -> None:
    newer = table(ring=10.0)
    merged = TABLE.updated(newer)
    assert [(one.memory, one.collective, one.nbytes) for one in merged.entries] == [
        ("device", "allgather", 64), ("host", "allreduce", 65536)
    ]  # fmt: skip
    assert merged.links == {"network_gbs": 1.25, "network_latency_us": 30.0}
    assert from_toml(to_toml(merged), "file") == merged


# --- where --------------------------------------------------------------------------------------


def test_the_directory() -> None:
    assert place.directory({"HOME": "/home/me"}) == Path("/home/me/.config/hpccoll/tuning")
    assert place.directory({"HOME": "/home/me", "XDG_CONFIG_HOME": "/else"}) == Path("/else/hpccoll/tuning")
    assert place.directory({"HOME": "/h", "XDG_CONFIG_HOME": "relative"}) == Path("/h/.config/hpccoll/tuning")
    assert place.directory({}) is None


def test_where_a_table_is_written() -> None:
    environ = {"HOME": "/home/me"}
    name = FINGERPRINT.file_name
    assert place.path_for(FINGERPRINT, "", environ) == Path("/home/me/.config/hpccoll/tuning", name)
    assert place.path_for(FINGERPRINT, "/d", environ) == Path("/d", name)
    assert place.path_for(FINGERPRINT, "/d/f.toml", environ) == Path("/d/f.toml")
    for setting, without in (("off", environ), ("", {})):
        with pytest.raises(UsageError, match="--output"):
            place.path_for(FINGERPRINT, setting, without)


def test_every_difference_has_a_file_of_its_own_and_is_named() -> None:
    others = {
        "hpccoll": replace(FINGERPRINT, hpccoll="0.2.0"),
        "layout": replace(FINGERPRINT, layout="4"),
        "hardware": replace(FINGERPRINT, hardware=("1 x another",)),
        "mpi": replace(FINGERPRINT, mpi="Open MPI 5.0.11"),
        "extension": replace(FINGERPRINT, extension=False),
        "checks": replace(FINGERPRINT, settings={**FINGERPRINT.settings, "checks": "off"}),
    }
    assert FINGERPRINT.differences(replace(FINGERPRINT)) == []
    assert len({one.file_name for one in (FINGERPRINT, *others.values())}) == 1 + len(others)
    for name, other in others.items():
        (said,) = FINGERPRINT.differences(other)
        assert said.startswith(f"{name}: ")
    assert all(one.file_name.startswith(layout_part(one.layout) + "-") for one in others.values())
    assert layout_part("nodes:0,1,0,1") != layout_part("nodes:0,1,1,0")


def test_a_table_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "table.toml"
    place.write(TABLE, path)
    place.write(table(ring=1.0), path)
    assert from_toml(path.read_text(), "file") == table(ring=1.0)
    assert [one.name for one in path.parent.iterdir()] == ["table.toml"]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write"):
        place.write(TABLE, tmp_path / "file" / "table.toml")
    with pytest.raises(UsageError, match="cannot write"):
        place.check_writable(tmp_path / "file" / "table.toml")
