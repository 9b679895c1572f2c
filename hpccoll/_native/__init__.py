"""The optional C extension: whether it is used, and why not.

`hpccoll._native._core` is built by pip where there is a C compiler.  Everything works without it,
more slowly; ``HPCCOLL_NATIVE=0`` in the environment leaves it aside although it is there.
"""

from __future__ import annotations

import functools
import importlib
import os

__all__ = ["available", "reason"]


def available() -> bool:
    """True when the extension can be imported and ``HPCCOLL_NATIVE`` is not "0"."""
    return not reason()


def reason() -> str:
    """Why the extension is not used, as words for the user; "" when it is used."""
    if os.environ.get("HPCCOLL_NATIVE") == "0":
        return "turned off by HPCCOLL_NATIVE=0"
    return _import_failure()


@functools.cache
def _import_failure() -> str:
    try:
        importlib.import_module("hpccoll._native._core")
    except ModuleNotFoundError:
        return "hpccoll._native._core is not built for this Python: install hpccoll with a C compiler present"
    except ImportError as error:
        return f"hpccoll._native._core is there but does not load: {error}"
    return ""
