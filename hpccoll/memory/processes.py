"""Reading what the other ranks of a node have in their own memory: one copy instead of two through a segment.

Linux lets a process read the memory of another (process_vm_readv) where both have one user and nothing
forbids it: Yama's ptrace_scope, seccomp filters of containers; and in another container process numbers mean
something else.  So every rank tries it on every other first, and all ranks of a node use it or none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpccoll.memory.shared import gathered
from hpccoll.topology.layout import Layout

Read = Callable[[int, int, int], bytes]  # process, address, bytes;  OSError where it may not
_COOKIE_WORDS = 2


class Processes(NamedTuple):
    """The processes of a node's ranks, and whether each of them has a core."""

    numbers: tuple[int, ...]
    have_cores: bool


def open_processes(
    private: MPI.Intracomm, layout: Layout, read: Read | None, has_core: bool
) -> Generator[None, None, Processes | None]:
    """The processes of this node, when each has read from all what they say is there; else None.

    Collective over `private`; yields where it would wait.  `read`: None on a rank that cannot.  `has_core`:
    this rank has one, as far as it knows.
    """
    cookie = np.frombuffer(os.urandom(8 * _COOKIE_WORDS), np.int64).copy()
    own = np.array([0 if read is None else os.getpid(), cookie.ctypes.data, *cookie], np.int64)
    members = layout.nodes[layout.node(private.rank)]
    table = yield from gathered(private, own)
    told = [table[member] for member in members]
    able = read is not None and all(_is_read(read, *one) for one in told)
    # What others read must stay until all have answered.
    answers = yield from gathered(private, np.array([able, has_core], np.int64))
    if not all(answers[member, 0] for member in members):
        return None
    return Processes(tuple(int(one[0]) for one in told), all(answers[member, 1] for member in members))


def _is_read(read: Read, process: Any, address: Any, *cookie: Any) -> bool:
    if process <= 0:
        return False
    try:
        found = read(int(process), int(address), 8 * _COOKIE_WORDS)
    except OSError:
        return False
    return found == np.array(cookie, np.int64).tobytes()
