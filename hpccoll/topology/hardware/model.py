"""The words for one host and for one process on it.  Plain data: no file is read and no library asked here.

None always means "not known"; `Host.unknown` has the reason.  PCI addresses are written `0000:07:00.0`, rates
are for each direction.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be read.

    Attributes:
        what: the fact, such as "gpus" or "pci 0000:01:00.0 acs".
        reason: why, with the file or the library that was asked.

    """

    what: str
    reason: str


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node.

    Attributes:
        index: its number.
        cpus: the logical processors on it.
        memory_bytes: its memory; 0 for the memory of a device without any.
        distances: to each NUMA node in order of their numbers, 10 to itself.

    """

    index: int
    cpus: tuple[int, ...] = ()
    memory_bytes: int | None = None
    distances: tuple[int, ...] = ()


@dataclass(frozen=True)
class Processor:
    """The processors of the host together.

    Attributes:
        model: the name of the processor.
        architecture: as the kernel calls it: "x86_64", "aarch64".
        cpus: the logical processors that are online.
        cores: how many cores that are; two logical ones may share one.
        sockets: how many packages.

    """

    model: str | None = None
    architecture: str | None = None
    cpus: tuple[int, ...] = ()
    cores: int | None = None
    sockets: int | None = None


@dataclass(frozen=True)
class PciDevice:
    """A GPU, a network card, an NVSwitch, or a bridge between them and the processor.

    Attributes:
        address: such as "0000:07:00.0".
        kind: "gpu", "network", "nvswitch" or "bridge".
        vendor, device: the numbers of the maker, such as 0x10de.
        parent: the address of the bridge above it; None at the root complex.
        root: the root complex, such as "pci0000:00".
        numa_node: None where the kernel does not say.
        speed_gt_s, width: of the link now: transfers a second of a lane in units of 10**9, and lanes.
        max_speed_gt_s, max_width: what the device can do.
        driver: the kernel's driver.
        acs: access control bits of a bridge, which send traffic between cards up to the processor; 0: off.

    """

    address: str
    kind: str
    vendor: int | None = None
    device: int | None = None
    parent: str | None = None
    root: str | None = None
    numa_node: int | None = None
    speed_gt_s: float | None = None
    width: int | None = None
    max_speed_gt_s: float | None = None
    max_width: int | None = None
    driver: str | None = None
    acs: int | None = None


@dataclass(frozen=True)
class NvLink:
    """One NVLink of a GPU.

    Attributes:
        index: its number on the GPU.
        active: it carries traffic.
        version: of NVLink: 3.0, 4.0, 5.0.
        peer_kind: "switch", "gpu" or "cpu"; None where the driver does not tell, as for switches of other
        chassis. peer: the PCI address of the other end.
        speed_mb_s: megabytes (10**6) a second, each direction.

    """

    index: int
    active: bool
    version: float | None = None
    peer_kind: str | None = None
    peer: str | None = None
    speed_mb_s: int | None = None


@dataclass(frozen=True)
class Fabric:
    """A GPU's place on an NVLink fabric that a fabric manager runs.

    Attributes:
        state: "not supported", "not started", "in progress" or "completed".
        cluster: the id of the fabric; "" where it does not reach beyond the host.
        clique: GPUs of one cluster and one clique reach one another over NVLink, on other hosts too.
        health: the driver's bits.

    """

    state: str
    cluster: str = ""
    clique: int = 0
    health: int | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU, as the driver describes it.

    Attributes:
        index: the driver's number, which is not CUDA's where CUDA_VISIBLE_DEVICES is set.
        uuid: the same for all processes.
        name: such as "NVIDIA H100 80GB HBM3".
        address: on PCI.
        memory_bytes: of the card.
        capability: of CUDA: 9.0.
        mig: it is cut into instances; None also where the card cannot be cut.
        links: its NVLinks; () where it has none.
        p2p: for each other GPU's UUID, whether memory of one can be read by the other: "ok" or the reason.
        fabric: None where the driver does not know the question.
        c2c_mb_s: megabytes a second to the processor on the same module (Grace).
        memory_node: the NUMA node of its memory, where the processor can address that (Grace).

    """

    index: int
    uuid: str
    name: str
    address: str
    memory_bytes: int | None = None
    capability: float | None = None
    mig: bool | None = None
    links: tuple[NvLink, ...] = ()
    p2p: tuple[tuple[str, str], ...] = ()
    fabric: Fabric | None = None
    c2c_mb_s: int | None = None
    memory_node: int | None = None

    @property
    def active_links(self) -> int:
        """How many NVLinks carry traffic."""
        return sum(link.active for link in self.links)

    @property
    def nvlink_gb_s(self) -> float | None:
        """Gigabytes (10**9) a second of all active NVLinks, each direction; None: a speed is unknown."""
        speeds = [link.speed_mb_s for link in self.links if link.active]
        known = [speed for speed in speeds if speed is not None]
        return sum(known) / 1000 if known and len(known) == len(speeds) else None


