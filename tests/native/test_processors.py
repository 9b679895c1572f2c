"""The C files on other processors than this one, and what those ask for that this one may not."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.native import NATIVE, build_harness, compile_each, missing, run_harness

ARM = "aarch64-linux-gnu-gcc"
ARM_MISSING = missing(ARM) and f"{missing(ARM)}: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
QEMU = shutil.which("qemu-aarch64")
# `, 5)` ends a call that names sequential consistency, which is what an access without a name gets.
UNNAMED = re.compile(r"_*(?:atomic|ATOMIC)\w* \(.*\b5\);")
slow = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.skipif(bool(missing("gcc")), reason=missing("gcc"))
@pytest.mark.parametrize("name", ["core", "engine", "execution", "group", "repeats", "slots"])
def test_every_atomic_access_names_its_order(tmp_path: Path, name: str) -> None:
    """`left -= 1` on an atomic would be a full fence, and hide what order is meant."""
    dump = tmp_path / "gimple"
    compile_each([NATIVE / f"{name}.c"], tmp_path, "-O0", f"-fdump-tree-gimple={dump}")
    accesses = [line.strip() for line in dump.read_text().splitlines() if re.search("atomic_", line, re.I)]
    assert accesses
    assert [line for line in accesses if UNNAMED.search(line)] == []


@pytest.mark.skipif(bool(missing("gcc")), reason=missing("gcc"))
@pytest.mark.slow
def test_the_engine_between_threads(tmp_path: Path) -> None:
    """Without a sanitizer, as it is shipped."""
    program = build_harness(tmp_path, "-O3")
    for arguments in (("copies",), ("words", "20000"), ("calls", "3", "500")):
        result = run_harness(program, *arguments)
        assert (result.returncode, result.stdout) == (0, "good\n"), result.stderr


@pytest.mark.skipif(bool(ARM_MISSING), reason=ARM_MISSING)
class TestArm:
    pytestmark = slow

    def test_all_files_compile(self, tmp_path: Path) -> None:
        objects = compile_each(sorted(NATIVE.glob("*.c")), tmp_path, "-O3", compiler=ARM)
        assert len(objects) > 10

    @pytest.mark.skipif(QEMU is None, reason="there is no qemu-aarch64: apt-get install qemu-user")
    def test_the_engine_between_threads(self, tmp_path: Path) -> None:
        """What it computes: the emulator keeps the order of this machine, which ThreadSanitizer does not."""
        program = build_harness(tmp_path, "-O2", compiler=ARM, link=["-static"])
        for arguments in (("copies",), ("words", "500"), ("calls", "1", "60")):
            result = run_harness(program, *arguments, before=[QEMU or ""])
            assert (result.returncode, result.stdout) == (0, "good\n"), result.stderr
