"""Messages: MPI's own methods, which also take arrays on devices.

An array of NumPy goes on to MPI at once.  An MPI that is not CUDA-aware would read the address of a device as
one of the host, so such arrays are made ready for it first (runtime/device_messages.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from mpi4py import MPI
from numpy import ndarray

from hpccoll.arrays.foreign import on_device
from hpccoll.calls.messages import Argument, message_to_receive, message_to_replace, message_to_send
from hpccoll.collectives.base import Base
from hpccoll.errors import UsageTypeError

if TYPE_CHECKING:
    from hpccoll.runtime.device_messages import Messages

_Comm = MPI.Comm
_ANY_SOURCE, _ANY_TAG, _NOBODY = MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.PROC_NULL

# Whose instances need not be asked, which takes microseconds.
_ON_HOST = frozenset({ndarray, bytes, bytearray, memoryview, array, MPI.buffer, type(MPI.BOTTOM), type(None)})


def is_on_device(spec: Any) -> bool:
    """Whether an argument, an array or one of mpi4py's lists, has its elements on a device."""
    if isinstance(spec, (list, tuple)):
        spec = spec[0] if spec else None
    return type(spec) not in _ON_HOST and on_device(spec)


def sent(buf: Any, what: str, dest: int, *, copied: bool = False) -> Argument:
    """An argument that one message takes to a rank."""
    return Argument(buf, what, message_to_send, sends=dest != _NOBODY, copied=copied)


def received(buf: Any, what: str) -> Argument:
    """An argument that one message is received in."""
    return Argument(buf, what, message_to_receive, receives=True)


def replaced(buf: Any, dest: int) -> Argument:
    """An argument whose elements one message takes away, and another replaces."""
    return Argument(buf, "buf", message_to_replace, sends=dest != _NOBODY, receives=True)


def _sending(mpi: Callable[..., Any], way: str) -> Callable[..., Any]:
    """MPI's method; `way`: the method of `Messages` that makes the call for an array on a device."""

    @wraps(mpi)
    def send(self: PointToPoint, buf: Any, dest: int, tag: int = 0) -> Any:
        if type(buf) is ndarray or not is_on_device(buf):
            return mpi(self, buf, dest, tag)
        make = getattr(self._messages, way)
        return make(lambda spec: mpi(self, spec, dest, tag), [sent(buf, "buf", dest)])

    return send


def _partitioned(mpi: Callable[..., MPI.Prequest]) -> Callable[..., MPI.Prequest]:
    @wraps(mpi)
    def bind(self: PointToPoint, buf: Any, *args: Any, **kwargs: Any) -> MPI.Prequest:
        if is_on_device(buf):
            raise UsageTypeError("buf is on a device: partitioned messages take arrays on the host only")
        return mpi(self, buf, *args, **kwargs)

    return bind


