"""Where a summary goes: to stderr, to the end of a file of JSON lines, or to a new file in a directory."""

from __future__ import annotations

import logging
import os
import socket
import sys
from itertools import count
from typing import TYPE_CHECKING

from hpccoll.config import METRICS_COUNT, METRICS_SHOWN

if TYPE_CHECKING:
    from hpccoll.observe.summary import Summary

_numbers = count()


class Output:
    """`setting`: that of `metrics`; `path`: of the file or directory, or empty."""

    def __init__(self, setting: str, rank: int) -> None:
        self.shows = setting != METRICS_COUNT
        self.path = "" if setting in (METRICS_COUNT, METRICS_SHOWN) else setting
        if self.path and rank == 0 and not self._can_be_written():
            logging.getLogger("hpccoll").warning(
                "metrics is %r, which cannot be written: they will go to stderr", self.path
            )

    @property
    def _is_directory(self) -> bool:
        return self.path.endswith("/") or os.path.isdir(self.path)

    def _can_be_written(self) -> bool:
        """As far as can be seen before."""
        if os.path.isfile(self.path):
            return os.access(self.path, os.W_OK)
        above = os.path.abspath(self.path)
        while self._is_directory and not os.path.exists(above):  # it will be made
            above = os.path.dirname(above)
        at = above if self._is_directory else os.path.dirname(above)
        return os.path.isdir(at) and os.access(at, os.W_OK | os.X_OK)

    def write(self, summary: Summary) -> None:
        """Never raises: what cannot be written goes to stderr, with the reason to the logger."""
        if self.path:
            try:
                self._append("".join(f"{line}\n" for line in summary.json_lines()).encode())
                return
            except OSError as error:
                logging.getLogger("hpccoll").warning(
                    "the metrics cannot be written to %s: %s", self.path, error.strerror
                )
        print(summary.text(), file=sys.stderr, flush=True)

    def _append(self, data: bytes) -> None:
        """At once, so that lines of several processes do not mix; a file of this user alone."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        path = self.path
        if self._is_directory:
            os.makedirs(path, 0o700, exist_ok=True)
            name = f"metrics-{socket.gethostname()}-{os.getpid()}-{next(_numbers)}.jsonl"
            path, flags = os.path.join(path, name), flags | os.O_EXCL
        descriptor = os.open(path, flags, 0o600)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)