@dataclass(frozen=True)
class RdmaPort:
    """A port of an InfiniBand or RoCE card.

    Attributes:
        device: such as "mlx5_0".
        port: from 1.
        link_layer: "InfiniBand", "Ethernet" (RoCE) or "Unspecified" (EFA).
        state: "ACTIVE", "DOWN", "INIT", "ARMED".
        physical_state: "LinkUp", "Polling", "Disabled".
        rate_gbit_s: of the link now.
        address: on PCI; None for a software device.
        numa_node: None where the kernel does not say.
        interfaces: the network interfaces of the card.
        firmware: its version.

    """

    device: str
    port: int
    link_layer: str | None = None
    state: str | None = None
    physical_state: str | None = None
    rate_gbit_s: float | None = None
    address: str | None = None
    numa_node: int | None = None
    interfaces: tuple[str, ...] = ()
    firmware: str | None = None

    @property
    def name(self) -> str:
        """As NCCL and UCX write it: `mlx5_0:1`."""
        return f"{self.device}:{self.port}"

    @property
    def active(self) -> bool:
        """Whether it carries traffic."""
        return self.state == "ACTIVE"


@dataclass(frozen=True)
class Interface:
    """A network interface of the kernel.

    Attributes:
        name: such as "eth0".
        kind: "ethernet", "wireless", "infiniband" (IP over it), "loopback", "bond", "bridge", "docker",
            "vlan", "veth", "tunnel" or "virtual".
        state: "up", "down", "unknown".
        speed_mbit_s: of the link now.
        mtu: bytes.
        driver: the kernel's driver.
        address: on PCI; None for one without a card.
        numa_node: None where the kernel does not say.
        master: the bond or bridge that it is a part of.

    """

    name: str
    kind: str
    state: str | None = None
    speed_mbit_s: int | None = None
    mtu: int | None = None
    driver: str | None = None
    address: str | None = None
    numa_node: int | None = None
    master: str | None = None


@dataclass(frozen=True)
class GpuDirect:
    """What GPUDirect RDMA stands on; there are two ways, and one suffices.

    Attributes:
        peermem: the module nvidia_peermem (nv_peer_mem, efa_nv_peermem) is loaded.
        open_driver: the driver's kernel modules are the open ones, which alone export memory by dma-buf.
        dma_buf: open modules from 515 on and a kernel from 5.12 on.
        iommu: the kernel has put devices into IOMMU groups.

    """

    peermem: bool | None = None
    open_driver: bool | None = None
    dma_buf: bool | None = None
    iommu: bool | None = None


@dataclass(frozen=True)
class Host:
    """One host: what is the same for all processes on it.

    Attributes:
        name: the kernel's host name.
        boot_id: differs between kernels and between boots of one.
        product: maker and model of the machine, from its firmware.
        kernel: its release.
        driver: the version of NVIDIA's driver.
        cuda: the newest CUDA that the driver knows, such as "12.8".
        memory_bytes: of the processors.
        shm_bytes: the size of /dev/shm.
        shm_free_bytes: known for this machine only.
        nccl_conf: the settings in /etc/nccl.conf.
        imex_channels: by which GPUs of a fabric reach memory of other hosts, in /dev.
        unknown: what could not be read, and why.

    """

    name: str | None = None
    boot_id: str | None = None
    product: str | None = None
    kernel: str | None = None
    processor: Processor = field(default_factory=Processor)
    numa_nodes: tuple[NumaNode, ...] = ()
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    pci: tuple[PciDevice, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    rdma_ports: tuple[RdmaPort, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    gpu_direct: GpuDirect = field(default_factory=GpuDirect)
    nccl_conf: tuple[tuple[str, str], ...] = ()
    imex_channels: int | None = None
    unknown: tuple[Unknown, ...] = ()

    def pci_device(self, address: str | None) -> PciDevice | None:
        """The PCI device of an address; None where it was not found."""
        return next((one for one in self.pci if one.address == address), None)

    def why(self, what: str) -> str | None:
        """The reason why a fact is unknown: that of the fact itself, else of what it is part of."""
        reasons = {one.what: one.reason for one in self.unknown}
        words = what.split()
        return next(
            (
                reasons[key]
                for key in (" ".join(words[:n]) for n in range(len(words), 0, -1))
                if key in reasons
            ),
            None,
        )


@dataclass(frozen=True)
class Process:
    """What one process has of its host, and which software it uses.

    Attributes:
        cpus: the logical processors that it may use.
        memlock_bytes: how much memory it may lock; -1: no limit.
        mpi_library: what MPI calls itself.
        mpi_cuda_aware: what MPI says of itself.
        nccl: the version of the NCCL that it would load, such as "2.28.3".
        nccl_cuda: the CUDA that this NCCL was built for, such as "12" or "12.9".
        visible_devices: the UUIDs of the devices that CUDA shows it, by ordinal; None where it was not asked.
        environment: its variables for NCCL, hpccoll, UCX, CUDA and MPI's choice of network.
        unknown: what could not be read, and why.

    """

    cpus: tuple[int, ...] = ()
    memlock_bytes: int | None = None
    mpi_library: str | None = None
    mpi_cuda_aware: bool | None = None
    nccl: str | None = None
    nccl_cuda: str | None = None
    visible_devices: tuple[str, ...] | None = None
    environment: tuple[tuple[str, str], ...] = ()
    unknown: tuple[Unknown, ...] = ()
