"""NCCL communicators of groups: made with a deadline, and given up without waiting.

They are non-blocking ones of NCCL, so that a rank that never comes ends in an error instead of a hang.
`hpccoll.runtime.tape` makes the calls on them.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from nccl.bindings import nccl

from hpccoll.errors import AbortedError, CollectiveTimeoutError
from hpccoll.unique_id import ID_BYTES

_SUCCESS, _IN_PROGRESS = int(nccl.Result.Success), int(nccl.Result.InProgress)
_HOST_IMMEDIATE = int(nccl.ScalarResidence.HostImmediate)
_SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
_SLEEP_S = 50e-6

TYPES: dict[str, int] = {
    "int8": int(nccl.DataType.Int8),
    "uint8": int(nccl.DataType.Uint8),
    "int32": int(nccl.DataType.Int32),
    "uint32": int(nccl.DataType.Uint32),
    "int64": int(nccl.DataType.Int64),
    "uint64": int(nccl.DataType.Uint64),
    "float16": int(nccl.DataType.Float16),
    "float32": int(nccl.DataType.Float32),
    "float64": int(nccl.DataType.Float64),
    "bfloat16": int(nccl.DataType.Bfloat16),
    "float8e4m3": int(nccl.DataType.Float8e4m3),
    "float8e5m2": int(nccl.DataType.Float8e5m2),
}
"""NCCL's types by the names of the table of dtypes."""

OPERATORS: dict[str, int] = {
    "SUM": int(nccl.RedOp.Sum),
    "PROD": int(nccl.RedOp.Prod),
    "MAX": int(nccl.RedOp.Max),
    "MIN": int(nccl.RedOp.Min),
}


def version() -> int:
    """NCCL's version as it numbers them: 23003 is 2.30.3.  Raises what loading it raises."""
    return int(nccl.get_version())


def fresh_id() -> bytes:
    """A unique id that no communicator has."""
    made = nccl.get_unique_id()  # which owns the memory
    return ctypes.string_at(made.ptr, ID_BYTES)


def allocate(nbytes: int) -> int:
    """Memory on the current device in which NCCL may register anything; its address.  See `free`."""
    return int(nccl.mem_alloc(nbytes))


def free(address: int) -> None:
    """Give back what `allocate` gave; nothing uses it any more."""
    nccl.mem_free(address)


def has_windows() -> bool:
    """Whether NCCL registers memory as symmetric windows: 2.27 and later."""
    return version() >= 22700


