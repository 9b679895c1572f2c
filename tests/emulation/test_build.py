"""Building and loading the CUDA stand-in, and that it never stands beside a real driver."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.emulation import build, load

needs_stand_in = pytest.mark.skipif(
    build.missing() is not None, reason=f"no CUDA stand-in: {build.missing()}"
)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder() -> Path:
    return build.build()


def run(*command: str, **more: object) -> subprocess.CompletedProcess[str]:
    child = load.environment(**more)
    return subprocess.run(command, cwd=ROOT, env=child, capture_output=True, text=True, timeout=60)


@needs_stand_in
def test_the_libraries_have_the_names_that_are_looked_for(folder: Path) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2"):
        said = subprocess.run(["readelf", "-d", folder / name], capture_output=True, text=True, check=True)
        assert f"soname: [{name}]" in said.stdout


@needs_stand_in
def test_only_entry_points_are_visible(folder: Path) -> None:
    said = subprocess.run(
        ["nm", "-D", "--defined-only", folder / "libcuda.so.1"], capture_output=True, text=True
    )
    names = [line.split()[-1] for line in said.stdout.splitlines()]
    assert len(names) > 600
    strange = [name for name in names if not name.startswith(("cu", "standin_"))]
    assert strange == []
    assert {name for name in names if name.startswith("standin_")} == {"standin_host_view", "standin_break"}


@needs_stand_in
def test_it_is_built_once(folder: Path) -> None:
    before = (folder / "libcuda.so.1").stat().st_mtime_ns
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: build.build(), range(4))) == {folder}
    assert (folder / "libcuda.so.1").stat().st_mtime_ns == before


@needs_stand_in
def test_a_change_of_a_source_gives_another_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = build.includes()
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b" " * (path.name == "queue.c"))
    assert build.fingerprint(headers) != folder.name


@needs_stand_in
def test_what_the_compiler_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "OUTPUT", tmp_path)
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-Dmake_stream=!"])
    with pytest.raises(RuntimeError, match=r"error: expected identifier"):
        build.build()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_without_the_wheels_it_says_which_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "header_folder", lambda package, header: None)
    with pytest.raises(RuntimeError, match="nvidia-cuda-runtime-cu12"):
        build.build()


@needs_stand_in
def test_bindings_of_another_cuda_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_version", lambda package: "13.0.1")
    with pytest.raises(RuntimeError, match=r"cuda-bindings 13\.0\.1"):
        build.build()


@pytest.mark.parametrize("sign", ["/dev/nvidia0", "/dev/nvidiactl", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"])
def test_it_stays_away_from_a_real_driver(sign: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path == sign or exists(path))
    with pytest.raises(RuntimeError, match=sign):
        load.load(tmp_path)
    with pytest.raises(RuntimeError, match=rf"({sign}|is not installed|no gcc)"):
        build.build()


def test_a_driver_in_the_library_path_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=str(tmp_path)):
        load.refuse_real_driver()


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    if load.real_driver():
        pytest.skip("needs a machine without a GPU")
    with pytest.raises(RuntimeError, match="holds no stand-in"):
        load.load(tmp_path)


@needs_stand_in
def test_a_child_has_it_without_being_told() -> None:
    code = "import ctypes; c = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); print(c.cuInit(0), \
        c.cuDeviceGetCount(ctypes.byref(n)), n.value)"
    assert run(sys.executable, "-c", code, devices=3).stdout.split() == ["0", "0", "3"]


@needs_stand_in
def test_a_child_that_cannot_load_it_ends() -> None:
    done = run(sys.executable, "-c", "print('on')", STANDIN_FOLDER="/nowhere")
    assert done.returncode == 70
    assert "/nowhere holds no stand-in" in done.stderr
    assert done.stdout == ""


@needs_stand_in
def test_this_process_stays_clean(folder: Path) -> None:
    with pytest.raises(OSError, match="libcuda"):
        ctypes.CDLL("libcuda.so.1")


@needs_stand_in
def test_the_command_line(folder: Path) -> None:
    names = ["STANDIN_MODE", "STANDIN_DEVICES", "STANDIN_SEED"]
    code = f"import os; print(*map(os.environ.get, {names}))"
    command = [
        sys.executable,
        "-m",
        "tests.emulation",
        "--devices",
        "2",
        "--mode",
        "delay",
        sys.executable,
        "-c",
        code,
    ]
    child = {**os.environ, "STANDIN_SEED": "7", "STANDIN_MODE": "eager"}
    done = subprocess.run(
        command, cwd=ROOT, env=child, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["delay", "2", "7"]
