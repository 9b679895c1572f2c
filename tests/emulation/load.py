"""Loading the stand-in into a process, before anything looks for a real library.

A library that is in the process already, by its SONAME, is what cuda-bindings, nccl4py and CuPy take. This
file stands alone: `site/sitecustomize.py` reads it in processes that know nothing of this package.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2")
CUPY_LIBRARIES = ("libcudart.so.12", "libnvrtc.so.12", "libcublas.so.12", "libcublasLt.so.12")
_DRIVER_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
)


def real_driver() -> str | None:
    """What shows that this machine has NVIDIA's driver; None where nothing does."""
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_DRIVER_FOLDERS]
    signs = ["/dev/nvidiactl", "/dev/nvidia0", *(f"{folder}/libcuda.so.1" for folder in folders if folder)]
    return next((sign for sign in signs if os.path.exists(sign)), None)


def refuse_real_driver() -> None:
    """Raise RuntimeError where there is a real driver: the stand-in must never be taken for it."""
    sign = real_driver()
    if sign:
        raise RuntimeError(f"the CUDA stand-in is for machines without a GPU, and this one has {sign}")


class CupyFinder:
    """Finds CuPy's one extension that was compiled for the stand-in, and loads what CuPy knows by a SONAME.

    It is asked first about every import, so a process that does not import CuPy loads nothing for it.
    """

    def __init__(self, folder: str, missing: str) -> None:
        self.folder = folder
        self.missing = missing

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "cupy" and not self.folder:
            raise ImportError(f"CuPy cannot run on the CUDA stand-in: {self.missing}")
        if name == "cupy_backends":
            for library in CUPY_LIBRARIES:
                ctypes.CDLL(os.path.join(self.folder, library), mode=ctypes.RTLD_GLOBAL)
        if name == "cupy_backends.cuda.api.runtime":
            return spec_from_file_location(name, os.path.join(self.folder, "runtime.so"))
        return None


def load(folder: str | os.PathLike[str]) -> list[ctypes.CDLL]:
    """Load all libraries of a folder that `build.build` made. Raises RuntimeError, OSError."""
    refuse_real_driver()
    paths = [Path(folder) / name for name in LIBRARIES]
    if not paths[0].exists():
        raise RuntimeError(f"{folder} holds no stand-in: build it with `python -m tests.emulation`")
    loaded = [ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in paths if path.exists()]
    cupy = os.environ.get("STANDIN_CUPY", ""), os.environ.get("STANDIN_CUPY_MISSING", "it was not built")
    sys.meta_path.insert(0, CupyFinder(*cupy))  # type: ignore[arg-type]
    return loaded


def devices(mode: str = "lazy") -> dict[str, str]:
    """The environment of a child with devices for four ranks: the machine's own, or stand-ins in `mode`.

    Ranks share those of the machine where there are fewer (since NCCL 2.30).
    """
    if real_driver():
        return {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "2"}
    return environment(4, mode)


def _cupy() -> dict[str, str]:
    """What CuPy needs in the environment, which is built too; where it cannot be had, why."""
    from tests.emulation.cupy.build import build, missing

    lack = missing()
    if lack:
        return {"STANDIN_CUPY_MISSING": lack}
    folder = build()
    return {
        "STANDIN_CUPY": str(folder),
        "CUPY_ACCELERATORS": "",  # CUB would run through a cudart of its own, fail unseen and give zeros
        "CUPY_CACHE_DIR": str(folder / "cache"),
    }


def environment(devices: int = 4, mode: str = "lazy", **more: object) -> dict[str, str]:
    """The environment of a child whose Python processes run on the stand-in; builds it where needed.

    A name of `more` in small letters is a setting (`lazy_us=100000`), any other a variable as it stands.
    """
    from tests.emulation.build import build

    folder = build()
    child = {name: text for name, text in os.environ.items() if not name.startswith("STANDIN_")}
    child.pop("CUDA_VISIBLE_DEVICES", None)
    paths = [str(HERE / "site"), *filter(None, child.get("PYTHONPATH", "").split(os.pathsep))]
    child.update(
        PYTHONPATH=os.pathsep.join(dict.fromkeys(paths)),
        STANDIN_FOLDER=str(folder),
        STANDIN_DEVICES=str(devices),
        STANDIN_MODE=mode,
        **_cupy(),
    )
    for name, value in more.items():
        child[name if name.upper() == name else f"STANDIN_{name.upper()}"] = str(value)
    return child
