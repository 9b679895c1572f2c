"""Which calls on device arrays all ranks agree on, though each knows what they become: by their number.

Every rank counts what it has enqueued on NCCL, and keeps a checksum of all of it.  The first
`device_checks_first` calls, and then every `device_checks_every`-th, agree as a first call of a kind does;
the checksum goes with them, so that a difference in a call that nobody has looked at is found then.
"""

from __future__ import annotations

import sys
import zlib

from hpccoll.config import Config

_FACTOR, _MASK = 1_000_003, 0xFFFFFFFF


class DeviceChecks:
    """Of one communicator, the same on all ranks as long as they call the same.

    Attributes:
        made: how many calls this rank has enqueued.
        digest: a checksum of them, in their order; 32 bits.
        next: the call of this number is agreed on, or the first after it that can be.

    """

    def __init__(self, config: Config) -> None:
        self._first, self._every = config.device_checks_first, config.device_checks_every
        self.made = 0
        self.digest = 0
        self.next = sys.maxsize
        if config.checks == "on" and (self._first or self._every):
            self.next = 0

    def enqueued(self, code: int) -> None:
        """A call of this kind is on its stream; `code`: see `code_of`."""
        self.made += 1
        self.digest = (self.digest * _FACTOR + code) & _MASK

    @property
    def is_due(self) -> bool:
        """Whether the ranks agree on the next call."""
        return self.made >= self.next

    def passed(self) -> None:
        """They have, or are about to."""
        if self.made + 1 < self._first:
            self.next = self.made + 1
        else:
            self.next = (self.made // self._every + 1) * self._every if self._every else sys.maxsize


def code_of(kind: tuple[object, ...]) -> int:
    """A number for a kind of calls, the same on all ranks; never 0."""
    return zlib.crc32(repr(kind).encode()) | 1
