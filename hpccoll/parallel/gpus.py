"""The GPUs of `plans.machines`: operations and memory, of data sheets."""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.errors import UsageError
from hpccoll.plans.machines import MACHINES, Machine, machine_of


@dataclass(frozen=True)
class Gpu:
    """One GPU: 1e12 16-bit operations a second (dense, summed in 32 bits), and 1e9 bytes of memory."""

    name: str
    tflops: float
    memory_gb: float


_H200, _B200 = Gpu("H200", 989, 141), Gpu("B200", 2250, 180)
GPUS = {
    "dgx-a100": Gpu("A100", 312, 80),
    "dgx-h100": Gpu("H100", 989, 80),
    "hgx-h200": _H200,
    "aws-p5en": _H200,
    "hgx-b200": _B200,
    "aws-p6-b200": _B200,
    "gb200-nvl72": Gpu("B200 of a GB200", 2500, 186),
}


def machine_with_gpus(name: str) -> tuple[Machine, Gpu]:
    """A machine and its GPU.  Raises: UsageError for one without, or unknown, naming those there are."""
    if name in MACHINES and name not in GPUS:
        raise UsageError(f"machine {name!r} has no GPU of which operations and memory are known")
    if name not in GPUS:
        raise UsageError(f"no machine {name!r}; there are {', '.join(GPUS)}")
    return machine_of(name), GPUS[name]
