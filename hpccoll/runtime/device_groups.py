"""The communicators of groups that calls on devices use: NCCL's, and ours of host arrays between nodes.

They are made with the first call that needs them, on the calling thread and in one order on all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from mpi4py import MPI

from hpccoll import unique_id
from hpccoll.config import Config
from hpccoll.runtime.device_memory import Registered
from hpccoll.runtime.streams import Device
from hpccoll.topology.agreement import gather, tell_failure
from hpccoll.transports import nccl
from hpccoll.transports.nccl import NcclGroup

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator

Members = tuple[int, ...]
Groups = tuple[Members, ...]


class DeviceGroups:
    """Of one rank, by their members: `nccl`, and `inner` for host arrays.

    `memory`: which NCCL's communicators are told of.  `look`: as that of `NcclGroup`.
    """

    def __init__(
        self,
        private: MPI.Intracomm,
        config: Config,
        device: Device,
        memory: Registered,
        look: Callable[[], None],
    ) -> None:
        self._private = private
        self._rank = private.rank
        self._config = config
        self._device = device
        self._memory = memory
        self._look = look
        self._made: set[Groups] = set()
        self.nccl: dict[Members, NcclGroup] = {}
        self.inner: dict[Members, Communicator] = {}

    def make(self, groups: Groups) -> None:
        """The NCCL communicators of all groups of a step.  Collective.

        Raises: ResourceError, CollectiveTimeoutError, on all ranks.
        """
        if groups in self._made:
            return
        wanted = [members for members in groups if len(members) > 1]
        mine = self._mine(groups)
        new = bool(mine) and mine not in self.nccl
        offered = unique_id.offer(mine.index(self._rank), nccl.fresh_id) if mine else b""
        deadline = self._deadline()
        messages = gather(self._private, offered, deadline, "ids of NCCL communicators")
        ids = {members: unique_id.accept([messages[rank] for rank in members]) for members in wanted}
        failed = ""
        if new:
            try:
                with self._device:
                    self.nccl[mine] = NcclGroup(
                        ids[mine], mine, mine.index(self._rank), deadline, self._config.timeout_s, self._look
                    )
                    self._memory.tell(self.nccl[mine])
            except Exception as error:  # whatever NCCL's bindings raise: the others are waiting
                failed = str(error) or type(error).__name__
        # Who waits in NCCL for a rank that failed is back here at the deadline.
        tell_failure(self._private, failed, deadline + self._config.init_timeout_s, "NCCL communicator")
        self._made.add(groups)

    def make_inner(self, groups: Groups) -> None:
        """The communicators of host arrays of all groups of a step between nodes.  Collective.

        Raises: ResourceError, CollectiveTimeoutError, on all ranks.
        """
        if groups in self._made:
            return
        from hpccoll.communicator import Communicator

        failed, mine = "", self._mine(groups)
        if mine:
            part = self._private.group.Incl(mine)
            try:
                settings = asdict(replace(self._config, algorithm=""))
                inner = Communicator(self._private.Create_group(part), **settings)
                inner.machine  # noqa: B018  made at first use, which is now
                self.inner[mine] = inner
            except Exception as error:  # the others are waiting
                failed = str(error) or type(error).__name__
            finally:
                part.Free()
        tell_failure(self._private, failed, self._deadline(), "communicator between nodes")
        self._made.add(groups)

    def _mine(self, groups: Groups) -> Members:
        """The group of this rank, empty where it is alone."""
        return next((members for members in groups if self._rank in members and len(members) > 1), ())

    def _deadline(self) -> float:
        return time.monotonic() + self._config.init_timeout_s

    def close(self) -> None:
        """Free the communicators, in the order in which they were made.  Collective."""
        deadline = time.monotonic() + self._config.timeout_s
        with self._device:
            for group in self.nccl.values():
                group.close(deadline)
        for inner in self.inner.values():
            inner.Free()
        self.inner.clear()

    def abort(self) -> None:
        """Give NCCL's up: what waits for a lost rank ends.  Local."""
        for group in self.nccl.values():
            group.abort()

    def release(self) -> None:
        """Let go of this rank's part; local."""
        for inner in self.inner.values():
            inner._let_go()
        self.nccl.clear()
