"""The one part of the build that setup.cfg cannot say: a C extension that may be left out.

The package works without it (memory/flags.py has a fallback), so a failing compiler is a warning.
HPCCOLL_BUILD_NATIVE=0 leaves it out on purpose.
"""

from __future__ import annotations

import os
from glob import glob

from setuptools import Extension, setup

native = Extension(
    "hpccoll._native._core",
    sources=sorted(glob("hpccoll/_native/*.c")),
    depends=sorted(glob("hpccoll/_native/*.h")),
    # A function that a header of this Python lacks is an error: gcc takes it for one that returns an int.
    extra_compile_args=[
        "-std=gnu11",
        "-O3",
        "-fvisibility=hidden",
        "-pthread",
        "-Werror=implicit-function-declaration",
    ],
    optional=True,
)

setup(ext_modules=[] if os.environ.get("HPCCOLL_BUILD_NATIVE") == "0" else [native])
