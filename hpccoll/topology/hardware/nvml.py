"""GPUs from NVML: as recorded in a file below the root, or from the driver of this machine.

`python -m hpccoll.topology.hardware.nvml > nvml.json` records them; a file `nvml.json` in a root directory
then stands for the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

from hpccoll.errors import UsageError
from hpccoll.topology.hardware.document import decode, encode
from hpccoll.topology.hardware.files import Files, printable
from hpccoll.topology.hardware.model import Fabric, Gpu, NvLink
from hpccoll.topology.hardware.pci import normal_address

RECORD = "nvml.json"

# nvmlDeviceGetNvLinkVersion gives a number of nvml.h, not the version.
_VERSIONS = {1: 1.0, 2: 2.0, 3: 2.2, 4: 3.0, 5: 3.1, 6: 4.0, 7: 5.0, 8: 6.0}
_PEERS = {0: "gpu", 1: "cpu", 2: "switch"}
_FABRIC_STATES = ("not supported", "not started", "in progress", "completed")
_P2P = (
    "ok",
    "chipset not supported",
    "GPU not supported",
    "topology not supported",
    "disabled by registry key",
    "not supported",
    "unknown",
)
_READ = 0  # NVML_P2P_CAPS_INDEX_READ, which in nvidia-ml-py is a tuple by mistake
_NO_CLUSTER = bytes(16)

T = TypeVar("T")


def read_gpus(files: Files) -> tuple[str | None, str | None, tuple[Gpu, ...]]:
    """The driver's version, the newest CUDA that it knows, and the GPUs; never raises."""
    if files.is_this_machine:
        return _from_driver(files)
    if not files.exists(RECORD):
        files.note("gpus", f"no {RECORD}: NVML was not recorded")
        return None, None, ()
    try:
        found = json.loads(files.raw(RECORD, "gpus") or b"")
        if not isinstance(found, dict) or not isinstance(found.get("gpus"), list):
            raise UsageError("must be an object with a list of gpus")
        gpus = tuple(decode(Gpu, one, f"gpus[{place}]") for place, one in enumerate(found["gpus"]))
        driver, cuda = (_text(found, name) for name in ("driver", "cuda"))
    except (ValueError, RecursionError) as error:  # UsageError too
        files.note("gpus", f"{RECORD}: {str(error)[:200]}")
        return None, None, ()
    return driver, cuda, gpus


