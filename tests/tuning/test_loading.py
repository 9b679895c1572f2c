"""The table that a communicator finds by itself: on all ranks or on none, and what wrong ones do."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.plans.measured import Time
from hpccoll.tuning.fingerprint import Fingerprint
from hpccoll.tuning.here import fingerprint_of
from hpccoll.tuning.place import directory, write
from hpccoll.tuning.table import from_toml, to_toml
from tests.support.launch import run_ranks
from tests.support.layouts import layouts
from tests.tuning.cases import table

ON = layouts({"": (1, 2), "2+1": (3,), "2+2": (4,)})


@pytest.fixture
def folder(world: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory in which rank 0 looks; the other ranks look into none."""
    shared = Path(world.bcast(str(tmp_path)))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(shared if world.rank == 0 else tmp_path / "elsewhere"))
    found = directory({"XDG_CONFIG_HOME": str(shared)})
    assert found is not None
    yield found
    world.Barrier()


def this_machine(world: MPI.Intracomm, layout: str) -> Fingerprint:
    with hpccoll.Communicator(world, layout=layout, tuning="off") as comm:
        return fingerprint_of(world, comm.machine, comm.config)


def other_plan(world: MPI.Intracomm, layout: str) -> tuple[str, str]:
    """The plan of an all-reduce of 64 KiB without measurements, and another that there is."""
    with hpccoll.Communicator(world, layout=layout, tuning="off") as comm:
        taken = comm.explain("allreduce", 65536).plan
        return taken, "tree" if taken != "tree" else "ring"


def lay(world: MPI.Intracomm, path: Path, made: Any) -> None:
    """Rank 0 writes."""
    if world.rank == 0:
        write(made, path)
    world.Barrier()


def sums(comm: hpccoll.Communicator) -> None:
    values = np.full(16384, comm.rank + 1.0, np.float32)
    total = np.empty_like(values)
    comm.Allreduce(values, total)
    assert (total == comm.size * (comm.size + 1) / 2).all()


@ON
def test_a_table_that_one_rank_sees_is_used_by_all(world: MPI.Intracomm, layout: str, folder: Path) -> None:
    priced, other = other_plan(world, layout)
    fingerprint = this_machine(world, layout)
    made = table(fingerprint, **{priced: 500.0, other: 100.0})
    lay(world, folder / fingerprint.file_name, made)
    with hpccoll.Communicator(world, layout=layout, tuning="") as comm:
        found = comm.explain("allreduce", 65536)
        sums(comm)
        assert comm.tally() == {("allreduce", other): 1}
    said = world.allgather((found.plan, found.why, found.source, found.candidates[0].measured))
    assert said == [said[0]] * world.size
    plan, why, source, time = said[0]
    assert plan == other
    assert why == f"measured: faster than {priced} (lowest predicted time)"
    assert source == str(folder / fingerprint.file_name)
    assert isinstance(time, Time)
    assert time.time_s == pytest.approx(100e-6)
    assert "100.0 us (99.0 to 101.0)" in str(found)
    assert "not measured" in str(found) or world.size == 1
    assert str(found).endswith(f"measured: {source}")


@ON
def test_without_a_table_the_price_decides(world: MPI.Intracomm, layout: str, folder: Path) -> None:
    for tuning in ("", "off"):
        with hpccoll.Communicator(world, layout=layout, tuning=tuning) as comm:
            found = comm.explain("allreduce", 65536)
            assert (found.why, found.source) == ("lowest predicted time", "")
            assert str(found).endswith("measured: nothing (hpccoll tune)")
            sums(comm)


@layouts({"": (2,), "2+1": (3,)})
def test_a_directory_or_a_file_by_name(world: MPI.Intracomm, layout: str, folder: Path) -> None:
    priced, other = other_plan(world, layout)
    fingerprint = this_machine(world, layout)
    place = folder.parent / "place"
    lay(world, place / fingerprint.file_name, table(fingerprint, **{priced: 500.0, other: 100.0}))
    lay(world, place / "mine.toml", table(fingerprint, **{priced: 50.0, other: 100.0}))
    for tuning, plan in ((place, other), (place / "mine.toml", priced), (folder / "none", priced)):
        with hpccoll.Communicator(world, layout=layout, tuning=str(tuning)) as comm:
            assert comm.explain("allreduce", 65536).plan == plan
            sums(comm)


