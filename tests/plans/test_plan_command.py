"""`hpccoll plan`, and the sizes that commands take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hpccoll import cli
from hpccoll.cli.sizes import format_bytes, parse_bytes
from hpccoll.errors import UsageError
from tests.support.launch import REPOSITORY


@pytest.fixture(autouse=True)
def default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAYOUT", "ALGORITHM", "SMALL_BYTES", "SEGMENT_BYTES", "CHUNK_BYTES", "REPRODUCIBLE"):
        monkeypatch.delenv(f"HPCCOLL_{name}", raising=False)


def status(*arguments: str) -> int:
    return cli.main(["plan", *arguments])


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert status(*arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    found = json.loads(output(capsys, *arguments, "--json", "-"))
    assert isinstance(found, dict)
    return found


def test_it_prints_choice_candidates_levels_steps_and_time_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(
        capsys, "allreduce", "--layout", "4x8", "--bytes", "64M", "--algorithm", "scatter_rail_gather"
    )
    first, second, candidates, levels, steps, groups, line = text.strip().split("\n\n")
    assert first == "allreduce of 64 MiB (16777216 float32) on 4 nodes (4x8)"
    assert second.startswith("plan: scatter_rail_gather(")
    assert second.endswith("(asked for by name)")
    for name in (
        "flat",
        "ring",
        "tree",
        "recursive_doubling",
        "reduce_ring_broadcast",
        "scatter_rail_gather",
    ):
        assert f" {name}" in candidates
    assert candidates.count("->") == 1
    assert "-> scatter_rail_gather" in candidates
    assert "network (between)" in levels
    assert "(100663296)" in levels  # 2 (N-1)/N of 64 MiB: what leaves each of 4 nodes
    assert "reduce_scatter of chunk 0" in steps
    assert "RAIL:  8 of 4: 0,8,16,24 |" in groups
    assert line.startswith("NODE")


def test_json_says_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ("allreduce", "--layout", "2+2", "--bytes", "16M")
    found = document(capsys, *arguments)
    assert (found["collective"], found["layout"], found["bytes"], found["count"]) == (
        "allreduce",
        "2+2",
        1 << 24,
        1 << 22,
    )
    names = [one["name"] for one in found["candidates"]]  # type: ignore[attr-defined]
    assert found["chosen"] == names[0]
    times = [one["time_s"] for one in found["candidates"]]  # type: ignore[attr-defined]
    assert times == sorted(times)
    for step in found["steps"]:  # type: ignore[attr-defined]
        assert step["level"] in ("NODE", "network")
        assert all(earlier < len(found["steps"]) for earlier in step["after"])  # type: ignore[arg-type]
    file = tmp_path / "plan.json"
    text = output(capsys, *arguments, "--json", str(file))
    assert json.loads(file.read_text()) == found
    assert f"plan: {found['candidates'][0]['plan']} (" in text  # type: ignore[index]


def test_svg(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    output(capsys, "broadcast", "--layout", "3+1", "--bytes", "1M", "--root", "2", "--svg", str(file))
    assert ElementTree.fromstring(file.read_text()).tag.endswith("svg")


def test_the_program_of_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "allreduce", "--layout", "2", "--bytes", "32", "--algorithm", "ring", "--rank", "1")
    program = text[text.index("program of rank 1") :]
    assert "send input[" in program
    assert "combine scratch[" in program
    assert "to rank 0" in program
    text = output(capsys, "allreduce", "--layout", "2", "--bytes", "8", "--rank", "0")
    assert "rank 0 has no program" in text


@pytest.mark.parametrize(
    ("collective", "blocks"),
    [("allgather", 4), ("reduce_scatter", 4), ("gather", 4), ("scatter", 4), ("alltoall", 4),
     ("broadcast", 1), ("scan", 1), ("exscan", 1)],
)  # fmt: skip
def test_bytes_are_those_of_nccl_tests(
    capsys: pytest.CaptureFixture[str], collective: str, blocks: int
) -> None:
    found = document(capsys, collective, "--layout", "2+2", "--bytes", "1030", "--dtype", "int64")
    assert found["count"] == 1030 // 8 // blocks
    assert found["bytes"] == 1030 // 8 // blocks * blocks * 8


def test_sixteen_bit_sums_travel_as_float32(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--layout", "2+2", "--bytes", "1M", "--algorithm")
    half = document(capsys, "allreduce", *arguments, "ring", "--dtype", "bfloat16")
    single = document(capsys, "allreduce", *arguments, "ring")
    moved, wider = (one["steps"][0]["bytes_between_nodes"] for one in (single, half))  # type: ignore[index]
    assert wider == 2 * moved
    sent = document(capsys, "broadcast", *arguments, "chain", "--dtype", "bfloat16")["steps"][0]  # type: ignore[index]
    assert sent["bytes_between_nodes"] == 1 << 20


def test_settings_of_the_environment_count(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCCOLL_LAYOUT", "3+1")
    assert document(capsys, "allreduce", "--bytes", "8")["layout"] == "3+1"
    assert document(capsys, "allreduce", "--bytes", "8")["chosen"] == "one_shot"
    monkeypatch.setenv("HPCCOLL_SMALL_BYTES", "0")
    assert document(capsys, "allreduce", "--bytes", "8")["chosen"] != "one_shot"
    named = document(capsys, "allreduce", "--bytes", "8", "--algorithm", "one_shot")
    assert named["chosen"] == "one_shot"
    assert "a call would not take it: more than HPCCOLL_SMALL_BYTES=0 allows" in str(named["why"])


def test_plans_that_no_call_takes_are_shown_and_said_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("allreduce", "--layout", "2+2", "--algorithm")
    found = document(capsys, *arguments, "flat", "--bytes", "4G")
    assert (found["chosen"], found["candidates"][-1]["name"]) == ("flat", "flat")  # type: ignore[index]
    assert found["why"] == (
        "asked for by name; a call would not take it: more than the 2147483647 bytes of MPI's own call"
    )
    monkeypatch.setenv("HPCCOLL_REPRODUCIBLE", "1")
    ring = document(capsys, *arguments, "ring")
    assert str(ring["why"]).endswith("its bits depend on the layout, and HPCCOLL_REPRODUCIBLE is set")
    assert document(capsys, *arguments, "fold")["why"] == "asked for by name"


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter", "scan", "exscan"])
def test_the_reproducible_mode_has_the_plans_that_fold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, collective: str
) -> None:
    arguments = (collective, "--layout", "2+2", "--bytes", "1M")
    assert len(document(capsys, *arguments)["candidates"]) > 1  # type: ignore[arg-type]
    monkeypatch.setenv("HPCCOLL_REPRODUCIBLE", "1")
    found = document(capsys, *arguments)
    assert found["chosen"] == ("linear" if "scan" in collective else "fold")
    assert found["why"] == "lowest predicted time of the reproducible plans"
    # Whole numbers have the same bits in any order.
    assert document(capsys, *arguments, "--dtype", "int32")["why"] == "lowest predicted time"


@pytest.mark.parametrize(
    ("collective", "layout", "name", "words"),
    [
        ("gather", "3+1", "two_level", "gather of NODE, ranks 0-2: give input[0:64], get output[0:192]"),
        ("scatter", "3+1", "two_level", "send input[192:256] to rank 3"),
        ("alltoall", "2+2", "two_level", "send scratch[0:256] to rank 2"),
        ("alltoall", "2+2", "rail", "alltoall of NODE, ranks 0, 1"),
        ("scan", "2+2", "two_level", "scan of NODE, ranks 0, 1: give input[0:64], get output[0:64]"),
        ("exscan", "2+2", "linear", "send input[0:64] to rank 1"),
    ],
)
def test_every_collective(
    capsys: pytest.CaptureFixture[str], collective: str, layout: str, name: str, words: str
) -> None:
    size = str(64 * (1 if "scan" in collective else 4))
    arguments = (collective, "--layout", layout, "--bytes", size, "--dtype", "uint8", "--algorithm", name)
    text = output(capsys, *arguments, "--rank", "0")
    assert text.startswith(f"{collective} of {size} B (")
    assert f"plan: {name}" in text
    assert words in text


def test_what_is_only_moved_is_counted_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--layout", "2+2", "--bytes", "1K", "--rank", "1", "--dtype", "complex64")
    moved = output(capsys, "alltoall", *arguments, "--algorithm", "direct")
    assert moved.startswith("alltoall of 1 KiB (4 x 32 complex64)")
    assert "0 bytes of scratch; places count bytes" in moved
    assert "send input[512:768] to rank 2" in moved
    summed = output(capsys, "scan", *arguments, "--algorithm", "linear")
    assert summed.startswith("scan of 1 KiB (128 complex64)")
    assert "128 complex64 of scratch; places count complex64" in summed


def test_a_barrier(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "barrier", "--layout", "2+2")
    assert text.startswith("barrier on 2 nodes (2+2)\n\nplan: one_shot")
    assert "no steps: the agreement" in text


def test_a_machine_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("allgather", "--machine", "dgx-h100", "--nodes", "16", "--bytes", "16M")
    text = output(capsys, *arguments)
    assert text.startswith(
        "allgather of 16 MiB (128 x 32768 float32) on 16 nodes (16x8) of dgx-h100: 8 H100, 8 NDR cards\n"
    )
    unsure = "rail is predicted 1.74 times as fast, and below 1.94 that is not sure"
    assert f"plan: flat (NCCL's own call: {unsure})" in text
    sure = output(capsys, *arguments[:-1], "1M")
    assert "plan: rail(native) (predicted 1.84 times as fast as NCCL's own call; 1.72 is enough)" in sure
    assert "ring" not in text
    assert "the check" not in text
    found = document(capsys, *arguments)
    assert (found["machine"], found["layout"]) == ("dgx-h100", "16x8")
    assert {one["name"] for one in found["candidates"]} == {"flat", "rail", "two_level"}  # type: ignore[attr-defined]
    # The steps' times are those of the machine too.
    last = max(step["start_s"] + step["time_s"] for step in found["steps"])  # type: ignore[attr-defined]
    assert last == pytest.approx(found["candidates"][0]["time_s"], abs=1e-11)  # type: ignore[index]
    assert document(capsys, *arguments, "--gpus", "4")["layout"] == "16x4"
    assert document(capsys, "scan", "--machine", "cpu-hdr", "--ranks", "64")["layout"] == "64"
    assert document(capsys, "scan", "--layout", "2+2")["machine"] == "plain"


def test_sums_of_16_bits_travel_as_they_are_on_devices(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("allreduce", "--dtype", "float16", "--bytes", "64M", "--algorithm", "scatter_rail_gather")
    on_gpus, on_hosts = (
        document(capsys, *arguments, "--machine", machine, "--nodes", "4", "--ranks", "8")["candidates"]
        for machine in ("dgx-h100", "plain")
    )
    sent = 2 * 3 / 4 * (64 << 20)
    assert on_gpus[0]["bytes_between_nodes"] in (sent, 2 * (64 << 20))  # type: ignore[index]  # a ring's, a tree's
    assert on_hosts[0]["bytes_between_nodes"] == 2 * sent  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["allreduce"], "--layout is needed (or HPCCOLL_LAYOUT, or --nodes)"),
        (
            ["allreduce", "--machine", "cray-1", "--nodes", "2"],
            "--machine: no machine 'cray-1'; there are plain",
        ),
        (["allreduce", "--layout", "2", "--nodes", "2"], "--layout goes without --nodes and --gpus"),
        (["allreduce", "--machine", "dgx-h100", "--gpus", "9"], "9 ranks a node: dgx-h100 has 8 GPUs in one"),
        (["scan", "--machine", "dgx-h100", "--nodes", "2"], "--machine is dgx-h100: NCCL has no scan"),
        (
            ["allreduce", "--machine", "dgx-h100", "--nodes", "2", "--algorithm", "ring"],
            "'ring' of allreduce does not consist of NCCL's calls",
        ),
        (["allreduce", "--layout", "4y8"], '--layout: layout "4y8"'),
        (["allreduce", "--layout", "2", "--bytes", "1Q"], "--bytes: size '1Q'"),
        (["allreduce", "--layout", "2", "--bytes", "-1"], "--bytes: size '-1'"),
        (
            ["allreduce", "--layout", "3+1", "--algorithm", "scatter_rail_gather"],
            "does not exist on layout 3+1",
        ),
        (["allreduce", "--layout", "2", "--algorithm", "magic"], "allreduce has no algorithm 'magic'"),
        (["reduce", "--layout", "2", "--root", "2"], "--root is 2: layout 2 has ranks 0 to 1"),
        (["allreduce", "--layout", "2", "--rank", "-1"], "--rank is -1"),
        (
            ["allreduce", "--layout", "2", "--dtype", "string"],
            "--dtype is 'string': must be one of bool, int8",
        ),
        (["allreduce", "--layout", "2", "--dtype", "bool"], "a sum of truth values"),
        (["allreduce", "--layout", "2", "--svg", "/nowhere/x.svg"], "cannot write /nowhere/x.svg"),
        (["allreduce", "--layout", "2", "--json", "/nowhere/x.json"], "cannot write /nowhere/x.json"),
    ],
)
def test_misuse_is_two_and_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert status(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hpccoll plan: ")
    assert words in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["transpose", "--layout", "2"], ["reduce", "--layout", "2", "--root", "x"], []]
)
def test_what_the_parser_refuses(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        status(*arguments)
    assert ended.value.code == 2
    assert "usage: hpccoll plan" in capsys.readouterr().err


def test_it_runs_where_mpi4py_cannot_be_imported() -> None:
    program = f"""
