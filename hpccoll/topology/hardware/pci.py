"""PCIe: GPUs, network cards, NVSwitches and the bridges above them, from /sys/bus/pci/devices.

An entry there is a link whose target is the way from the root complex down::

    /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0/0000:04:00.0
                 root       root port    switch, up   switch, down card
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from hpccoll.topology.hardware.files import Files, hexadecimal, in_order, whole
from hpccoll.topology.hardware.model import PciDevice

NVIDIA = 0x10DE

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?) *GT/s(?: PCIe)?")
_EXTENDED, _ACS = 0x100, 0x000D  # where extended capabilities begin; the one of access control
_REDIRECTS = 0b0101100  # redirection of requests and of completions, egress control


def read_pci(files: Files) -> tuple[PciDevice, ...]:
    """The devices that matter for communication, in order of their addresses."""
    names = [name for name in files.names("sys/bus/pci/devices", "pci") if _ADDRESS.fullmatch(name)]
    ways = {name: files.target(f"sys/bus/pci/devices/{name}") for name in names}
    kinds = {name: _kind(files, name) for name in names}
    wanted = {name for name, kind in kinds.items() if kind in ("gpu", "network", "nvswitch")}
    for name in tuple(wanted):
        wanted.update(part for part in ways[name] if kinds.get(part) == "bridge")
    return tuple(_device(files, name, kinds[name], ways[name]) for name in sorted(wanted, key=in_order))


def normal_address(text: str) -> str | None:
    """An address as the kernel writes it (NVML: eight digits of domain, capitals); None where it is none."""
    match = re.fullmatch(r"([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})(\.[0-7])?", text.strip().lower())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}{function or '.0'}"


def lane_gb_s(speed_gt_s: float) -> float:
    """Gigabytes (10**9) a second of one lane after its encoding: 8b/10b to 5 GT/s, 128b/130b above."""
    return speed_gt_s * (0.8 if speed_gt_s <= 5 else 128 / 130) / 8


def link_gb_s(device: PciDevice | None) -> float | None:
    """Gigabytes a second of the link of a device as it is now, each direction; None where it is not known."""
    if device is None or device.speed_gt_s is None or not device.width:
        return None
    return lane_gb_s(device.speed_gt_s) * device.width


def _kind(files: Files, name: str) -> str:
    number = files.parsed(f"sys/bus/pci/devices/{name}/class", f"pci {name}", hexadecimal) or 0
    base, sub = number >> 16, number >> 8
    vendor = files.parsed(f"sys/bus/pci/devices/{name}/vendor", None, hexadecimal)
    if base == 0x03 and vendor == NVIDIA:
        return "gpu"
    if sub == 0x0680 and vendor == NVIDIA:
        return "nvswitch"
    if base == 0x02:
        return "network"
    return "bridge" if sub == 0x0604 else "other"


def _device(files: Files, name: str, kind: str, way: list[str]) -> PciDevice:
    at, what = f"sys/bus/pci/devices/{name}", f"pci {name}"
    above = [part for part in way[:-1] if _ADDRESS.fullmatch(part)]
    roots = [part for part in way if _ROOT.fullmatch(part)]
    if not roots:
        files.note(f"{what} parent", f"/{at} does not lead to a root complex")
    numa = files.parsed(f"{at}/numa_node", f"{what} numa_node", whole)
    if numa is not None and numa < 0:
        files.note(f"{what} numa_node", "the firmware does not say")
    driver = files.target(f"{at}/driver")
    return PciDevice(
        address=name,
        kind=kind,
        vendor=files.parsed(f"{at}/vendor", None, hexadecimal),
        device=files.parsed(f"{at}/device", None, hexadecimal),
        parent=above[-1] if above else None,
        root=roots[-1] if roots else None,
        numa_node=numa if numa is None or numa >= 0 else None,
        speed_gt_s=files.parsed(f"{at}/current_link_speed", f"{what} speed_gt_s", _speed),
        width=files.parsed(f"{at}/current_link_width", f"{what} width", _width),
        max_speed_gt_s=files.parsed(f"{at}/max_link_speed", f"{what} max_speed_gt_s", _speed),
        max_width=files.parsed(f"{at}/max_link_width", f"{what} max_width", _width),
        driver=driver[-1] if driver else None,
        acs=_acs(files, at, what) if kind == "bridge" else None,
    )


def _speed(text: str) -> float:
    match = _SPEED.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return float(match[1])


def _width(text: str) -> int:
    width = whole(text)
    if not 0 < width <= 32:  # 63 or 255 where there is no link
        raise ValueError(text)
    return width


def _acs(files: Files, at: str, what: str) -> int | None:
    """The redirecting bits of a bridge's access control; 0 where it has none.  Root alone can read it."""
    config = files.raw(f"{at}/config", f"{what} acs")
    if config is None:
        return None
    if len(config) < _EXTENDED + 4:
        files.note(f"{what} acs", f"/{at}/config: only {len(config)} bytes can be read; root can read all")
        return None
    for place, capability in _capabilities(config):
        if capability == _ACS and place + 8 <= len(config):
            return int(struct.unpack_from("<H", config, place + 6)[0]) & _REDIRECTS
    return 0


def _capabilities(config: bytes) -> Iterator[tuple[int, int]]:
    place, seen = _EXTENDED, set[int]()
    while place >= _EXTENDED and place + 4 <= len(config) and place not in seen:
        seen.add(place)
        (header,) = struct.unpack_from("<I", config, place)
        yield place, header & 0xFFFF
        place = header >> 20 & ~3
