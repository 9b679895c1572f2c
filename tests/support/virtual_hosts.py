"""Several hosts on one machine, joined by links of limited bandwidth: a cluster for tests and benchmarks.

A host is a network, a UTS, a mount and an IPC namespace: its own eth0, host name, /dev/shm and System V
memory, so that MPI and hpccoll take it for another machine. Root and iproute2 are needed; `available()` says
what is missing.

    rack: PID 1 of a PID namespace of its own        node0        node1        node2
    ┌──────────────────────────────────────────┐   ┌──────┐     ┌──────┐     ┌──────┐
    │ bridge "rack"  port0   port1   port2     │   │ eth0 │     │ eth0 │     │ eth0 │  tbf: egress rate
    └──────────────────┬───────┬───────┬───────┘   └──┬───┘     └──┬───┘     └──┬───┘
                       │       │       └──────────────┼────────────┼────────────┘
                       │       └──────────────────────┼────────────┘
                       └──────────────────────────────┘

Bridge, scripts and /etc/hosts exist only inside the rack's namespaces, so two racks never meet and the
machine itself is not changed. The rack lives as long as the pipe on its standard input: when the process that
made it closes the pipe, or dies in any way, the rack's PID 1 leaves; then the kernel ends every process in
the rack and frees all the rest.

All hosts see one file system (apart from /dev/shm, /run, /sys) and one PID namespace. TMPDIR on the hosts is
in /run: what killed launchers leave behind goes with the rack.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.launch import environment, find_mpiexec
from tests.support.virtual_rack import SCRIPTS, TEMPORARY, address_of, limit_arguments

__all__ = ["VirtualHosts", "available"]

RACK = Path(__file__).resolve().with_name("virtual_rack.py")
NOBODY = "02:00:00:00:00:00"
TOOLS = ("ip", "tc", "mount", "unshare", "nsenter", "env")


class VirtualHosts:
    """`count` hosts named node0, node1, ... as a context manager.

    Args:
        count: number of hosts, 1 to 200.
        rate: egress limit of each host in tc's words ("1gbit", "200mbit"); None leaves the links unlimited.
        mtu: bytes of an IP packet. 9000 as on cluster networks: TCP/IP headers are then 0.7 % of the traffic
            (at 1500 they are 4.6 %), small against the bounds that tests set on byte counts.

    Raises:
        ValueError: `count` is out of range.
        OSError: the hosts cannot be made; the message is that of the tool that failed.
    """

    def __init__(self, count: int, rate: str | None = "1gbit", *, mtu: int = 9000) -> None:
        if not 1 <= count <= 200:
            raise ValueError(f"count is {count}; it must be between 1 and 200")
        self.hosts = tuple(f"node{index}" for index in range(count))
        self._settings = {"hosts": self.hosts, "rate": rate, "mtu": mtu}
        self._rack: subprocess.Popen[str] | None = None
        self._rack_pid = 0

    def __enter__(self) -> VirtualHosts:
        namespaces = ["--fork", "--pid", "--net", "--uts", "--ipc", "--mount"]
        # A session of its own: Ctrl-C must reach the rack by the pipe, after the caller's own clean-up.
        self._rack = subprocess.Popen(
            ["unshare", *namespaces, sys.executable, "-I", str(RACK), json.dumps(self._settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PATH": _search_path()},
        )
        assert self._rack.stdout is not None
        ready = self._rack.stdout.readline()
        if not ready:
            message = self._rack.communicate()[1].strip().splitlines()
            raise OSError(f"virtual hosts cannot be made: {message[-1] if message else 'unshare failed'}")
        self._rack_pid = int(ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process on the hosts, then the hosts; returns when they are gone. Idempotent."""
        if self._rack is not None:
            self._rack.communicate()
            self._rack = None

    def start(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command on a host and return it, with pipes on its output. Arguments as those of `run`."""
        self._check(host)
        directory = os.fspath(cwd) if cwd is not None else os.getcwd()
        return subprocess.Popen(
            [*self._enter("--mount"), str(SCRIPTS / "on"), host, "env", "-C", directory, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(env),
        )

    def run(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        timeout_s: float = 60.0,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end.

        Args:
            host: one of `hosts`.
            argv: the command; it finds this repository's packages (PYTHONPATH).
            env: variables added to those of this process.
            cwd: working directory; this process's own if not given.
            timeout_s: after it, everything that runs on the hosts is killed (an mpiexec's ranks outlive it).
            check: raise if the exit status is not 0.

        Raises:
            subprocess.TimeoutExpired: carries the output so far.
            subprocess.CalledProcessError: `check` is set and the exit status is not 0.
        """
        process = self.start(host, argv, env=env, cwd=cwd)
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException as error:
            self.kill()
            output, errors = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise subprocess.TimeoutExpired(list(argv), timeout_s, output, errors) from None
            raise
        done = subprocess.CompletedProcess(list(argv), process.returncode, output, errors)
        if check:
            done.check_returncode()
        return done

    def mpiexec(
        self,
        argv: Sequence[str],
        ranks_per_host: int,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run an MPI program on all hosts: ranks 0 to ranks_per_host-1 on node0, and so on.

        Args:
            argv: the program each rank runs.
            ranks_per_host: ranks on each host.
            env: variables added to those of this process, on every rank.
            timeout_s: as for `run`.

        Raises:
            FileNotFoundError, RuntimeError: as `tests.support.launch.find_mpiexec`.
            subprocess.TimeoutExpired: as `run`.
        """
        launcher = find_mpiexec()
        command = [launcher.path, *remote_options(launcher.flavour, self.hosts, ranks_per_host)]
        return self.run(self.hosts[0], [*command, *argv], env=env, timeout_s=timeout_s)

    def counters(self) -> dict[str, tuple[int, int]]:
        """Bytes that each host's eth0 has sent and received since the start, Ethernet headers included."""
        files = [f"/sys/class/net/eth0/statistics/{direction}_bytes" for direction in ("tx", "rx")]
        found = {}
        for host in self.hosts:
            sent, received = self.run(host, ["cat", *files], check=True).stdout.split()
            found[host] = int(sent), int(received)
        return found

    def limit(self, host: str, rate: str | None) -> None:
        """Change the egress limit of a host; None takes it away."""
        self.run(host, ["tc", "qdisc", *limit_arguments(rate)], check=True)

    def link(self, host: str, up: bool) -> None:
        """Pull a host's cable (up=False) or put it back: eth0 keeps its address and loses its carrier."""
        self._check(host)
        port = f"port{self.hosts.index(host)}"
        command = ["ip", "link", "set", port, "up" if up else "down"]
        subprocess.run([*self._enter("--net"), *command], check=True, env=_environment(None))

    def mute(self, host: str, to: str | None = None) -> None:
        """Lose what a host sends to another one, or to all, which still reach it; for good.

        Nothing tells the host: its packets carry an address of hardware that nobody has.
        """
        self._check(host)
        for other in self.hosts:
            if other != host and to in (None, other):
                entry = [address_of(self.hosts.index(other)), "lladdr", NOBODY, "nud", "permanent"]
                self.run(host, ["ip", "neigh", "replace", *entry, "dev", "eth0"], check=True)

    def kill(self) -> None:
        """Kill every process on every host; the hosts stay."""
        rack = self._running()
        assert rack.stdin is not None
        assert rack.stdout is not None
        rack.stdin.write("kill\n")
        rack.stdin.flush()
        if rack.stdout.readline() != "killed\n":
            raise OSError("processes on the virtual hosts survived SIGKILL for 10 s")

    def _running(self) -> subprocess.Popen[str]:
        if self._rack is None:
            raise ValueError("the virtual hosts are not running: use them inside their with block")
        return self._rack

    def _check(self, host: str) -> None:
        self._running()
        if host not in self.hosts:
            raise ValueError(f"no host {host!r}; there are {', '.join(self.hosts)}")

    def _enter(self, *namespaces: str) -> list[str]:
        return ["nsenter", f"--target={self._rack_pid}", "--pid", *namespaces, "--"]


@functools.cache
def available() -> str | None:
    """Why virtual hosts cannot be made on this machine, or None where they can. It makes one to find out."""
    if sys.platform != "linux":
        return "virtual hosts need Linux"
    if os.geteuid() != 0:
        return "virtual hosts need root"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=_search_path()) is None]
    if missing:
        return f"virtual hosts need {', '.join(missing)} (Debian, Ubuntu: apt install iproute2 util-linux)"
    try:
        with VirtualHosts(1):
            return None
    except OSError as error:
        return str(error)


