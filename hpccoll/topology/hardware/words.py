"""Numbers of a host in words."""

from __future__ import annotations

from hpccoll.topology.hardware.model import Gpu, PciDevice, RdmaPort
from hpccoll.topology.hardware.pci import link_gb_s
from hpccoll.units import in_binary_unit, number_text

UNKNOWN = "unknown"


def known(value: object) -> str:
    """A value, or "unknown"."""
    return UNKNOWN if value is None else str(value)


def yes_no(value: bool | None) -> str:
    """A truth, or "unknown"."""
    return UNKNOWN if value is None else "yes" if value else "no"


def bytes_text(count: int | None, digits: int = 3) -> str:
    """A size: `1008 GiB`, rounded to `digits` digits below 1000 of its unit."""
    if count is None:
        return UNKNOWN
    size, unit = in_binary_unit(count)
    return f"{float(f'{size:.{digits}g}'):g} {unit}"


def rate_text(rate_gbit_s: float | None) -> str:
    """The rate of a network: `200 Gbit/s`."""
    return "unknown rate" if rate_gbit_s is None else f"{number_text(rate_gbit_s)} Gbit/s"


def bandwidth_text(gb_s: float | None) -> str:
    """Bytes a second, each direction: `31.5 GB/s`."""
    return UNKNOWN if gb_s is None else f"{number_text(gb_s)} GB/s"


def link_text(device: PciDevice | None) -> str:
    """A PCIe link: `PCIe x16 at 16 GT/s`, and what it could be where it is less."""
    if device is None or device.speed_gt_s is None or device.width is None:
        return "PCIe link unknown"
    text = f"PCIe x{device.width} at {number_text(device.speed_gt_s)} GT/s"
    if degraded(device):
        most = f"x{known(device.max_width)} at {number_text(device.max_speed_gt_s or device.speed_gt_s)} GT/s"
        text += f" (could be {most})"
    return text


def degraded(device: PciDevice) -> bool:
    """Whether a PCIe link is narrower than the device, or a card that is no GPU slower.

    Idle GPUs lower the speed of their link to save power, so their speed alone says nothing.
    """
    narrow = None not in (device.width, device.max_width) and device.width < device.max_width  # type: ignore[operator]
    slow = (
        device.kind != "gpu"
        and device.speed_gt_s is not None
        and device.max_speed_gt_s is not None
        and device.speed_gt_s < device.max_speed_gt_s
    )
    return narrow or slow


def nvlink_text(gpu: Gpu) -> str:
    """A GPU's NVLinks: `NVLink 4.0: 18 of 18 lanes to switches, 478 GB/s`."""
    if not gpu.links:
        return "no NVLink"
    version = next((link.version for link in gpu.links if link.version is not None), None)
    peers = {link.peer_kind for link in gpu.links if link.active}
    to = " to switches" if peers == {"switch"} else " to GPUs" if peers == {"gpu"} else ""
    rate = f", {bandwidth_text(gpu.nvlink_gb_s)}" if gpu.active_links else ""
    name = "NVLink" if version is None else f"NVLink {version}"
    return f"{name}: {gpu.active_links} of {len(gpu.links)} lanes{to}{rate}"


def layer_text(port: RdmaPort) -> str | None:
    """What a port speaks: InfiniBand, RoCE or EFA; None: not known."""
    return {"Ethernet": "RoCE", "Unspecified": "EFA"}.get(port.link_layer or "", port.link_layer)


def port_text(port: RdmaPort) -> str:
    """A network port: `InfiniBand ACTIVE 200 Gbit/s`, `RoCE DOWN`."""
    layer = layer_text(port) or "unknown link layer"
    rate = f" {rate_text(port.rate_gbit_s)}" if port.active or port.rate_gbit_s else ""
    return f"{layer} {known(port.state)}{rate}"


def pcie_bandwidth_text(device: PciDevice | None) -> str:
    """What a PCIe link can carry: `31.5 GB/s`."""
    return bandwidth_text(link_gb_s(device))
