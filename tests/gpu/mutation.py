"""`python -m tests.gpu.mutation [--list] [--only N,...]`: is every event between streams seen to be needed?

Each event record, event wait and stream wait in hpccoll/runtime, hpccoll/overlap and
hpccoll/transports/nccl.py is taken out in a copy of the package, one at a time, and the tests on device
arrays run on the stand-in's lazy streams, where a missing wait shows as a wrong result.  A mutant that no
test notices is a survivor; the status is 1 then.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.emulation.load import environment
from tests.gpu.__main__ import SWITCH
from tests.support.launch import REPOSITORY

# Calls that order streams or wait for them: our own methods, and the driver's functions behind them.
ORDERING = frozenset(
    {"mark", "follow", "behind", "order", "reached", "through", "settle_call"}
    | {"cuEventRecord", "cuStreamWaitEvent", "cuStreamWaitValue32"}
)
# Of buckets: the parts of overlap/streams.py where they are called.
OF_BUCKETS = frozenset({"enter", "gather", "scatter", "lend", "block_stream"})
FILES = ("runtime/*.py", "transports/nccl.py", "overlap/*.py")
OF_DEVICES = (
    b"hpccoll.runtime.streams", b"hpccoll.runtime.tape", b"cuda.bindings", b"side.device", b"DeviceMemory",
)  # fmt: skip
# Also without the C extension, which has its own way to make calls.
BOTH_WAYS = "tape.py"
# What can tell, the quickest first; the first failure ends a run.
NAMES = ("streams", "point_to_point", "elsewhere", "internode", "results", "types")
TESTS = tuple(f"tests/gpu/test_{name}.py" for name in NAMES)
TESTS_OF_BUCKETS = ("tests/gpu/test_buckets.py", "tests/gpu/test_buckets_streams.py")
RANKS, RANKS_OF_BUCKETS = "24", "23"
LIMIT_S = 150.0
# What nobody waits for is not to run before its time: machines may be busy, and the tests wait for nothing.
LAZY_US = 400_000
END_S = 20.0


@dataclass(frozen=True)
class Mutant:
    """A call that is taken out: where it is, and what stands in its place."""

    path: Path
    line: int
    text: str
    start: int
    stop: int
    instead: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(REPOSITORY)}:{self.line}: {self.text}"

    def apply(self, package: Path) -> None:
        """Change the file in a copy of the package."""
        target = package.parent / self.path.relative_to(REPOSITORY)
        source = target.read_bytes()
        target.write_bytes(source[: self.start] + self.instead.encode() + source[self.stop :])


def mutants() -> Iterator[Mutant]:
    """All of them, by file and line."""
    for pattern in FILES:
        for path in sorted((REPOSITORY / "hpccoll").glob(pattern)):
            yield from _of_file(path)


def _of_file(path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    if not any(sign in source for sign in OF_DEVICES):
        return  # its flags and waits are those of the host
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    names = ORDERING | OF_BUCKETS if _is_of_buckets(path) else ORDERING
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            yield Mutant(path, node.lineno, ast.unparse(node), begin, end, _instead(node.func.attr, node))


def _is_of_buckets(path: Path) -> bool:
    return path.parent.name == "overlap"


def _instead(name: str, node: ast.Call) -> str:
    """What has the value of the call without its effect."""
    if name == "gather" and not node.args:  # of a bucket's memory
        return f"{ast.unparse(node.func.value)}.stream"  # type: ignore[attr-defined]
    if name == "mark":  # an event that nothing was recorded in is complete
        return f"{ast.unparse(node.func.value)}.event()"  # type: ignore[attr-defined]
    if name == "reached":
        return "True"
    if name == "through":  # the stages of a wait
        return "()"
    if name.startswith("cu"):
        return "(_SUCCESS, None)"
    return "None"


def survives(mutant: Mutant) -> bool:
    """Whether all tests pass without the call."""
    with tempfile.TemporaryDirectory(prefix="hpccoll-mutant-") as folder:
        for name in ("hpccoll", "tests"):
            shutil.copytree(REPOSITORY / name, Path(folder) / name)
        shutil.copy(REPOSITORY / "pyproject.toml", folder)
        mutant.apply(Path(folder) / "hpccoll")
        tests = TESTS_OF_BUCKETS if _is_of_buckets(mutant.path) else TESTS
        for native in ("0", "1") if mutant.path.name == BOTH_WAYS else ("1",):
            if any(_fails(test, folder, native) for test in tests):
                return False
    return True


def _fails(test: str, folder: str, native: str) -> bool:
    env = {**environment(4, "lazy", lazy_us=LAZY_US), SWITCH: "1", "HPCCOLL_NATIVE": native}
    env["PYTHONPATH"] = os.pathsep.join([folder, env["PYTHONPATH"]])
    for ranks in RANKS_OF_BUCKETS if test in TESTS_OF_BUCKETS else RANKS:
        command = [sys.executable, "-m", "tests.support.run", test, "--ranks", ranks]
        if _returns_other_than_0(command, env, folder):
            return True
    return False


def _returns_other_than_0(command: Sequence[str], env: Mapping[str, str], folder: str) -> bool:
    """Whether a run of tests fails, or hangs: then it is interrupted, so that it ends its ranks."""
    with subprocess.Popen(
        command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        try:
            return running.wait(LIMIT_S) != 0
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            try:
                running.wait(END_S)
            except subprocess.TimeoutExpired:
                running.kill()
            return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.mutation", description=__doc__)
    parser.add_argument("--list", action="store_true", help="only say which there are")
    parser.add_argument("--only", help="numbers of mutants, with commas between")
    options = parser.parse_args()
    every = list(enumerate(mutants(), 1))
    wanted = {int(number) for number in options.only.split(",")} if options.only else None
    survivors = 0
    for number, mutant in every:
        if wanted is not None and number not in wanted:
            continue
        if options.list:
            print(f"{number:3} {mutant}")
            continue
        alive = survives(mutant)
        survivors += alive
        print(f"{number:3} {'SURVIVES' if alive else 'seen':8} {mutant}", flush=True)
    if not options.list:
        print(f"{len(wanted or every)} taken out, {survivors} survivors")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