class PointToPoint(Base):
    """Messages between two ranks.

    Arguments and results are mpi4py's.  An array on a device may be strided, or have a derived datatype.  Its
    elements are sent as the stream leaves them, for which the host waits, also in `Isend`.  A
    blocking receive leaves the last copy to the array's stream; a request is complete when the array is.  The
    other rank may have its array on the host.

    Raises: MPI.Exception, of MPI; UsageError, UsageTypeError for what is no buffer, and while a CUDA graph is
    captured; CollectiveTimeoutError when a stream does not come to an array to send within `timeout_s`.
    """

    _device_messages: Messages | None = None

    @property
    def _messages(self) -> Messages:
        if self._device_messages is None:
            from hpccoll.runtime.device_messages import Messages

            self._device_messages = Messages(self, self.config)
        return self._device_messages

    @property
    def message_path(self) -> str:
        """How messages of device arrays travel: "mpi", or "host" and why; "" before the first.  Local."""
        return "" if self._device_messages is None else self._device_messages.path

    Send = _sending(_Comm.Send, "run")
    Ssend = _sending(_Comm.Ssend, "run")
    Bsend = _sending(_Comm.Bsend, "run")
    Rsend = _sending(_Comm.Rsend, "run")
    Isend = _sending(_Comm.Isend, "start")
    Issend = _sending(_Comm.Issend, "start")
    Ibsend = _sending(_Comm.Ibsend, "start")
    Irsend = _sending(_Comm.Irsend, "start")
    Send_init = _sending(_Comm.Send_init, "bind")
    Ssend_init = _sending(_Comm.Ssend_init, "bind")
    Bsend_init = _sending(_Comm.Bsend_init, "bind")
    Rsend_init = _sending(_Comm.Rsend_init, "bind")
    Psend_init = _partitioned(_Comm.Psend_init)
    Precv_init = _partitioned(_Comm.Precv_init)

    def Recv(
        self, buf: Any, source: int = _ANY_SOURCE, tag: int = _ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        if type(buf) is ndarray or not is_on_device(buf):
            return _Comm.Recv(self, buf, source, tag, status)
        status = MPI.Status() if status is None else status
        self._messages.run(
            lambda spec: _Comm.Recv(self, spec, source, tag, status), [received(buf, "buf")], status
        )

    def Irecv(self, buf: Any, source: int = _ANY_SOURCE, tag: int = _ANY_TAG) -> MPI.Request:
        if type(buf) is ndarray or not is_on_device(buf):
            return _Comm.Irecv(self, buf, source, tag)
        return self._messages.start(lambda spec: _Comm.Irecv(self, spec, source, tag), [received(buf, "buf")])

    def Recv_init(self, buf: Any, source: int = _ANY_SOURCE, tag: int = _ANY_TAG) -> MPI.Prequest:
        if type(buf) is ndarray or not is_on_device(buf):
            return _Comm.Recv_init(self, buf, source, tag)
        return self._messages.bind(
            lambda spec: _Comm.Recv_init(self, spec, source, tag), [received(buf, "buf")]
        )

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = _ANY_SOURCE,
        recvtag: int = _ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        if (type(sendbuf) is ndarray or not is_on_device(sendbuf)) and (
            type(recvbuf) is ndarray or not is_on_device(recvbuf)
        ):
            return _Comm.Sendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        status = MPI.Status() if status is None else status
        self._messages.run(
            lambda give, take: _Comm.Sendrecv(self, give, dest, sendtag, take, source, recvtag, status),
            [sent(sendbuf, "sendbuf", dest), received(recvbuf, "recvbuf")],
            status,
        )

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = _ANY_SOURCE,
        recvtag: int = _ANY_TAG,
    ) -> MPI.Request:
        if not is_on_device(sendbuf) and not is_on_device(recvbuf):
            return _Comm.Isendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag)
        arguments = [received(recvbuf, "recvbuf"), sent(sendbuf, "sendbuf", dest)]
        return self._both(arguments, dest, sendtag, source, recvtag)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = _ANY_SOURCE,
        recvtag: int = _ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        if type(buf) is ndarray or not is_on_device(buf):
            return _Comm.Sendrecv_replace(self, buf, dest, sendtag, source, recvtag, status)
        status = MPI.Status() if status is None else status
        self._messages.run(
            lambda spec: _Comm.Sendrecv_replace(self, spec, dest, sendtag, source, recvtag, status),
            [replaced(buf, dest)],
            status,
        )

    def Isendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = _ANY_SOURCE,
        recvtag: int = _ANY_TAG,
    ) -> MPI.Request:
        if not is_on_device(buf):
            return _Comm.Isendrecv_replace(self, buf, dest, sendtag, source, recvtag)
        arguments = [received(buf, "buf"), sent(buf, "buf", dest, copied=True)]
        return self._both(arguments, dest, sendtag, source, recvtag)

    def _both(
        self, arguments: list[Argument], dest: int, sendtag: int, source: int, recvtag: int
    ) -> MPI.Request:
        """One request for two messages.  MPI has such a call too, but with MPICH its status says nothing."""

        def start(take: Any, give: Any) -> list[MPI.Request]:
            taking = _Comm.Irecv(self, take, source, recvtag)
            return [taking, _Comm.Isend(self, give, dest, sendtag)]

        return self._messages.start(start, arguments)

    def Mprobe(
        self, source: int = _ANY_SOURCE, tag: int = _ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message:
        return _Matched(_Comm.Mprobe(self, source, tag, status))._of(self)

    def Improbe(
        self, source: int = _ANY_SOURCE, tag: int = _ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message | None:
        found = _Comm.Improbe(self, source, tag, status)
        return None if found is None else _Matched(found)._of(self)


class _Matched(MPI.Message):
    """A message that was probed."""

    _comm: PointToPoint

    def _of(self, comm: PointToPoint) -> _Matched:
        self._comm = comm
        return self

    def Recv(self, buf: Any, status: MPI.Status | None = None) -> None:
        if not is_on_device(buf):
            return MPI.Message.Recv(self, buf, status)
        status = MPI.Status() if status is None else status
        self._comm._messages.run(
            lambda spec: MPI.Message.Recv(self, spec, status), [received(buf, "buf")], status
        )

    def Irecv(self, buf: Any) -> MPI.Request:
        if not is_on_device(buf):
            return MPI.Message.Irecv(self, buf)
        return self._comm._messages.start(lambda spec: MPI.Message.Irecv(self, spec), [received(buf, "buf")])