@layouts({"": (2,), "2+1": (3,)})
def test_one_of_another_machine_is_not_used_and_that_is_said_once(
    world: MPI.Intracomm, layout: str, folder: Path
) -> None:
    priced, other = other_plan(world, layout)
    fingerprint = this_machine(world, layout)
    path = folder.parent / "theirs.toml"
    foreign = replace(fingerprint, hardware=("9 x something else",), mpi="Other MPI 1.0")
    lay(world, path, table(foreign, **{priced: 500.0, other: 100.0}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with hpccoll.Communicator(world, layout=layout, tuning=str(path)) as comm:
            found = comm.explain("allreduce", 65536)
            sums(comm)
            sums(comm)
    assert (found.plan, found.source) == (priced, "")
    said = [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]
    assert len(said) == (1 if world.rank == 0 else 0)
    for text in said:
        assert text.startswith(f"{path} is not used, as it was measured on another machine: here hardware: ")
        assert f"mpi: {fingerprint.mpi}, not Other MPI 1.0" in text
    # In the directory it is not even found: its name is another one's.
    lay(world, folder / foreign.file_name, table(foreign, **{priced: 500.0, other: 100.0}))
    with hpccoll.Communicator(world, layout=layout, tuning="") as comm:
        assert comm.explain("allreduce", 65536).plan == priced


@pytest.mark.ranks(3)
def test_a_part_of_the_world_goes_without_the_worlds_table(world: MPI.Intracomm, folder: Path) -> None:
    fingerprint = this_machine(world, "2+1")
    path = folder.parent / "worlds.toml"
    lay(world, path, table(fingerprint, ring=500.0))
    part = world.Split(world.rank // 2, world.rank)
    with hpccoll.Communicator(part, layout="2+1", tuning=str(path)) as comm:  # a warning would be an error
        assert comm.explain("allreduce", 65536).source == ""
        sums(comm)
    part.Free()


@layouts({"": (1, 2), "2+1": (3,)})
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'plan = "ring"',
            'plan = "rings"',
            r"line 27: \[\[measured\]\] allreduce of 65536 bytes: plan is 'rings'",
        ),
        ("time_us = 500.0", "time_us = -500.0", "plan ring: time_us is -500.0: must be a number above 0"),
        ("form = 1", "form = ", "not TOML"),
    ],
)
def test_a_wrong_one_is_refused_on_all_ranks(
    world: MPI.Intracomm, layout: str, folder: Path, old: str, new: str, said: str
) -> None:
    fingerprint = this_machine(world, layout)
    path = folder / fingerprint.file_name
    if world.rank == 0:
        write(table(fingerprint, ring=500.0), path)
        path.write_text(path.read_text().replace(old, new))
    world.Barrier()
    for tuning in ("", str(folder), str(path)):
        comm = hpccoll.Communicator(world, layout=layout, tuning=tuning)
        with pytest.raises(hpccoll.UsageError, match=said) as caught:
            comm.Barrier()
        assert world.allgather(str(caught.value)) == [str(caught.value)] * world.size
        assert str(path) in str(caught.value)
    with hpccoll.Communicator(world, layout=layout, tuning="off") as comm:
        sums(comm)


@layouts({"": (1, 2), "2+1": (3,)})
def test_a_file_that_is_not_there_is_refused_on_all_ranks(
    world: MPI.Intracomm, layout: str, folder: Path
) -> None:
    comm = hpccoll.Communicator(world, layout=layout, tuning=str(folder / "none.toml"))
    with pytest.raises(hpccoll.UsageError, match=r"tuning: .*none\.toml is not there"):
        comm.Barrier()


@layouts({"1+1": (2,)})
def test_every_plan_of_a_table_gives_the_right_sums(world: MPI.Intracomm, layout: str, folder: Path) -> None:
    """Also up to `small_bytes`, where payloads would travel with the check."""
    fingerprint = this_machine(world, layout)
    path = folder.parent / "chosen.toml"
    for name in ("flat", "ring", "tree", "recursive_doubling", "fold", "one_shot"):
        times = {"one_shot": 500.0, name: 100.0}
        made = table(fingerprint, **times)
        entries = tuple(replace(one, nbytes=nbytes) for one in made.entries for nbytes in (8, 4096))
        lay(world, path, replace(made, entries=entries))
        with hpccoll.Communicator(world, layout=layout, tuning=str(path)) as comm:
            for count in (1, 2, 3, 1000, 1024):
                values, total = np.full(count, comm.rank + 1.0, np.float32), np.empty(count, np.float32)
                for _ in range(3):
                    comm.Allreduce(values, total)
                    assert (total == 3.0).all(), (name, count)
            assert set(comm.tally()) == {("allreduce", name)}