class NcclGroup:
    """The communicator of one group, of which this rank is member `index`.

    `members`: world ranks, for errors.  `patience_s`: how long NCCL may take to enqueue
    a call.  `look` raises when there is no use in waiting for that.
    """

    def __init__(
        self,
        unique_id: bytes,
        members: Sequence[int],
        index: int,
        deadline: float,
        patience_s: float,
        look: Callable[[], None],
    ) -> None:
        self._patience_s = patience_s
        self._look = look
        self._lock = threading.Lock()  # several threads ask for its state, and one may end it
        self.members = tuple(members)
        self.index = index
        config = nccl.Config()
        config.blocking = 0
        self.handle: Any = nccl.comm_init_rank_scalable(
            len(members), index, 1, bytearray(unique_id), config.ptr
        )
        self._alive = True
        self._gone = False
        try:
            self._settle(deadline, "making a NCCL communicator")
        except BaseException:
            self.abort()
            raise

    # --- operators ------------------------------------------------------------------------------

    def scaled_sum(self, factor: Any, dtype: np.dtype[Any], kind: int) -> int:
        """An operator that multiplies this rank's elements before they are summed; see `drop`."""
        scalar = np.array([factor], dtype)
        return int(nccl.red_op_create_pre_mul_sum(scalar.ctypes.data, kind, _HOST_IMMEDIATE, self.handle))

    def drop(self, operator: int) -> None:
        """Let go of an operator that `scaled_sum` made; calls under way keep it."""
        nccl.red_op_destroy(operator, self.handle)

    # --- memory ---------------------------------------------------------------------------------

    def register(self, address: int, nbytes: int, *, window: bool) -> Callable[[], object]:
        """Let NCCL know of memory on the current device; what undoes it, on a communicator that is alive.

        `window`: as a symmetric window, for which all members come, with as many bytes.  Raises: what NCCL's
        bindings raise, AbortedError, CollectiveTimeoutError.
        """
        if not window:
            handle = nccl.comm_register(self.handle, address, nbytes)
            return partial(nccl.comm_deregister, self.handle, handle)
        made = nccl.comm_window_register(self.handle, address, nbytes, _SYMMETRIC)
        self.settle_call()
        return partial(nccl.comm_window_deregister, self.handle, made)

    @property
    def is_alive(self) -> bool:
        """Neither closed nor given up."""
        return self._alive

    # --- errors ---------------------------------------------------------------------------------

    def state(self) -> int:
        """What NCCL says of the communicator: 0, or 7 while something is under way.

        Raises: AbortedError when it has failed on this rank or another, or was given up.
        """
        who = f"(group of ranks {', '.join(map(str, self.members))})"
        with self._lock:
            if self._gone:
                raise AbortedError(f"this communicator of NCCL was given up {who}")
            status = int(nccl.comm_get_async_error(self.handle))
            if status in (_SUCCESS, _IN_PROGRESS):
                return status
            said = nccl.get_last_error(self.handle)
        raise AbortedError(f"NCCL: {nccl.get_error_string(status)}: {said or 'no details'} {who}")

    def settle_call(self) -> None:
        """Wait until NCCL has enqueued the last call: before that, the stream does not know of it.

        Raises: AbortedError, and CollectiveTimeoutError when it takes longer than `patience_s`.
        """
        self._settle(time.monotonic() + self._patience_s, "a call of the NCCL communicator", self._look)

    def _settle(self, deadline: float, what: str, look: Callable[[], None] = lambda: None) -> None:
        while self.state() == _IN_PROGRESS:
            look()
            if time.monotonic() > deadline:
                raise CollectiveTimeoutError(
                    f"{what} of ranks {', '.join(map(str, self.members))} is not complete at the deadline: "
                    "one of them did not come"
                )
            time.sleep(_SLEEP_S)

    # --- end ------------------------------------------------------------------------------------

    def close(self, deadline: float) -> None:
        """Free the communicator once its calls are done.  Collective in the group.

        Raises: AbortedError, CollectiveTimeoutError; it is given up then.
        """
        if not self._alive:
            return
        self._alive = False
        try:
            nccl.comm_finalize(self.handle)
            self._settle(deadline, "closing a NCCL communicator")
            self._go()
            nccl.comm_destroy(self.handle)
        except Exception as error:
            self._go()
            nccl.comm_abort(self.handle)
            ours = told(error)
            if ours is error:
                raise
            raise ours from error

    def abort(self) -> None:
        """Give the communicator up: its calls end, here and, sooner or later, on the others.  Local."""
        with self._lock:
            if not self._alive:
                return
            self._alive = False
            self._gone = True
        nccl.comm_abort(self.handle)  # which may take long: nobody who asks for the state is to wait for it

    def _go(self) -> None:
        """Nobody asks for its state any more."""
        with self._lock:
            self._gone = True


def told(error: BaseException) -> BaseException:
    """An error of NCCL's bindings as ours; any other as it is."""
    if isinstance(error, nccl.NCCLError):
        return AbortedError(f"NCCL: {error}")
    return error


def may_share_devices() -> bool:
    """Whether the user lets several ranks use one device; NCCL has it since 2.30, as an experiment."""
    return os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") == "1" and version() >= 23000


def available(check: Callable[[], object] = version) -> str:
    """Empty, or why NCCL cannot be used here."""
    try:
        check()
    except Exception as error:  # whatever loading a library raises
        return f"{type(error).__name__}: {error}"
    return ""
