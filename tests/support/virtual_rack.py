"""PID 1 of the virtual hosts' rack: makes the hosts, then obeys the pipe on its standard input.

virtual_hosts.py starts this file as a program in new namespaces, with the settings as JSON. It prints its
process id as the caller sees it once the hosts are ready, or ends with the reason on standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Exist inside the rack only, on its own /run.
SCRIPTS = Path("/run/virtual-hosts")
TEMPORARY = Path("/run/tmp")

# Run in a host's namespaces. The interface is made here and its other end given to PID 1, the rack.
HOST_SETUP = """
echo {name} > /proc/sys/kernel/hostname
mount -t tmpfs -o size=2g tmpfs "$(realpath /dev/shm)"
mount -t sysfs sysfs /sys
ipv6=/proc/sys/net/ipv6/conf/all/disable_ipv6
[ ! -w $ipv6 ] || echo 1 > $ipv6
ip link set lo up
ip link add eth0 mtu {mtu} type veth peer name port{index} mtu {mtu} netns 1
ip addr add {address}/24 dev eth0
ip link set eth0 up
{limit}
echo ready
read _
"""

# `on HOST COMMAND...` runs a command in a host's namespaces, which PID 1 holds open.
ON_SCRIPT = """#!/bin/sh
host=/run/virtual-hosts/$1; shift
exec nsenter --net=$host/net --uts=$host/uts --ipc=$host/ipc --mount=$host/mnt -- "$@"
"""

# What hydra (-launcher-exec) and PRRTE (plm_rsh_agent) call as ssh: options, host, and words for a shell.
RSH_SCRIPT = """#!/bin/sh
while :; do case $1 in -[lpoiF]) shift 2;; -*) shift;; *) break;; esac; done
host=${1#*@}; shift
exec /run/virtual-hosts/on "$host" sh -c "$*"
"""


def limit_arguments(rate: str | None) -> list[str]:
    """What follows `tc qdisc` to limit eth0's egress; None: no limit."""
    if rate is None:
        return ["replace", "dev", "eth0", "root", "noqueue"]
    return ["replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "512kb", "latency", "50ms"]


def _serve(settings: dict[str, Any]) -> None:
    """Make the hosts, print the rack's PID as the caller sees it, then obey the pipe until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outer_pid = os.readlink("/proc/self")  # /proc still is the caller's
    _command("mount", "-t", "proc", "proc", "/proc")
    _write_scripts(settings["hosts"])
    _command("ip", "link", "set", "lo", "up")
    # No snooping, no spanning tree: the bridge itself sends nothing, and a link is usable once it is up.
    _command("ip", "link", "add", "rack", "type", "bridge", "mcast_snooping", "0", "stp_state", "0")
    _command("ip", "link", "set", "rack", "up")
    for index, name in enumerate(settings["hosts"]):
        _make_host(index, name, settings["rate"], settings["mtu"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans of the hosts are reaped at once
    print(outer_pid, flush=True)
    for line in sys.stdin:
        if line == "kill\n":
            print("killed" if _kill_all(timeout_s=10.0) else "alive", flush=True)


def _write_scripts(hosts: Sequence[str]) -> None:
    _command("mount", "-t", "tmpfs", "tmpfs", "/run")
    SCRIPTS.mkdir()
    TEMPORARY.mkdir()
    TEMPORARY.chmod(0o1777)
    names = ["127.0.0.1 localhost", *(f"{address_of(index)} {name}" for index, name in enumerate(hosts))]
    for file, text in (("hosts", "\n".join(names) + "\n"), ("on", ON_SCRIPT), ("rsh", RSH_SCRIPT)):
        (SCRIPTS / file).write_text(text)
        (SCRIPTS / file).chmod(0o755)
    _command("mount", "--bind", str(SCRIPTS / "hosts"), "/etc/hosts")


def _make_host(index: int, name: str, rate: str | None, mtu: int) -> None:
    limit = "" if rate is None else " ".join(["tc", "qdisc", *limit_arguments(rate)])
    setup = HOST_SETUP.format(index=index, name=name, mtu=mtu, address=address_of(index), limit=limit)
    command = ["unshare", "--net", "--uts", "--ipc", "--mount", "sh", "-ec", setup]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != "ready\n":
            raise OSError(f"{name}: {process.stderr.read().strip()}")
        directory = SCRIPTS / name
        directory.mkdir()
        for namespace in ("net", "uts", "ipc", "mnt"):
            descriptor = os.open(f"/proc/{process.pid}/ns/{namespace}", os.O_RDONLY)
            (directory / namespace).symlink_to(f"/proc/1/fd/{descriptor}")
        process.stdin.close()
    _command("ip", "link", "set", f"port{index}", "master", "rack", "up")


def address_of(index: int) -> str:
    """The address of a host by its number."""
    return f"10.77.0.{index + 11}"


def _command(*argv: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")


def _kill_all(timeout_s: float) -> bool:
    """Kill all processes of this PID namespace but PID 1; True when none is left."""
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(-1, signal.SIGKILL)
            time.sleep(0.01)
        return False
    return True


if __name__ == "__main__":
    try:
        _serve(json.loads(sys.argv[1]))
    except OSError as error:
        sys.exit(str(error))
