"""Questions to NVML, with a stand-in for nvidia-ml-py in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hpccoll.topology.hardware.detect import detect_host
from hpccoll.topology.hardware.domains import gpu_domains
from hpccoll.topology.hardware.files import Files
from hpccoll.topology.hardware.model import Fabric, Gpu, NvLink
from hpccoll.topology.hardware.nvml import read_gpus


class NVMLError(Exception):
    """The base of NVML's errors."""


class NotSupportedError(NVMLError):
    """A question that this card does not answer."""


class Fake(ModuleType):
    """Two cards joined by two links, a third alone; `lacking`: questions that this driver does not know."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NotSupportedError
    NVMLError_InvalidArgument = type("NVMLError_InvalidArgument", (NVMLError,), {})
    NVML_NVLINK_MAX_LINKS = 36
    NVML_SUCCESS = 0
    NVML_FI_DEV_NVLINK_GET_SPEED = 164
    NVML_FI_DEV_C2C_LINK_COUNT, NVML_FI_DEV_C2C_LINK_GET_MAX_BW = 170, 172

    def __init__(self, lacking: tuple[str, ...] = (), init: Exception | None = None) -> None:
        super().__init__("pynvml")
        self.lacking, self.init, self.open = lacking, init, 0

    def nvmlInit(self) -> None:  # noqa: N802  (the names are NVML's)
        if self.init is not None:
            raise self.init
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlSystemGetDriverVersion": lambda: b"570.86.15",
            "nvmlSystemGetCudaDriverVersion": lambda: 12080,
            "nvmlDeviceGetCount": lambda: 3,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetName": lambda handle: "NVIDIA Test",
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"00000000:0{handle + 1}:00.0"),
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
            "nvmlDeviceGetMigMode": lambda handle: [handle == 2, 0],
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 << 30),
            "nvmlDeviceGetNvLinkState": self.state,
            "nvmlDeviceGetNvLinkVersion": lambda handle, link: 6,
            "nvmlDeviceGetNvLinkRemoteDeviceType": lambda handle, link: 0,
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda handle, link: SimpleNamespace(
                busId=f"00000000:0{2 - handle}:00.0".encode()
            ),
            "nvmlDeviceGetFieldValues": self.values,
            "nvmlDeviceGetP2PStatus": lambda one, other, caps: 0 if {one, other} == {0, 1} else 4,
            "c_nvmlGpuFabricInfoV_t": self.fabric_type(),
            "nvmlDeviceGetGpuFabricInfoV": lambda handle, found: None,
            "nvmlDeviceGetNumaNodeId": self.unsupported,
        }
        if name not in answers or name in self.lacking:
            raise AttributeError(name)
        return answers[name]

    def state(self, handle: int, link: int) -> int:
        if link >= 3 or handle == 2:
            raise NotSupportedError
        return int(link < 2)

    def unsupported(self, *_: Any) -> None:
        raise NotSupportedError

    def values(self, handle: int, fields: list[tuple[int, int]]) -> list[SimpleNamespace]:
        ((number, _),) = fields
        value = SimpleNamespace(uiVal=26562, ullVal=0)
        return [SimpleNamespace(nvmlReturn=0 if number == 164 else 3, valueType=1, value=value)]

    @staticmethod
    def fabric_type() -> Any:
        import ctypes

        class Info(ctypes.Structure):
            _fields_ = (
                ("clusterUuid", ctypes.c_uint8 * 16),
                ("cliqueId", ctypes.c_uint32),
                ("state", ctypes.c_uint8),
                ("healthMask", ctypes.c_uint32),
            )

        return lambda: Info((ctypes.c_uint8 * 16)(*range(16)), 5, 3, 0)


def ask(monkeypatch: pytest.MonkeyPatch, fake: Fake | None) -> tuple[tuple[Any, ...], Files]:
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    files = Files("/")
    return read_gpus(files), files


def test_everything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    (driver, cuda, gpus), files = ask(monkeypatch, fake)
    assert (driver, cuda, len(gpus), files.unknown, fake.open) == ("570.86.15", "12.8", 3, [], 0)
    cluster = bytes(range(16)).hex()
    assert gpus[0] == Gpu(
        index=0, uuid="GPU-0", name="NVIDIA Test", address="0000:01:00.0",
        memory_bytes=80 << 30, capability=9.0, mig=False,
        links=(
            NvLink(0, True, 4.0, "gpu", "0000:02:00.0", 26562),
            NvLink(1, True, 4.0, "gpu", "0000:02:00.0", 26562),
            NvLink(2, False, 4.0),
        ),
        p2p=(("GPU-1", "ok"), ("GPU-2", "disabled by registry key")),
        fabric=Fabric("completed", cluster, 5, 0),
    )  # fmt: skip
    assert gpus[2].links == ()
    assert gpus[2].mig is True


@pytest.mark.parametrize(
    ("lacking", "noted"),
    [
        ("nvmlDeviceGetMemoryInfo", ["gpus 0 memory_bytes", "gpus 1 memory_bytes", "gpus 2 memory_bytes"]),
        ("nvmlDeviceGetGpuFabricInfoV", []),
        ("nvmlDeviceGetP2PStatus", []),
        ("nvmlSystemGetDriverVersion", ["driver"]),
    ],
)
def test_an_older_driver(monkeypatch: pytest.MonkeyPatch, lacking: str, noted: list[str]) -> None:
    (_, _, gpus), files = ask(monkeypatch, Fake((lacking,)))
    assert len(gpus) == 3
    assert [one.what for one in files.unknown] == noted


def test_without_package_or_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    found, files = ask(monkeypatch, None)
    assert found == (None, None, ())
    assert files.unknown[0].reason == "the package nvidia-ml-py is not installed"
    found, files = ask(monkeypatch, Fake(init=NVMLError("Driver Not Loaded")))
    assert found == (None, None, ())
    assert files.unknown[0].reason == "NVML: Driver Not Loaded"


def test_what_is_recorded_is_read_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from hpccoll.topology.hardware.document import encode

    (driver, cuda, gpus), _ = ask(monkeypatch, Fake())
    record = {"driver": driver, "cuda": cuda, "gpus": [encode(gpu) for gpu in gpus]}
    (tmp_path / "nvml.json").write_text(json.dumps(record))
    host = detect_host(tmp_path)
    assert (host.driver, host.cuda, host.gpus) == (driver, cuda, gpus)
    assert len(set(gpu_domains(host).values())) == 2
