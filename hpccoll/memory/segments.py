"""Memory that the ranks of a node share: files of our own in a tmpfs, mapped by each rank.

::

    creator                         the others
      create_segment(...)
      path  ---- told by MPI ---->    attach_segment(path, nbytes)
      <------- all have attached -----
      unlink()                        # from here on nothing is left in /dev/shm, whatever dies

All of a segment is reserved when it is created (`posix_fallocate`), so that too little memory is an
error there and not a SIGBUS at some later store.  Files are named

    hpccoll-<uid>-<machine>-<pid>-<start>-<random>-<purpose>

where <machine> is one boot of one pid namespace and <start> the creator's start time in clock ticks:
together they tell a live creator from a dead one whose pid was given out again, and `sweep` goes by
them.  No descriptor stays open: a job may hold thousands of segments, and `mmap.mmap` would keep one
for each, which is why the C library's mmap is called here.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import re
import resource
import secrets
import stat
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from hpccoll.errors import ResourceError, TopologyError, UsageError
from hpccoll.memory.limits import memory_limit

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "Segment",
    "attach_segment",
    "create_segment",
    "free_bytes",
    "is_stopped",
    "lives",
    "pid_space",
    "process_start",
    "sweep",
]

_NAME = re.compile(
    r"hpccoll-(?P<uid>\d+)-(?P<machine>[0-9a-z.]+)-(?P<pid>[1-9]\d{0,6})-(?P<start>\d+)-[0-9a-f]+-(?P<purpose>[\w.]+)",
    re.ASCII,
)
_PURPOSE = re.compile(r"[\w.]{1,64}", re.ASCII)
PID_UNKNOWN = "unknown"
TRACE = "trace."  # what purposes of the recorder's files begin with
_MODE = 0o600
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_MAP_FAILED = ctypes.c_void_p(-1).value


class Segment:
    """A mapped segment; made by `create_segment` and `attach_segment`.

    `path`: the file's path; `nbytes`: its size, a whole number of pages.  The memory starts as zeros.
    """

    def __init__(self, path: str, nbytes: int, memory: ctypes.Array[ctypes.c_char], *, creator: bool) -> None:
        self.path = path
        self.nbytes = nbytes
        self._memory: ctypes.Array[ctypes.c_char] | None = memory
        # A creator that goes away by an exception must not leave its file behind.
        self._unlink = weakref.finalize(self, _unlink_own, path, os.getpid()) if creator else None

    @property
    def buffer(self) -> memoryview:
        """All of the segment as writable bytes.  Raises UsageError after `close`."""
        if self._memory is None:
            raise UsageError(f"segment {self.path} is closed")
        return memoryview(self._memory).cast("B")

    def array(self, dtype: npt.DTypeLike, offset: int, count: int) -> np.ndarray[Any, Any]:
        """A writable view of `count` elements from byte `offset` on, shape (count,); no copy.

        Raises: UsageError when it is not inside the segment or not aligned for `dtype`.
        """
        kind = np.dtype(dtype)
        if offset < 0 or count < 0 or offset + count * kind.itemsize > self.nbytes:
            raise UsageError(
                f"{count} x {kind} from byte {offset} is outside the segment of {self.nbytes} bytes"
            )
        if offset % kind.alignment:
            raise UsageError(
                f"offset {offset} is not aligned to the {kind.alignment} bytes that {kind} needs"
            )
        view: np.ndarray[Any, Any] = np.ndarray((count,), kind, self.buffer, offset)
        return view

    def unlink(self) -> None:
        """Takes the file's name away; the memory stays as long as somebody maps it.

        Does something for the creator only, and once; a forked child of the creator is not the creator.
        """
        if self._unlink is not None:
            self._unlink()

    def keep(self) -> None:
        """Leaves the file to the caller: nothing here takes its name away any more."""
        if self._unlink is not None:
            self._unlink.detach()
            self._unlink = None

    def close(self) -> None:
        """Lets go of the memory, and unlinks for the creator.  May be called again.

        Arrays and flags over the segment stay usable: the map goes with the last of them.
        """
        self.unlink()
        self._memory = None

    def __enter__(self) -> Segment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def create_segment(nbytes: int, *, directory: str = "/dev/shm", purpose: str) -> Segment:
    """Makes and maps a segment of at least `nbytes` zero bytes, readable by this user only.

    `nbytes`: at least 1, rounded up to whole pages.  `directory`: a tmpfs, for speed.
    `purpose`: letters, digits, ``_`` and ``.``; it ends the file's name and appears in errors.

    Raises: UsageError for a bad argument; ResourceError (with `errno`) when the directory is missing or
    not writable, has too little room, when a control group leaves too little memory, or when descriptors or
    address space are used up.  Then nothing is left behind.
    """
    if not _PURPOSE.fullmatch(purpose):
        raise UsageError(f"purpose {purpose!r} has characters other than letters, digits, '_' and '.'")
    nbytes = _whole_pages(nbytes)
    _check_limit(nbytes, purpose)
    pid = os.getpid()
    name = f"hpccoll-{os.geteuid()}-{pid_space()}-{pid}-{process_start(pid)}-{secrets.token_hex(8)}-{purpose}"
    path = os.path.join(os.path.abspath(directory), name)
    created = False
    try:
        descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, _MODE)
        created = True
        try:
            os.fchmod(descriptor, _MODE)  # a umask may have taken bits away
            os.posix_fallocate(descriptor, 0, nbytes)
            return Segment(path, nbytes, _map(descriptor, nbytes), creator=True)
        finally:
            os.close(descriptor)
    except BaseException as error:
        if created:
            os.unlink(path)
        if isinstance(error, OSError):
            _refuse(error, nbytes, directory, purpose)
        raise


def attach_segment(path: str, nbytes: int) -> Segment:
    """Maps a segment that another process of this user made with the same `nbytes`.

    Raises: TopologyError when `path` is not there (this process sees another directory than the creator,
    so they are not on one node), or is not a regular file, of this user, with mode 0600 and of that
    size; ResourceError when descriptors or address space are used up.
    """
    nbytes = _whole_pages(nbytes)
    directory = os.path.dirname(path)
    try:
        descriptor = os.open(path, _FLAGS | os.O_NONBLOCK)
    except OSError as error:
        _refuse_other(error, path)
        _refuse(error, nbytes, directory, path)
    try:
        _check_ours(path, os.fstat(descriptor), nbytes)
        return Segment(path, nbytes, _map(descriptor, nbytes), creator=False)
    except OSError as error:
        _refuse(error, nbytes, directory, path)
    finally:
        os.close(descriptor)


def free_bytes(directory: str) -> int:
    """Bytes that this user can still reserve in `directory`.  Raises ResourceError when it is not there."""
    try:
        found = os.statvfs(directory)
    except OSError as error:
        raise _with_errno(ResourceError(f"{directory}: {error.strerror}"), error) from error
    return found.f_bavail * found.f_frsize


def sweep(directory: str = "/dev/shm", *, older_than_s: float = 0.0) -> list[str]:
    """Removes segments whose creator is dead; returns their paths.

    `older_than_s`: seconds since a segment was made, or last written; younger ones are left alone.  Files of
    purpose TRACE go only where it is given.

    Judges only regular files of this user, named as above by a creator of this very boot and pid
    namespace.  A live creator, another user, a symbolic link and a foreign name are left alone, and so
    is everything where /proc cannot be read.  A missing directory has nothing to sweep.
    """
    removed: list[str] = []
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return removed
    for entry in entries:
        with contextlib.suppress(OSError):
            if _is_stale(entry, older_than_s):
                os.unlink(entry.path)
                removed.append(entry.path)
    return removed


def _is_stale(entry: os.DirEntry[str], older_than_s: float) -> bool:
    name, machine = _NAME.fullmatch(entry.name), pid_space()
    if name is None or machine == PID_UNKNOWN or name["machine"] != machine:
        return False
    if name["purpose"].startswith(TRACE) and not older_than_s:
        return False  # a dead process's last calls are there to be read
    found = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode) or not int(name["uid"]) == found.st_uid == os.geteuid():
        return False
    if time.time() - found.st_mtime < older_than_s:
        return False
    return not lives(int(name["pid"]), int(name["start"]))


def pid_space() -> str:
    """One boot of one pid namespace; pids mean the same processes inside it and nowhere else."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # /proc shows another namespace
            return PID_UNKNOWN
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return f"{boot[:8]}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return PID_UNKNOWN


