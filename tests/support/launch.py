"""Programs under mpiexec: the command line of the MPI in use, a clean environment, an end in bounded time.

From a shell: `python -m tests.support.launch -n 4 -- hpccoll bench allreduce`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Mpiexec",
    "Result",
    "end_group",
    "environment",
    "find_mpiexec",
    "run_program",
    "run_ranks",
    "until",
]

REPOSITORY = Path(__file__).resolve().parents[2]
# By these a launcher tells a process that it is one of its ranks; a nested mpiexec must not see them.
LAUNCHER_PREFIXES = ("HYDI_", "MPI_LOCAL", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "PRTE_LAUNCHED")
# What `mpiexec --version` says. OpenRTE is of Open MPI 4; Intel's is a hydra too, so it comes first.
SIGNS = {"Intel": "intel", "HYDRA": "hydra", "Open MPI": "openmpi", "OpenRTE": "openmpi", "PRRTE": "openmpi"}
# Ranks outnumber cores in tests: a thread pool per rank would only add context switches.
THREAD_POOLS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Mpiexec:
    """A launcher: its path and whose spelling it takes ("hydra", "intel" or "openmpi")."""

    path: str
    flavour: str

    def command(self, ranks: int, program: Sequence[str]) -> list[str]:
        """The command line that starts `program` on `ranks` ranks, which may be more than there are cores."""
        options: tuple[str, ...] = ()
        if self.flavour == "openmpi":
            options = ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
        return [self.path, *options, "-n", str(ranks), *program]


@dataclass(frozen=True)
class Result:
    """How a program ended; `returncode` is negative when a signal ended it, as `timed_out` does."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool


@functools.cache
def find_mpiexec() -> Mpiexec:
    """The launcher named by MPIEXEC, else the one beside this Python (pip wheels), else the one in PATH.

    Raises:
        FileNotFoundError: there is none.
        RuntimeError: it is none of the three that are known.
    """
    beside = str(Path(sys.executable).parent)
    path = os.environ.get("MPIEXEC") or shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if path is None:
        raise FileNotFoundError(
            "no mpiexec: pip install 'hpccoll[mpich]', or apt-get install mpich libmpich-dev"
        )
    reply = subprocess.run(
        [path, "--version"], env=environment(), capture_output=True, text=True, timeout=30, check=False
    )
    text = reply.stdout + reply.stderr
    for sign, flavour in SIGNS.items():
        if sign in text:
            return Mpiexec(path, flavour)
    raise RuntimeError(
        f"{path} is neither MPICH's, Intel MPI's nor Open MPI's launcher; it says: {text.strip()!r}"
    )


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A copy of this process's environment for a program under test, `extra` applied last.

    Launchers' variables are gone, the repository can be imported, and commands installed beside this Python
    are found first. Unless set already, a collective times out after 20 s and thread pools have one thread.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_PREFIXES)}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), env.get("PYTHONPATH")]))
    # Without cached bytecode every one of 64 ranks would compile every test file.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env.setdefault("HPCCOLL_TIMEOUT_S", "20")
    # What somebody measured here is nothing to tests.
    env.setdefault("HPCCOLL_TUNING", "off")
    # Sets of strings are walked in the same order by every rank.
    env.setdefault("PYTHONHASHSEED", "0")
    for name in THREAD_POOLS:
        env.setdefault(name, "1")
    if os.geteuid() == 0:
        env.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        env.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    return env | dict(extra or {})


def end_group(process: subprocess.Popen[bytes], grace_s: float = 3.0) -> None:
    """End a process started in its own session, with all of its group; returns when it is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_s)


@contextlib.contextmanager
def started(
    command: Sequence[str], *, env: Mapping[str, str], stdout: object, stderr: object, cwd: Path = REPOSITORY
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `command` in its own session; on the way out nothing of its process group is left."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )  # type: ignore[call-overload]
    try:
        yield process
    finally:
        end_group(process)


def run_program(
    command: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, cwd: Path = REPOSITORY
) -> Result:
    """Run `command` to its end, at most `timeout_s`; `env` is added to `environment()`."""
    begin = time.monotonic()
    timed_out = False
    # Files, not pipes: a grandchild that survives would keep a pipe open and the reader waiting.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with started(command, env=environment(env), stdout=out, stderr=err, cwd=cwd) as process:
            try:
                process.wait(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                timed_out = True
        seconds = time.monotonic() - begin
        out.seek(0)
        err.seek(0)
        texts = [file.read().decode(errors="replace") for file in (out, err)]
    return Result(process.returncode, texts[0], texts[1], seconds, timed_out)


def run_ranks(
    ranks: int, arguments: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> Result:
    """Run Python with `arguments` (a script, or -c and code) on `ranks` ranks, at most `timeout_s`."""
    command = find_mpiexec().command(ranks, [sys.executable, *arguments])
    return run_program(command, timeout_s=timeout_s, env=env)


def main(arguments: Sequence[str]) -> None:
    """Replace this process by mpiexec."""
    if len(arguments) < 4 or arguments[0] != "-n" or arguments[2] != "--":
        sys.exit("usage: python -m tests.support.launch -n RANKS -- PROGRAM [ARGUMENT ...]")
    command = find_mpiexec().command(int(arguments[1]), arguments[3:])
    os.execvpe(command[0], command, environment())


def until(holds: Callable[[], bool], seconds: float, pause_s: float = 0.05) -> None:
    """Wait until something holds; AssertionError when it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(pause_s)


if __name__ == "__main__":
    main(sys.argv[1:])
