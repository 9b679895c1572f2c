"""Network cards: ports of /sys/class/infiniband (InfiniBand and RoCE) and interfaces of /sys/class/net."""

from __future__ import annotations

import re

from hpccoll.topology.hardware.files import Files, whole
from hpccoll.topology.hardware.model import Interface, RdmaPort
from hpccoll.topology.hardware.pci import normal_address

_LOOPBACK, _INFINIBAND = 772, 32  # types of interfaces, from Linux's if_arp.h


def read_rdma_ports(files: Files) -> tuple[RdmaPort, ...]:
    """The ports of all InfiniBand and RoCE cards; none where there is no such directory."""
    if not files.exists("sys/class/infiniband"):
        return ()
    ports = []
    for device in files.names("sys/class/infiniband", "rdma_ports"):
        numbers = files.names(f"sys/class/infiniband/{device}/ports", f"rdma_ports {device}")
        ports += [_port(files, device, int(port)) for port in numbers if re.fullmatch(r"[0-9]{1,3}", port)]
    return tuple(ports)


def read_interfaces(files: Files) -> tuple[Interface, ...]:
    """The network interfaces of this process's network namespace."""
    names = [name for name in files.names("sys/class/net", "interfaces") if name != "bonding_masters"]
    return tuple(_interface(files, name) for name in names)


def _port(files: Files, device: str, port: int) -> RdmaPort:
    card = f"sys/class/infiniband/{device}"
    at, what = f"{card}/ports/{port}", f"rdma_ports {device}:{port}"
    return RdmaPort(
        device=device,
        port=port,
        link_layer=files.text(f"{at}/link_layer", f"{what} link_layer"),
        state=files.parsed(f"{at}/state", f"{what} state", _named),
        physical_state=files.parsed(f"{at}/phys_state", f"{what} physical_state", _named),
        rate_gbit_s=files.parsed(f"{at}/rate", f"{what} rate_gbit_s", _rate),
        address=_address(files, card),
        numa_node=_numa_node(files, card, what),
        interfaces=tuple(files.names(f"{card}/device/net")),
        firmware=files.text(f"{card}/fw_ver"),
    )


def _named(text: str) -> str:
    """The name in `4: ACTIVE`."""
    number, colon, name = text.partition(":")
    whole(number)
    if not colon or not name.strip():
        raise ValueError(text)
    return name.strip()


def _rate(text: str) -> float:
    """The number in `400 Gb/sec (4X NDR)`."""
    match = re.match(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", text)
    if match is None:
        raise ValueError(text)
    return float(match[1])


def _address(files: Files, at: str) -> str | None:
    """The PCI address of what belongs to a card; None for what is not on PCI."""
    return normal_address((files.target(f"{at}/device") or [""])[-1])


def _numa_node(files: Files, at: str, what: str) -> int | None:
    found = files.parsed(f"{at}/device/numa_node", f"{what} numa_node", whole)
    if found is not None and found < 0:
        files.note(f"{what} numa_node", "the firmware does not say")
    return found if found is None or found >= 0 else None


def _interface(files: Files, name: str) -> Interface:
    at, what = f"sys/class/net/{name}", f"interfaces {name}"
    kind = _kind(files, at, name)
    physical = kind in ("ethernet", "infiniband")
    speed = files.parsed(f"{at}/speed", f"{what} speed_mbit_s" if physical else None, whole)
    if physical and speed is not None and speed <= 0:
        files.note(f"{what} speed_mbit_s", "the driver does not say")
    driver, master = files.target(f"{at}/device/driver"), files.target(f"{at}/master")
    return Interface(
        name=name,
        kind=kind,
        state=files.text(f"{at}/operstate", f"{what} state"),
        speed_mbit_s=speed if speed is not None and speed > 0 else None,
        mtu=files.parsed(f"{at}/mtu", f"{what} mtu", whole),
        driver=driver[-1] if driver else None,
        address=_address(files, at),
        numa_node=_numa_node(files, at, what) if _address(files, at) else None,
        master=master[-1] if master else None,
    )


def _kind(files: Files, at: str, name: str) -> str:
    number = files.parsed(f"{at}/type", None, whole)
    if number == _LOOPBACK:
        return "loopback"
    if files.exists(f"{at}/bridge"):
        # Docker names its own bridges so; the default one is always docker0.
        return "docker" if re.fullmatch(r"docker[0-9]*|br-[0-9a-f]{12}", name) else "bridge"
    signs = {"bonding": "bond", "wireless": "wireless", "phy80211": "wireless", "tun_flags": "tunnel"}
    for sign, kind in signs.items():
        if files.exists(f"{at}/{sign}"):
            return kind
    if number == _INFINIBAND:
        return "infiniband"
    if files.exists(f"{at}/device"):
        return "ethernet"
    devtype = files.text(f"{at}/uevent") or ""
    if "DEVTYPE=vlan" in devtype:
        return "vlan"
    if name.startswith("veth"):
        return "veth"
    return "virtual"
