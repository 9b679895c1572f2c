"""A real Slurm cluster on one machine, for tests of batch scripts: a slurmd on each virtual host.

All but the last host of `tests.support.virtual_hosts` are compute nodes; on the last one run slurmctld and
the commands of the user who submits. Each node declares `gpus` GPUs, which are null devices: Slurm binds them
and sets CUDA_VISIBLE_DEVICES; nothing can compute on them. All ends with the hosts.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.support.launch import until
from tests.support.virtual_hosts import VirtualHosts
from tests.support.virtual_hosts import available as hosts_available

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
CORES = 4  # that each node claims to have

# Debian's Slurm; other versions may want other words, and say so.
CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
TmpFS={home}/tmp/%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=2
MinJobAge=600
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={nodes} CPUs={cores} CoresPerSocket={cores} RealMemory=4000 Gres=gpu:{gpus}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@dataclass(frozen=True)
class Job:
    """A batch job that has ended: Slurm's word for its end, its exit status and its output."""

    number: int
    state: str
    status: int
    output: str


class Slurm:
    """`nodes` compute nodes with `gpus` declared GPUs each, on `hosts`; a context manager.

    Raises: OSError, when a daemon does not start; the message has the end of the daemons' logs.
    """

    def __init__(self, nodes: int = 4, gpus: int = 2, rate: str | None = "1gbit") -> None:
        self.hosts = VirtualHosts(nodes + 1, rate)
        *self.nodes, self.login = self.hosts.hosts
        self.home = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self._gpus = gpus
        self._daemons: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Slurm:
        try:
            self.hosts.__enter__()
            self._configure()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all jobs and daemons, and remove what they wrote. Idempotent."""
        self.hosts.close()
        for daemon in self._daemons:
            daemon.communicate()
        shutil.rmtree(self.home, ignore_errors=True)

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the user's on the login host: sbatch, srun, scontrol."""
        return self.hosts.run(self.login, argv, env=self._with_slurm(env), cwd=cwd, timeout_s=timeout_s)

    def submit(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path) -> int:
        """`sbatch` in a directory; the job's number.  Raises: OSError, with what sbatch said."""
        done = self.run(["sbatch", "--parsable", *argv], env=env, cwd=cwd)
        if done.returncode:
            raise OSError(f"sbatch {' '.join(argv)}: {done.stderr.strip()}")
        return int(done.stdout)

    def wait(self, number: int, cwd: Path, timeout_s: float = 120.0) -> Job:
        """Until a job has ended; AssertionError when that takes longer."""
        until(
            lambda: self.shown(number)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), timeout_s, 0.2
        )
        found = self.shown(number)
        output = Path(found["StdOut"])
        text = output.read_text() if output.exists() else ""
        return Job(number, found["JobState"], int(found["ExitCode"].split(":")[0]), text)

    def shown(self, number: int) -> dict[str, str]:
        """What `scontrol show job` says of a job."""
        done = self.run(["scontrol", "-o", "show", "job", str(number)], cwd=self.home)
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def _configure(self) -> None:
        for name in (
            "munge",
            "state",
            *(f"{kind}/{node}" for kind in ("spool", "tmp") for node in self.nodes),
        ):
            (self.home / name).mkdir(parents=True)
        for node in self.nodes:
            (self.home / "tmp" / node).chmod(0o1777)
        self.home.chmod(0o755)
        key = self.home / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        names = f"node[0-{len(self.nodes) - 1}]" if len(self.nodes) > 1 else "node0"
        text = CONFIGURATION.format(
            controller=self.login, home=self.home, nodes=names, cores=CORES, gpus=self._gpus
        )
        (self.home / "slurm.conf").write_text(text)
        (self.home / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for index in range(self._gpus):
            os.mknod(self.home / f"gpu{index}", 0o20666, os.stat("/dev/null").st_rdev)
        devices = ",".join(f"{self.home}/gpu{index}" for index in range(self._gpus))
        (self.home / "gres.conf").write_text(f"Name=gpu File={devices}\n" if self._gpus else "")

    def _start(self) -> None:
        munge = self.home / "munge"
        files = [f"--{name}={munge}/{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        self._daemon(self.login, ["munged", "-F", "--force", f"--key-file={munge}/key", *files])
        until((munge / "socket").exists, 10.0)
        self._daemon(self.login, ["slurmctld", "-D", "-c", "-i"])
        for node in self.nodes:
            self._daemon(node, ["slurmd", "-D", "-N", node])
        try:
            until(lambda: self._idle() == len(self.nodes), 30.0, 0.1)
        except AssertionError as error:
            logs = [path.read_text()[-1500:] for path in sorted(self.home.glob("*.log"))]
            raise OSError("Slurm does not start:\n" + "\n".join(logs)) from error

    def _idle(self) -> int:
        found = self.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], cwd=self.home).stdout.strip()
        return int(found or 0)

    def _daemon(self, host: str, argv: Sequence[str]) -> None:
        quiet = ["sh", "-c", 'exec "$@" > /dev/null 2>&1', "sh", *argv]
        self._daemons.append(self.hosts.start(host, quiet, env=self._with_slurm(None), cwd=self.home))

    def _with_slurm(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {"SLURM_CONF": str(self.home / "slurm.conf"), **(env or {})}


@functools.cache
def available() -> str | None:
    """Why there can be no Slurm cluster on this machine; None where there can."""
    if (reason := hosts_available()) is not None:
        return reason
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    missing = [name for name in DAEMONS if shutil.which(name, path=path) is None]
    if missing:
        return f"no {', '.join(missing)} (Debian: apt install slurm-wlm slurm-wlm-basic-plugins munge)"
    return None