def _search_path() -> str:
    # ip and tc live in sbin, which is not on every user's PATH.
    return os.pathsep.join([environment()["PATH"], "/usr/sbin", "/sbin"])


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    return environment({"TMPDIR": str(TEMPORARY), **(extra or {}), "PATH": _search_path()})


def remote_options(flavour: str, hosts: Sequence[str], ranks_per_host: int | Sequence[int]) -> list[str]:
    """The launcher's arguments for these hosts, with our rsh in ssh's place.

    `ranks_per_host`: one number for all, or one for each.
    """
    counts = [ranks_per_host] * len(hosts) if isinstance(ranks_per_host, int) else ranks_per_host
    slots = ",".join(f"{host}:{count}" for host, count in zip(hosts, counts, strict=True))
    ranks = ["-n", str(sum(counts))]
    remote_shell = str(SCRIPTS / "rsh")
    if flavour == "hydra":
        return ["-launcher", "ssh", "-launcher-exec", remote_shell, "-hosts", slots, *ranks]
    if flavour == "openmpi":
        # All hosts are the same few cores: no binding, and waiting ranks give theirs up.
        shared = ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        return ["--mca", "plm_rsh_agent", remote_shell, *shared, "--host", slots, *ranks]
    raise ValueError(f"virtual hosts know the launchers of MPICH and Open MPI, not {flavour}")


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m tests.support.virtual_hosts --hosts 2 --ranks 2 -- PROGRAM`: its exit status.

    Each rank runs PROGRAM; `--slow node1=100mbit` gives one host a slower link than the others.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.virtual_hosts", description="Run a program of MPI on virtual hosts."
    )
    parser.add_argument("--hosts", type=int, default=2, help="how many (default: 2)")
    parser.add_argument("--ranks", type=int, default=2, help="on each of them (default: 2)")
    parser.add_argument(
        "--rate", default="1gbit", help="what a host may send, in tc's words (default: 1gbit)"
    )
    parser.add_argument("--slow", metavar="HOST=RATE", help="and this one only so much")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="limit of the run (default: 300)")
    parser.add_argument("program", nargs="+", help="what each rank runs, behind --")
    args = parser.parse_args(arguments)
    reason = available()
    if reason is not None:
        parser.error(reason)
    with VirtualHosts(args.hosts, args.rate) as hosts:
        if args.slow:
            hosts.limit(*args.slow.split("=", 1))
        done = hosts.mpiexec(args.program, args.ranks, timeout_s=args.timeout_s)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