def lives(pid: int, start: int) -> bool:
    """Whether the process that had `pid` and this start time still runs; True where that is unknown."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    state, found = _process(pid)
    if state in "ZX" and len(os.listdir(f"/proc/{pid}/task")) == 1:
        return False  # dead, and its parent has not asked yet
    return found in (0, start)


def is_stopped(pid: int, start: int) -> bool:
    """Whether the process that had `pid` and this start time is stopped by a signal, or by a debugger."""
    state, found = _process(pid)
    return state in "Tt" and found == start


def process_start(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when /proc does not tell."""
    return _process(pid)[1]


def _process(pid: int) -> tuple[str, int]:
    """State letter and start (clock ticks since boot) of a process; ("?", 0) when /proc does not tell."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "?", 0
    # The command's name, in parentheses, can hold spaces and parentheses: count from its end.
    fields = status.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _unlink_own(path: str, creator_pid: int) -> None:
    if os.getpid() == creator_pid:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _whole_pages(nbytes: int) -> int:
    if nbytes < 1:
        raise UsageError(f"a segment has at least 1 byte, not {nbytes}")
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _check_ours(path: str, found: os.stat_result, nbytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise TopologyError(f"{path} is not a shared memory segment: not a regular file")
    if found.st_uid != os.geteuid():
        raise TopologyError(f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}")
    if stat.S_IMODE(found.st_mode) != _MODE:
        raise TopologyError(f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, not {_MODE:04o}")
    if found.st_size != nbytes:
        raise TopologyError(f"{path} has {found.st_size} bytes, not {nbytes}: not the segment that was meant")


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _map(descriptor: int, nbytes: int) -> ctypes.Array[ctypes.c_char]:
    """Shared writable memory that is unmapped when its last view goes."""
    libc, access = _libc(), mmap.PROT_READ | mmap.PROT_WRITE
    address = libc.mmap(None, nbytes, access, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    memory = (ctypes.c_char * nbytes).from_address(address)
    # Views may live on while the interpreter goes down: then the kernel unmaps.
    weakref.finalize(memory, libc.munmap, address, nbytes).atexit = False
    return memory


def _check_limit(nbytes: int, purpose: str) -> None:
    """Raises ResourceError where the control group would kill a process for so many bytes more."""
    limit = memory_limit()
    if limit is not None and nbytes > limit.left:
        refusal = ResourceError(
            f"shared memory segment of {_in_words(nbytes)} for {purpose}: only {_in_words(limit.left)} are "
            f"left of the memory limit of {_in_words(limit.total)} ({limit.directory}), above which the "
            "kernel kills; ask the batch system or the container for more, or lower HPCCOLL_STAGING_BYTES"
        )
        refusal.errno = errno.ENOMEM
        raise refusal


def _refuse_other(error: OSError, path: str) -> None:
    """Raises TopologyError when opening failed because the file is not the segment that was meant."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        raise TopologyError(
            f"shared memory segment {path} is not there: this rank sees another {os.path.dirname(path)} "
            "than the creator (another host or mount namespace), or the creator is gone"
        ) from error
    if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
        raise TopologyError(f"{path} is not a shared memory segment: {error.strerror}") from error
    if error.errno in (errno.EACCES, errno.EPERM):
        raise TopologyError(f"{path} is not open to this user: do all ranks run as one user?") from error