@cache
def joined_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine with what joins them, NVLinks and fabric, alone; () without a driver.

    Quicker than `read_gpus`, and read once: each first call of a communicator may ask.
    """
    try:
        ctypes.CDLL("libnvidia-ml.so.1")  # at once where there is none: the package takes a while to import
        import pynvml
    except (ImportError, OSError):
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return _Asking(pynvml, Files()).joined()
    except pynvml.NVMLError:
        return ()
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _text(found: dict[str, Any], name: str) -> str | None:
    value = found.get(name)
    if value is not None and not (isinstance(value, str) and printable(value)):
        raise UsageError(f"{name} must be a text")
    return value


def _from_driver(files: Files) -> tuple[str | None, str | None, tuple[Gpu, ...]]:
    try:
        import pynvml
    except ImportError:
        files.note("gpus", "the package nvidia-ml-py is not installed")
        return None, None, ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        files.note("gpus", f"NVML: {error}")
        return None, None, ()
    try:
        return _Asking(pynvml, files).everything()
    except pynvml.NVMLError as error:
        files.note("gpus", f"NVML: {error}")
        return None, None, ()
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class _Asking:
    """Questions to NVML, whose failures are noted."""

    def __init__(self, nvml: Any, files: Files) -> None:
        self.nvml, self.files = nvml, files

    def everything(self) -> tuple[str | None, str | None, tuple[Gpu, ...]]:
        nvml = self.nvml
        driver = self.ask("driver", lambda: _string(nvml.nvmlSystemGetDriverVersion()))
        cuda = self.ask("cuda", lambda: int(nvml.nvmlSystemGetCudaDriverVersion()))
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [_string(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        gpus = tuple(self.gpu(index, handles, uuids) for index in range(len(handles)))
        return driver, None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}", gpus

    def joined(self) -> tuple[Gpu, ...]:
        nvml = self.nvml
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = (
                _string(question(handle)) for question in (nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetName)
            )
            links, fabric = self.links(handle, ""), self._optional(partial(self.fabric, handle))
            found.append(Gpu(index, uuid, name, "unknown", links=links, fabric=fabric))
        return tuple(found)

    def ask(self, what: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except (self.nvml.NVMLError, AttributeError) as error:  # a question that this nvidia-ml-py has not
            self.files.note(what, f"NVML: {error}")
            return None

    def gpu(self, index: int, handles: list[Any], uuids: list[str]) -> Gpu:
        nvml, handle, what = self.nvml, handles[index], f"gpus {index}"
        name = self.ask(f"{what} name", lambda: _string(nvml.nvmlDeviceGetName(handle)))
        address = self.ask(f"{what} address", lambda: _string(nvml.nvmlDeviceGetPciInfo(handle).busId))
        major_minor = self.ask(f"{what} capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
        mig = self._optional(lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]))
        return Gpu(
            index=index,
            uuid=uuids[index],
            name=name or "GPU",
            address=normal_address(address or "") or (address or "unknown"),
            memory_bytes=self.ask(
                f"{what} memory_bytes", lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
            ),
            capability=None if major_minor is None else float("{}.{}".format(*major_minor)),
            mig=mig,
            links=self.links(handle, what),
            p2p=self.p2p(index, handles, uuids),
            fabric=self._optional(lambda: self.fabric(handle)),
            c2c_mb_s=self._optional(lambda: self.c2c(handle)),
            memory_node=self._optional(lambda: int(nvml.nvmlDeviceGetNumaNodeId(handle))),
        )

    def links(self, handle: Any, what: str) -> tuple[NvLink, ...]:
        nvml, found = self.nvml, []
        for index in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
            try:
                active = bool(nvml.nvmlDeviceGetNvLinkState(handle, index))
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                continue  # a card without NVLink, or without that many
            except nvml.NVMLError as error:
                self.files.note(f"{what} links", f"NVML: {error}")
                continue
            found.append(self.link(handle, index, active))
        return tuple(found)

    def link(self, handle: Any, index: int, active: bool) -> NvLink:
        nvml, optional = self.nvml, self._optional
        version = optional(lambda: _VERSIONS.get(nvml.nvmlDeviceGetNvLinkVersion(handle, index)))
        if not active:
            return NvLink(index, False, version)
        kind = optional(lambda: _PEERS.get(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, index)))
        peer = optional(lambda: _string(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, index).busId))
        speed = optional(lambda: self.field(handle, nvml.NVML_FI_DEV_NVLINK_GET_SPEED, index))
        return NvLink(index, True, version, kind, normal_address(peer or ""), speed or None)

    def p2p(self, index: int, handles: list[Any], uuids: list[str]) -> tuple[tuple[str, str], ...]:
        found = []
        for other in range(len(handles)):
            status = self._optional(partial(self.p2p_status, handles[index], handles[other]))
            if other != index and status is not None:
                found.append((uuids[other], _P2P[status] if 0 <= status < len(_P2P) else "unknown"))
        return tuple(found)

    def p2p_status(self, one: Any, other: Any) -> int:
        return int(self.nvml.nvmlDeviceGetP2PStatus(one, other, _READ))

    def fabric(self, handle: Any) -> Fabric:
        found = self.nvml.c_nvmlGpuFabricInfoV_t()
        self.nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(found))
        cluster = bytes(found.clusterUuid)
        state = int(found.state)
        return Fabric(
            state=_FABRIC_STATES[state] if 0 <= state < len(_FABRIC_STATES) else "unknown",
            cluster="" if cluster == _NO_CLUSTER else cluster.hex(),
            clique=int(found.cliqueId),
            health=int(found.healthMask),
        )

    def c2c(self, handle: Any) -> int | None:
        nvml = self.nvml
        count = self.field(handle, nvml.NVML_FI_DEV_C2C_LINK_COUNT, 0) or 0
        return (
            sum(self.field(handle, nvml.NVML_FI_DEV_C2C_LINK_GET_MAX_BW, link) or 0 for link in range(count))
            or None
        )

    def field(self, handle: Any, number: int, scope: int) -> int | None:
        """A number among NVML's fields; None where the driver does not know it."""
        (value,) = self.nvml.nvmlDeviceGetFieldValues(handle, [(number, scope)])
        if value.nvmlReturn != self.nvml.NVML_SUCCESS:
            return None
        return int(value.value.ullVal if value.valueType in (2, 3) else value.value.uiVal)

    def _optional(self, question: Callable[[], T]) -> T | None:
        """An answer that many drivers and cards do not have; its absence is no news."""
        with contextlib.suppress(self.nvml.NVMLError, AttributeError):
            return question()
        return None


def _string(found: Any) -> str:
    return found.decode() if isinstance(found, bytes) else str(found)


if __name__ == "__main__":
    machine = Files("/")
    driver_version, newest_cuda, seen = read_gpus(machine)
    record = {"driver": driver_version, "cuda": newest_cuda, "gpus": [encode(gpu) for gpu in seen]}
    print(json.dumps(record, indent=1))
    for one in machine.unknown:
        print(f"{one.what}: {one.reason}", file=sys.stderr)
