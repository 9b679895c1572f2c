"""`hpccoll --version` where there is a CUDA driver."""

from __future__ import annotations

import re
import sys

import pytest

from tests.support.launch import run_program

pytestmark = pytest.mark.timeout(100)


def test_the_driver_is_named() -> None:
    done = run_program([sys.executable, "-m", "hpccoll.cli", "--version"], timeout_s=60.0)
    assert re.search(r"^CUDA: \d+\.\d+$", done.stdout, re.MULTILINE), done
