"""The rooms of the house (docs/, hpccoll/): who may import what, read from the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

import hpccoll

ROOT = Path(hpccoll.__file__).parent
GPU_PACKAGES = {"cuda", "cupy", "cupyx", "nccl", "pynvml", "torch"}
GPU_ROOMS = (
    "arrays",
    "bootstrap",
    "cli.bench.on_device",
    "memory",
    "ops.kernels",
    "torch",
    "runtime.between",
    "runtime.cuda_aware",
    "runtime.device_memory",
    "runtime.device_messages",
    "runtime.elsewhere",
    "runtime.streams",
    "runtime.tape",
    "topology.gpus",
    "topology.hardware.nvml",
    "transports.nccl",
)
# What imports a GPU package when it is imported itself, and what of the house may import that at once.
DEVICE_ROOMS = (
    "runtime.streams",
    "transports.nccl",
    "runtime.device_combining",
    "runtime.device_blocks",
    "runtime.device_program",
    "runtime.tape",
    "runtime.device_side",
    "runtime.device_groups",
    "runtime.device_messages",
    "runtime.between",
    "runtime.elsewhere",
    "runtime.device_memory",
    "cli.bench.on_device.buffers",
    "cli.bench.on_device.cuda",
    "cli.bench.on_device.plain",
    "torch",
)
DEVICE_MODULES = tuple(f"hpccoll.{room}" for room in DEVICE_ROOMS)


def modules() -> Iterator[tuple[str, str]]:
    """Name (without "hpccoll.") and text of each module."""
    for path in sorted(ROOT.rglob("*.py")):
        yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path.read_text()


def imports(room: str, node: ast.AST, lazy: bool = False) -> Iterator[tuple[str, bool]]:
    """Each module imported in `room`, absolute, and whether only in functions (or never: for types)."""
    package = ".".join(["hpccoll", *room.split(".")[:-1]])
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = resolve_name("." * child.level + (child.module or ""), package)
            yield from ((f"{base}.{alias.name}", lazy) for alias in child.names)
        for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or for_types
        yield from imports(room, child, lazy or inside)


def within(room: str, *rooms: str) -> bool:
    return any(room == name or room.startswith(name + ".") for name in rooms)


def faults(room: str, text: str) -> list[str]:
    """The rules that a module breaks."""
    found = []
    for name, lazy in imports(room, ast.parse(text)):
        gpu = name.split(".")[0] in GPU_PACKAGES
        if within(room, "plans") and (gpu or within(name, "mpi4py", "hpccoll.transports")):
            found.append(f"plans are pure data, but {room} imports {name}")
        elif within(room, "transports") and within(name, "hpccoll.plans"):
            found.append(f"transports know no plan, but {room} imports {name}")
        elif gpu and not within(room, *GPU_ROOMS):
            found.append(f"GPU packages stay in {', '.join(GPU_ROOMS)}, but {room} imports {name}")
        elif gpu and not lazy and room not in DEVICE_ROOMS:
            found.append(
                f"GPU packages are imported inside functions only, but {room} imports {name} at once"
            )
        elif within(name, *DEVICE_MODULES) and not lazy and room not in DEVICE_ROOMS:
            found.append(f"{name} is imported inside functions only, but {room} imports it at once")
    return found


@pytest.mark.parametrize(("room", "text"), [pytest.param(*module, id=module[0]) for module in modules()])
def test_module_keeps_to_its_room(room: str, text: str) -> None:
    assert faults(room, text) == []


@pytest.mark.parametrize(
    ("room", "text"),
    [
        ("plans.ring", "from mpi4py import MPI"),
        ("plans.ring", "def f():\n    import cupy"),
        ("plans.ring", "from ..transports import base"),
        ("plans.ring", "from .. import transports"),
        ("plans.__init__", "from hpccoll.transports.shm import x"),
        ("transports.shm", "from hpccoll.plans.steps import Step"),
        ("transports.shm", "if TYPE_CHECKING:\n    from ..plans import steps"),
        ("collectives", "def f():\n    import cupy"),
        ("transports.mpi", "def f():\n    from nccl.core import Communicator"),
        ("arrays", "import cupy"),
        ("arrays", "try:\n    from cuda.core import Device\nexcept ImportError:\n    pass"),
        ("memory.registered", "class A:\n    import cupyx"),
        ("runtime.context", "from hpccoll.runtime import streams"),
        ("collectives.base", "from hpccoll.runtime.device_side import DeviceSide"),
    ],
)
def test_a_broken_rule_is_seen(room: str, text: str) -> None:
    assert len(faults(room, text)) == 1


@pytest.mark.parametrize(
    ("room", "text"),
    [
        ("plans.ring", "import math\nfrom ..topology.layout import Layout\nfrom .steps import Step"),
        ("transports.nccl", "from nccl.bindings import nccl"),
        ("runtime.device_side", "from hpccoll.runtime.streams import Device"),
        ("memory.registered", "if TYPE_CHECKING:\n    import cupy"),
        (
            "runtime.executor",
            "from hpccoll.plans import steps\nfrom hpccoll.transports import base\nfrom mpi4py import MPI",
        ),
    ],
)
def test_what_is_allowed_is_not_blamed(room: str, text: str) -> None:
    assert faults(room, text) == []


def test_all_is_the_sorted_list_of_public_names() -> None:
    public = {
        name
        for name, value in vars(hpccoll).items()
        if not name.startswith("_") and name != "annotations" and type(value).__name__ != "module"
    }
    assert sorted(set(hpccoll.__all__) - {"__version__"}) == sorted(public)
    assert list(hpccoll.__all__) == sorted(hpccoll.__all__)
    for name in hpccoll.__all__:
        assert hasattr(hpccoll, name)
