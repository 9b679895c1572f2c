"""Whether the packages for GPUs are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

_NEEDED = {"cuda.bindings": "cuda-bindings", "nccl.bindings": "nccl4py"}
_FOR_AVERAGES = {"cupy": "CuPy, which divides"}


def lacking(redops: Sequence[str], find: Callable[[str], object] = find_spec) -> str:
    """Empty, or what is missing on this rank, in words.  `redops`: the operators to be measured."""
    wanted = _NEEDED | (_FOR_AVERAGES if "avg" in redops else {})
    missing = [words for name, words in wanted.items() if not _is_there(name, find)]
    if not missing:
        return ""
    return f"{' and '.join(missing)} not found: pip install 'hpccoll[cuda12]', or [cuda13]"


def _is_there(name: str, find: Callable[[str], object]) -> bool:
    try:
        return find(name) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False
