"""The virtual hosts themselves: what is apart, what the links carry, how fast, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.launch import REPOSITORY
from tests.support.virtual_hosts import VirtualHosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

NAMESPACES = ("net", "uts", "ipc", "mnt", "pid")
MEGABYTE = 1_000_000

# Rank 0 sends 20 MB to the last rank, three times; prints the seconds of each and where the ranks are.
TRANSFER = """
import json, time
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
data = np.zeros(20_000_000, np.uint8)
times = []
for _ in range(3):
    world.Barrier()
    start = time.perf_counter()
    if world.rank == 0:
        world.Send(data, world.size - 1)
    if world.rank == world.size - 1:
        world.Recv(data, 0)
    times.append(time.perf_counter() - start)
slowest = [max(each) for each in zip(*world.allgather(times), strict=True)]
places = world.gather((MPI.Get_processor_name(), node.rank, node.size))
if world.rank == 0:
    print(json.dumps({"times": slowest, "places": places}))
"""

STAY = "from mpi4py import MPI; import time; print('up', flush=True); time.sleep(600)"
SLEEP = [sys.executable, "-c", STAY]

ABORT = """
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Abort(7) if world.rank == 3 else world.Barrier()
"""

LISTEN = """
import socket
server = socket.create_server(("", 5000))
print("listening", flush=True)
while True:
    server.accept()
"""
CONNECT = "import socket; socket.create_connection(('node1', 5000), timeout=2)"

OTHER_PROCESSES = """
import os
print(*sorted(set(filter(str.isdigit, os.listdir("/proc"))) - {str(os.getpid())}))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[VirtualHosts]:
    with VirtualHosts(2) as hosts:
        yield hosts


def test_hosts_know_each_other_by_name(cluster: VirtualHosts) -> None:
    program = "import socket; print(socket.gethostname(), *map(socket.gethostbyname, ['node0', 'node1']))"
    command = [sys.executable, "-c", program]
    names, first, second = zip(
        *(cluster.run(host, command).stdout.split() for host in cluster.hosts), strict=True
    )
    assert names == cluster.hosts == ("node0", "node1")
    assert len(set(first)) == len(set(second)) == 1
    assert first != second


def test_namespaces_are_apart(cluster: VirtualHosts) -> None:
    links = [f"/proc/self/ns/{name}" for name in ("net", "uts", "ipc", "mnt")]
    found = [cluster.run(host, ["readlink", *links], check=True).stdout.split() for host in cluster.hosts]
    found.append([os.readlink(link) for link in links])
    assert all(len(set(each)) == 3 for each in zip(*found, strict=True)), found


def test_shared_memory_is_apart(cluster: VirtualHosts) -> None:
    cluster.run("node0", ["touch", "/dev/shm/mark-of-node0"], check=True)
    assert cluster.run("node0", ["ls", "/dev/shm"]).stdout == "mark-of-node0\n"
    assert cluster.run("node1", ["ls", "/dev/shm"]).stdout == ""
    assert not Path("/dev/shm/mark-of-node0").exists()
    cluster.run("node0", ["rm", "/dev/shm/mark-of-node0"], check=True)