def _refuse(error: OSError, nbytes: int, directory: str, purpose: str) -> NoReturn:
    """Raises the ResourceError for a system error: what was wanted, what there is, what to do."""
    wanted = f"shared memory segment of {_in_words(nbytes)} for {purpose}: "
    raise _with_errno(ResourceError(wanted + _cause(error, directory)), error) from error


def _cause(error: OSError, directory: str) -> str:
    code = error.errno
    if code in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"only {_in_words(free_bytes(directory))} free in {directory}; enlarge it "
            "(docker run --shm-size=..., mount -o remount,size=...) or lower HPCCOLL_STAGING_BYTES"
        )
    if code in (errno.ENOENT, errno.ENOTDIR):
        return f"there is no directory {directory}; mount a tmpfs there or set HPCCOLL_SHM_DIR to another"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{directory} is not writable ({error.strerror}); set HPCCOLL_SHM_DIR to a directory that is"
    if code in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"no descriptor is free ({error.strerror}; limit {limit}); close files or raise ulimit -n"
    if code == errno.ENOMEM:
        return "no address space or memory is free for the map; raise ulimit -v or the job's memory limit"
    if code == errno.EFBIG:
        return "larger than the file size limit; raise ulimit -f"
    return f"{error.strerror} in {directory}"


def _with_errno(refusal: ResourceError, error: OSError) -> ResourceError:
    refusal.errno = error.errno
    return refusal


def _in_words(nbytes: int) -> str:
    power = min(4, max(0, nbytes.bit_length() - 1) // 10)
    return f"{nbytes / 1024**power:.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
