"""The CUDA driver and NVML of the stand-in: rules of order, errors, captures, memory, in each mode.

All runs in child processes, as this one shall not have the stand-in loaded.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulation import build, load

HERE = Path(__file__).resolve().parent


def missing() -> str | None:
    """What keeps these tests from running."""
    for module in ("numpy", "cuda.bindings", "cuda.core", "pynvml"):
        try:
            found = importlib.util.find_spec(module)
        except ImportError:
            found = None
        if not found:
            return f"{module} is not installed"
    return build.missing()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=f"no CUDA stand-in: {missing()}"),
]


def case_names() -> list[str]:
    """From the sources: the modules need a CUDA driver to be imported."""
    names = []
    for path in sorted((HERE / "cases").glob("*.py")):
        functions = [
            node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        names += [name.removeprefix("case_") for name in functions if name.startswith("case_")]
    return names


def run(*command: str, **more: object) -> subprocess.CompletedProcess[str]:
    child = load.environment(**more)
    return subprocess.run(command, cwd=HERE.parents[1], env=child, capture_output=True, text=True, timeout=55)


@functools.cache
def answers(mode: str) -> dict[str, str]:
    """What each case said in this mode: nothing where it went well.

    The limit of the lazy mode is long here, as cases see what has *not* run, on machines that may be busy.
    """
    done = run(sys.executable, "-m", "tests.emulation.cases", mode=mode, memory_mib=8, lazy_us=400000)
    said: dict[str, str] = {}
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        if "begin" in answer:
            said[answer["begin"]] = (
                f"the process ended within this case, code {done.returncode}\n{done.stderr}"
            )
        else:
            said[answer["end"]] = answer["said"]
    return said


@pytest.mark.parametrize("mode", ["lazy", "eager", "delay"])
@pytest.mark.parametrize("name", case_names())
def test_case(name: str, mode: str) -> None:
    said = answers(mode).get(name, "it did not run")
    assert not said, said


# ---- what needs a process of its own

IDENTITIES = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, found = ctypes.c_int(), []
result = cuda.cuInit(0)
if not result:
    cuda.cuDeviceGetCount(ctypes.byref(count))
for i in range(count.value):
    text = ctypes.create_string_buffer(16)
    cuda.cuDeviceGetPCIBusId(text, 16, i)
    found.append(int(text.value.decode().split(":")[1], 16) - 1)
print(result, *found)
"""
UUIDS = """
import ctypes, uuid
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
for i in range(4):
    raw = ctypes.create_string_buffer(16)
    cuda.cuDeviceGetUuid_v2(raw, i)
    print("GPU-" + str(uuid.UUID(bytes=raw.raw)))
"""


def visible(text: str) -> list[int]:
    done = run(sys.executable, "-c", IDENTITIES, CUDA_VISIBLE_DEVICES=text, host="somewhere")
    return [int(word) for word in done.stdout.split()]


@functools.cache
def uuids(host: str) -> list[str]:
    return run(sys.executable, "-c", UUIDS, host=host).stdout.split()


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("2,0", [2, 0]),
        (" 3 ", [3]),
        ("1,9,2", [1]),  # the list ends at the first that there is not
        ("1,x", [1]),
    ],
)
def test_visible_devices(text: str, indices: list[int]) -> None:
    assert visible(text) == [0, *indices]


@pytest.mark.parametrize("text", ["", "-1", "NoDevFiles", "0,0", "MIG-1"])
def test_no_visible_devices(text: str) -> None:
    assert visible(text) == [100]


def test_visible_devices_by_uuid() -> None:
    names = uuids("somewhere")
    assert visible(f"{names[2]},{names[1]}") == [0, 2, 1]
    assert visible(names[3][:10]) == [0, 3]
    assert visible("GPU-") == [100]


def test_devices_of_other_hosts_are_others() -> None:
    assert len({*uuids("somewhere"), *uuids("elsewhere")}) == 8


TOUCH = """
import ctypes
from tests.emulation.cases import *
fresh()
target = full(3)
ctypes.memset(target, 0, 1)
"""


@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_the_host_may_not_touch_device_memory(mode: str) -> None:
    done = run(sys.executable, "-c", TOUCH, mode=mode)
    assert done.returncode == -signal.SIGSEGV
    assert "host code touched device memory" in done.stderr