# --- the command --------------------------------------------------------------------------------


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("ranks", "layout"), [pytest.param(2, "", marks=pytest.mark.slow), (3, "2+1")])
def test_the_command_measures_writes_and_is_believed(tmp_path: Path, ranks: int, layout: str) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path), "HPCCOLL_TUNING": "", "HPCCOLL_LAYOUT": layout}
    names = "allreduce,alltoall,exscan"
    flags = ["--collectives", names, "-b", "8", "-e", "8K", "-f", "32", "--rounds", "5", "--round-ms", "0.1"]
    done = run_ranks(ranks, ["-m", "hpccoll.cli", "tune", *flags, "--json", "-"], timeout_s=100, env=env)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "hpccoll" / "tuning").iterdir()
    found = from_toml(path.read_text(), str(path))
    assert path.name == found.fingerprint.file_name
    sizes = {
        name: [one.nbytes for one in found.entries if one.collective == name] for name in names.split(",")
    }
    assert sizes["allreduce"] == sizes["exscan"] == [8, 256, 8192]
    assert len(sizes["alltoall"]) == 2
    for entry in found.entries:
        plans = {row.plan for row in entry.rows}
        assert "flat" in plans
        assert ("one_shot" in plans) == (entry.nbytes < 8000)
        assert (layout != "") == bool(plans & {"two_level", "reduce_ring_broadcast"}), entry
        assert [row.time_us for row in entry.rows] == sorted(row.time_us for row in entry.rows)
    assert set(found.links) >= {"message_latency_us", "message_gbs"}
    assert ("network_gbs" in found.links) == (layout != "")
    assert len(json.loads(done.stdout)["entries"]) == len(found.entries)
    assert "100 %, 0 s left  exscan 8192 B: " in done.stderr
    assert "# link NODE" in done.stderr

    again = run_ranks(
        ranks, ["-m", "hpccoll.cli", "tune", *flags[2:], "--collectives", "broadcast"], timeout_s=100, env=env
    )
    assert again.returncode == 0, again.stderr
    both = from_toml(path.read_text(), str(path))
    assert {one.collective for one in both.entries} == {*names.split(","), "broadcast"}
    assert [one for one in both.entries if one.collective == "exscan"] == [
        one for one in found.entries if one.collective == "exscan"
    ]
    program = (
        "import hpccoll; from mpi4py import MPI; c = hpccoll.Communicator(MPI.COMM_WORLD); "
        "f = c.explain('allreduce', 1000); "
        "told = c.gather((f.source, f.candidates[0].measured is not None)); "
        "told and print(told); found = c.explain('allreduce', 8192).candidates; "
        "told and print({one.name: one.plan for one in found})"
    )
    told = run_ranks(ranks, ["-c", program], timeout_s=50, env=env)
    first, second = told.stdout.strip().splitlines()
    assert first == str([(str(path), True)] * ranks), told.stderr
    # What was measured of each plan is the variant that is taken of it.
    rows = next(one.rows for one in both.entries if (one.collective, one.nbytes) == ("allreduce", 8192))
    assert ast.literal_eval(second) == {row.plan: row.variant or row.plan for row in rows}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--collectives allreduces", "--collectives: 'allreduces' must be one of allreduce"),
        ("--collectives barrier", "--collectives: 'barrier'"),
        ("--rounds 2", "--rounds is 2: must be at least 5"),
        ("--round-ms 0", "--round-ms is '0'"),
        ("-b 4X", "--minbytes: size '4X'"),
        ("-d all", "-d/--datatype is 'all': must be one type"),
        ("--memory disk", "--memory is 'disk': must be host or device"),
        ("-o table.json", "-o/--output is 'table.json': must end in .toml"),
        ("", 'tuning is "off": give the file with --output'),
    ],
)
def test_misuse(
    flags: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpccoll import cli

    monkeypatch.setenv("HPCCOLL_TUNING", "off")
    assert cli.main(["tune", *flags.split()]) == cli.MISUSE
    assert said in capsys.readouterr().err


def test_one_of_another_machine_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from hpccoll import cli

    path = tmp_path / "theirs.toml"
    write(table(ring=1.0), path)
    before = path.read_text()
    assert cli.main(["tune", "-o", str(path)]) == cli.MISUSE
    assert f"{path} is of another machine, and stays: here " in capsys.readouterr().err
    path.write_text("form = 1 1")
    assert cli.main(["tune", "-o", str(path)]) == cli.MISUSE
    assert "not TOML" in capsys.readouterr().err
    path.write_text(before)
    assert to_toml(from_toml(before, "")) == path.read_text()
