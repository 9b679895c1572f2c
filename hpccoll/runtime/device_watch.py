"""Looks after communicators with calls on devices while their hosts do other things: a thread.

NCCL says only to those who ask that it has failed, and waits on the device for a rank that is gone; a host
that waits for its stream asks nobody.  So this thread asks, four times a second; where a communicator cannot
go on it is given up, with NCCL's part of it, and the streams that wait for that go on.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from typing import Protocol

from hpccoll.runtime.threads import started_thread

TICK_S = 0.25


class Watched(Protocol):
    """What is looked after."""

    def look_after(self) -> None:
        """Give it up where it cannot go on.  Waits for nobody, raises nothing."""


class DeviceWatch:
    """The thread; there is one while something is watched."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._all: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, one: Watched) -> None:
        """Look after this, too."""
        with self._lock:
            self._all.add(one)
            if self._thread is None:
                self._thread = started_thread(self._run, "hpccoll-devices")

    def remove(self, one: Watched) -> None:
        """It looks after itself from now on, or is gone."""
        with self._lock:
            self._all.discard(one)

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            with self._lock:
                found = list(self._all)
                if not found:
                    self._thread = None
                    return
            for one in found:
                one.look_after()
            del found, one  # which are not to be kept while this thread sleeps

    def stop(self) -> None:
        """End the thread: the process is about to end."""
        self._stop.set()
        thread = self._thread
        if thread is not None:
            with contextlib.suppress(RuntimeError):
                thread.join(1.0)


WATCH = DeviceWatch()
atexit.register(WATCH.stop)
os.register_at_fork(after_in_child=WATCH._reset)  # a forked child has no device of its parent's