def test_another_fault_is_left_to_others() -> None:
    done = run(sys.executable, "-X", "faulthandler", "-c", TOUCH.replace("memset(target", "memset(64"))
    assert done.returncode == -signal.SIGSEGV
    assert "device memory" not in done.stderr
    assert "ctypes.memset" not in done.stderr
    assert "Segmentation fault" in done.stderr


def test_what_is_missed_is_logged() -> None:
    code = "from tests.emulation.cases import *; fresh(); print(driver.cuTexRefCreate()[0].name)"
    done = run(sys.executable, "-c", code, log=1)
    assert done.stdout.strip() == "CUDA_ERROR_NOT_SUPPORTED"
    assert "cuTexRefCreate is not supported" in done.stderr
    assert "cuTexRefCreate" not in run(sys.executable, "-c", code).stderr


@pytest.mark.parametrize(("name", "value"), [("mode", "fast"), ("devices", "many"), ("lazy_us", "-1")])
def test_a_setting_that_is_wrong_is_named(name: str, value: str) -> None:
    done = run(sys.executable, "-c", IDENTITIES, **{name: value})
    assert done.returncode == -signal.SIGABRT
    assert f"STANDIN_{name.upper()}={value}" in done.stderr


SEEDS = """
from tests.emulation.cases import *
fresh()
marks, where = [event(0) for _ in range(9)], stream()
for mark in marks:
    ok(call_host(where, int))
    ok(driver.cuEventRecord(mark, where))
ok(driver.cuStreamSynchronize(where))
print(*(round(ok(driver.cuEventElapsedTime(marks[0], mark)) / 20) for mark in marks))
"""


def test_delays_follow_the_seed() -> None:
    """Compared in steps of 20 ms, as a busy machine adds to them."""
    ran = [
        run(sys.executable, "-c", SEEDS, mode="delay", delay_us=200000, seed=seed).stdout
        for seed in (5, 5, 6)
    ]
    first, again, other = ([int(word) for word in text.split()] for text in ran)
    assert max(abs(x - y) for x, y in zip(first, again, strict=True)) <= 1
    assert max(abs(x - y) for x, y in zip(first, other, strict=True)) > 1


LINKS = """
import pynvml as nvml
nvml.nvmlInit()
gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
for gpu in gpus:
    ends = []
    for link in range(18):
        try:
            if nvml.nvmlDeviceGetNvLinkState(gpu, link):
                ends.append(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).busId[9:11])
        except nvml.NVMLError_NotSupported:
            ends.append("none")
    linked = [nvml.nvmlDeviceGetP2PStatus(gpu, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0 for other in gpus]
    print(*sorted(set(ends)), *("yes" if x else "no" for x in linked))
"""


@pytest.mark.parametrize(
    ("nvlink", "lines"),
    [
        ("all", ["C0 yes yes yes"] * 3),
        ("none", ["none no no no"] * 3),
        ("0-2", ["03 no no yes", "none no no no", "01 yes no no"]),
    ],
)
def test_nvml_links(nvlink: str, lines: list[str]) -> None:
    assert run(sys.executable, "-c", LINKS, devices=3, nvlink=nvlink).stdout.splitlines() == lines


NVML = """
import ctypes, uuid
import pynvml as nvml
from tests.emulation.cases import *
fresh()
nvml.nvmlInit()
assert nvml.nvmlDeviceGetCount() == 4
for i, index in enumerate((2, 1)):
    name = uuid.UUID(bytes=bytes(ok(driver.cuDeviceGetUuid(i)).bytes))
    gpu = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{name}")
    assert nvml.nvmlDeviceGetIndex(gpu) == index
    bus = ok(driver.cuDeviceGetPCIBusId(13, i)).rstrip(b"\\0").decode()
    assert nvml.nvmlDeviceGetPciInfo(gpu).busIdLegacy == bus
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(bus.encode())) == index
    assert nvml.nvmlDeviceGetMemoryInfo(gpu).total == 8 << 20
    assert nvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
    fabric = nvml.c_nvmlGpuFabricInfoV_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(fabric))
    assert (fabric.state, fabric.cliqueId) == (nvml.NVML_GPU_FABRIC_STATE_COMPLETED, 3)
nvml.nvmlShutdown()
try:
    nvml.nvmlDeviceGetCount()
except nvml.NVMLError_Uninitialized:
    print("right")
"""


def test_nvml_knows_the_same_devices() -> None:
    done = run(sys.executable, "-c", NVML, CUDA_VISIBLE_DEVICES="2,1", memory_mib=8, fabric="rack:3")
    assert done.stdout.strip() == "right", done.stderr