import argparse, sys, types
package = types.ModuleType("hpccoll")
package.__path__ = [{str(REPOSITORY / "hpccoll")!r}]
sys.modules.update(hpccoll=package, mpi4py=None)
cli = types.ModuleType("hpccoll.cli")
cli.__path__ = [{str(REPOSITORY / "hpccoll" / "cli")!r}]
sys.modules["hpccoll.cli"] = cli
from hpccoll.cli import plan
parser = argparse.ArgumentParser()
plan.configure(parser)
sys.exit(plan.run(parser.parse_args(["allreduce", "--layout", "2+2", "--bytes", "1M"])))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("allreduce of 1 MiB")


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("8", 8), ("1K", 1024), ("1k", 1024), ("64M", 64 << 20), ("2G", 2 << 30), ("1T", 1 << 40),
     (" 16 M ", 16 << 20), ("3KiB", 3072), ("5B", 5)],
)  # fmt: skip
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "M", "1.5M", "-8", "1e6", "64X", "0x10", "1 0", "8M8", "9" * 19])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="must be a whole number of bytes") as refused:
        parse_bytes(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    "count", [0, 1, 8, 1000, 1024, 1536, 65536, 1 << 20, 3 << 30, 1 << 40, (1 << 40) + 1]
)
def test_a_size_is_read_back_as_it_was(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == count
    assert len(format_bytes(count)) <= len(str(count))
