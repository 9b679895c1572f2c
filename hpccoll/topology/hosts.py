"""Which node this process is on, from facts that no launcher has a say in.

Host names do not tell: two containers may share one, and one host may have two.  What matters is
whether ranks can map the same memory, so the identity is

    the boot id of the kernel   +   device and inode number of the shared memory directory

Two mount namespaces that see one tmpfs find the same device number, two tmpfs of one kernel never do.
Two virtual machines resumed from one snapshot can agree in both; therefore ranks of equal identity also
show each other a token through that directory (`offer_probe`, `sees`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hpccoll.errors import TopologyError
from hpccoll.memory.segments import Segment, create_segment

MAX_BYTES = 2048
"""`HostFacts.to_bytes` is never longer."""

TOKEN_BYTES = 16

_NAMESPACES = ("ipc", "pid", "net")


@dataclass(frozen=True)
class HostFacts:
    """What one process knows about its node.

    Attributes:
        host_name: the kernel's host name; evidence only.
        boot_id: differs between kernels and between boots of one; "" where it cannot be read.
        shm_directory: the directory of the shared memory segments.
        shm_device, shm_inode: its device and inode numbers; -1 where it does not exist.
        ipc_namespace, pid_namespace, net_namespace: inode numbers; -1 where unknown; evidence only.
        uid: the effective user, who alone can open our segments; evidence only.
        notes: why a fact is missing.

    Texts are cut to what fits into `MAX_BYTES` together.

    """

    host_name: str
    boot_id: str = ""
    shm_directory: str = ""
    shm_device: int = -1
    shm_inode: int = -1
    ipc_namespace: int = -1
    pid_namespace: int = -1
    net_namespace: int = -1
    uid: int = -1
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, limit in (("host_name", 100), ("boot_id", 64), ("shm_directory", 240)):
            object.__setattr__(self, name, _clipped(getattr(self, name), limit))
        object.__setattr__(self, "notes", tuple(_clipped(note, 160) for note in self.notes[:3]))

    @property
    def key(self) -> tuple[str, int, int]:
        """The part that decides: processes with different keys are on different nodes."""
        kernel = self.boot_id or f"host name {self.host_name}"
        return kernel, self.shm_device, self.shm_inode

    def to_bytes(self) -> bytes:
        """JSON of at most `MAX_BYTES` bytes."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes) -> HostFacts:
        """The facts that another process sent.

        Raises:
            TopologyError: `data` is not what `to_bytes` makes.

        """
        try:
            if len(data) > MAX_BYTES:
                raise ValueError(f"{len(data)} bytes are more than {MAX_BYTES}")
            found = json.loads(data)
            if not isinstance(found, dict) or set(found) != {field.name for field in fields(HostFacts)}:
                raise ValueError("its fields are not those of HostFacts")
            found["notes"] = tuple(found["notes"])
            for field in fields(HostFacts):
                _check_type(field.name, found[field.name])
            return HostFacts(**found)
        except (ValueError, TypeError, RecursionError) as error:
            raise TopologyError(f"malformed facts about a host: {error}") from error


def read_host_facts(shm_directory: str = "/dev/shm", root: str | os.PathLike[str] = "/") -> HostFacts:
    """The facts about this process's node.  Local; never raises: what is missing is in `notes`.

    Args:
        shm_directory: where shared memory segments are made.
        root: directory that holds proc/ and `shm_directory`; tests replace it.

    """
    base = Path(root)
    notes: list[str] = []
    boot_id = _read(base / "proc/sys/kernel/random/boot_id")
    if not boot_id:
        notes.append("no boot id: the host name stands in, so two hosts of one name may be taken for one")
    device, inode = -1, -1
    try:
        found = os.stat(base / shm_directory.lstrip("/"))
        device, inode = found.st_dev, found.st_ino
    except OSError as error:
        notes.append(f"no shared memory directory {shm_directory}: {error.strerror}")
    ipc, pid, net = (_namespace(base, name) for name in _NAMESPACES)
    return HostFacts(
        host_name=_read(base / "proc/sys/kernel/hostname") or os.uname().nodename,
        boot_id=boot_id,
        shm_directory=shm_directory,
        shm_device=device,
        shm_inode=inode,
        ipc_namespace=ipc,
        pid_namespace=pid,
        net_namespace=net,
        uid=os.geteuid(),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class Probe:
    """A token laid into the shared memory directory.

    Attributes:
        path: the segment that holds the token.
        token: `TOKEN_BYTES` random bytes, its beginning.
        segment: held by who made it; `close` it once everybody has looked.

    """

    path: str
    token: bytes
    segment: Segment


def offer_probe(directory: str) -> Probe:
    """Lay a random token into `directory` for others to see.

    Raises:
        ResourceError: the directory is missing, not writable or full.

    """
    segment = create_segment(TOKEN_BYTES, directory=directory, purpose="probe")
    token = secrets.token_bytes(TOKEN_BYTES)
    segment.buffer[:TOKEN_BYTES] = token
    return Probe(segment.path, token, segment)


def sees(path: str, token: bytes) -> bool:
    """Whether this process finds the token of another's probe at `path`.

    False also for whatever is not a regular file of this user: a path from elsewhere is not trusted to be
    ours, and nothing is read from devices or through links.
    """
    if not token:
        return False
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                return os.pread(descriptor, len(token), 0) == token
        finally:
            os.close(descriptor)
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _namespace(base: Path, name: str) -> int:
    """The inode number in a link such as ``ipc:[4026531839]``; -1 where there is none."""
    try:
        target = os.readlink(base / "proc/self/ns" / name)
    except OSError:
        return -1
    number = target.removeprefix(f"{name}:[").removesuffix("]")
    return int(number) if number.isascii() and number.isdigit() else -1


def _clipped(text: str, limit: int) -> str:
    # Unprintable characters would grow to \\u escapes of six bytes in JSON.
    printable = "".join(char if char.isprintable() else "?" for char in text[:limit])
    return printable.encode("utf-8", errors="replace")[:limit].decode("utf-8", errors="ignore")


def _check_type(name: str, value: object) -> None:
    default = getattr(HostFacts, name, "")
    if type(value) is not type(default):
        raise ValueError(f"{name} is {value!r}")
    if isinstance(value, tuple) and not all(isinstance(note, str) for note in value):
        raise ValueError(f"{name} is {value!r}")