def test_each_host_sees_its_own_interfaces(cluster: VirtualHosts) -> None:
    for host in cluster.hosts:
        assert cluster.run(host, ["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]


def test_mpi_transfer_takes_the_time_and_bytes_of_the_link(cluster: VirtualHosts) -> None:
    before = cluster.counters()
    done = cluster.mpiexec([sys.executable, "-c", TRANSFER], 2)
    after = cluster.counters()
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["places"] == [["node0", 0, 2], ["node0", 1, 2], ["node1", 0, 2], ["node1", 1, 2]]
    # 20 MB at 1 Gbit/s are 160 ms; up to 5 ms of them may start in tbf's bucket of 512 kB.
    assert 0.153 < min(result["times"]) < 0.32, result["times"]
    moved = {host: (after[host][0] - before[host][0], after[host][1] - before[host][1]) for host in after}
    # Headers and start-up of MPI come on top of the three transfers; acknowledgements go the other way.
    assert 60 * MEGABYTE < moved["node0"][0] < 61 * MEGABYTE, moved
    assert 60 * MEGABYTE < moved["node1"][1] < 61 * MEGABYTE, moved
    assert max(moved["node1"][0], moved["node0"][1]) < MEGABYTE, moved


def test_limit_changes_one_host(cluster: VirtualHosts) -> None:
    cluster.limit("node0", "250mbit")
    try:
        slow = json.loads(cluster.mpiexec([sys.executable, "-c", TRANSFER], 1).stdout)["times"]
        cluster.limit("node0", None)
        fast = json.loads(cluster.mpiexec([sys.executable, "-c", TRANSFER], 1).stdout)["times"]
    finally:
        cluster.limit("node0", "1gbit")
    assert 0.61 < min(slow) < 1.28, slow
    assert min(fast) < 0.153, fast


def test_link_down_and_up(cluster: VirtualHosts) -> None:
    connect = [sys.executable, "-c", CONNECT]
    server = cluster.start("node1", [sys.executable, "-c", LISTEN])
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    cluster.run("node0", connect, check=True)
    cluster.link("node1", up=False)
    assert cluster.run("node1", ["cat", "/sys/class/net/eth0/carrier"]).stdout == "0\n"
    cut = cluster.run("node0", connect)
    cluster.link("node1", up=True)
    assert cut.returncode == 1
    assert "timed out" in cut.stderr or "No route to host" in cut.stderr, cut.stderr
    cluster.run("node0", connect, check=True)
    cluster.kill()
    server.communicate(timeout=10)


def test_exit_status_comes_back(cluster: VirtualHosts) -> None:
    assert cluster.run("node1", ["sh", "-c", "exit 7"]).returncode == 7
    assert cluster.mpiexec([sys.executable, "-c", ABORT], 2).returncode == 7


def test_variables_reach_every_rank(cluster: VirtualHosts) -> None:
    program = "import os, sys; sys.stdout.write(os.environ['MARK'] + '\\n')"
    done = cluster.mpiexec([sys.executable, "-c", program], 2, {"MARK": "a b;c"})
    assert done.stdout.split("\n") == ["a b;c"] * 4 + [""]


def test_timeout_kills_the_ranks_and_keeps_the_hosts(cluster: VirtualHosts) -> None:
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        cluster.mpiexec(SLEEP, 2, timeout_s=8)
    assert 8 <= time.monotonic() - start < 20
    assert caught.value.output.count("up") == 4
    assert cluster.run("node1", [sys.executable, "-c", OTHER_PROCESSES], check=True).stdout == "1\n"


def test_unknown_host_and_bad_count_are_named(cluster: VirtualHosts) -> None:
    with pytest.raises(ValueError, match="'node2'; there are node0, node1"):
        cluster.run("node2", ["true"])
    with pytest.raises(ValueError, match="count is 0"):
        VirtualHosts(0)


def test_a_command_after_close_is_refused() -> None:
    with VirtualHosts(1) as hosts:
        pass
    with pytest.raises(ValueError, match="not running"):
        hosts.run("node0", ["true"])


def test_two_racks_do_not_meet(cluster: VirtualHosts) -> None:
    with VirtualHosts(2) as other:
        other.limit("node0", None)
        before = cluster.counters()
        assert other.mpiexec([sys.executable, "-c", TRANSFER], 1).returncode == 0
        after = cluster.counters()
    assert all(after[host][0] - before[host][0] < MEGABYTE for host in cluster.hosts)


def machine() -> dict[str, object]:
    """What hosts could leave on the machine itself."""
    named = Path("/run/netns")
    return {
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "mounts": Path("/proc/self/mounts").read_text(),
        "named namespaces": sorted(os.listdir(named)) if named.exists() else [],
        "hosts file": Path("/etc/hosts").read_text(),
    }


def namespaces(pid: int) -> set[str]:
    try:
        return {os.readlink(f"/proc/{pid}/ns/{name}") for name in NAMESPACES}
    except OSError:  # gone, or not for us to look into
        return set()


def processes_in(wanted: set[str]) -> list[int]:
    """Processes of this machine that are in any of these namespaces; zombies have none."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and namespaces(int(name)) & wanted]


def rack_namespaces(hosts: VirtualHosts) -> set[str]:
    return namespaces(hosts._rack_pid) - namespaces(os.getpid())


@pytest.mark.parametrize("failing", [False, True], ids=["normal", "exception"])
def test_nothing_is_left(failing: bool) -> None:
    before = machine()
    try:
        with VirtualHosts(3) as hosts:
            of_rack = rack_namespaces(hosts)
            sleeper = hosts.start("node1", ["sleep", "600"])
            assert len(processes_in(of_rack)) >= 2
            if failing:
                raise KeyError("the test's own")
    except KeyError:
        assert failing
    assert processes_in(of_rack) == []
    assert sleeper.wait(timeout=10) != 0
    sleeper.communicate()
    assert machine() == before


def test_nothing_is_left_when_the_rate_is_refused() -> None:
    before = machine()
    with pytest.raises(OSError, match=r"node0: .*rate"), VirtualHosts(1, "fast"):
        pass
    assert machine() == before


OWNER = """
import json, sys
from tests.support.virtual_hosts import VirtualHosts
with VirtualHosts(2) as hosts:
    print(hosts._rack_pid, flush=True)
    hosts.mpiexec(json.loads(sys.argv[1]), 2, timeout_s=600)
"""


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    before = machine()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, json.dumps(SLEEP)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert owner.stdout is not None
    of_rack = namespaces(int(owner.stdout.readline())) - namespaces(os.getpid())
    # PID 1, mpiexec, two proxies and four ranks at least.
    wait_until(lambda: len(processes_in(of_rack)) >= 8, timeout_s=30)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    wait_until(lambda: processes_in(of_rack) == [], timeout_s=10)
    assert machine() == before


def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so after {timeout_s} s"
        time.sleep(0.05)
