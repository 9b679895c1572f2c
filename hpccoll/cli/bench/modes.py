"""How a collective is called: as it is, as I... with Wait, or as ..._init with Start and Wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any

from hpccoll.cli.bench.overlap import Halves, Wait

Call = Callable[[], None]


class Mode(Enum):
    """The three ways; the value is the name in the JSON file."""

    BLOCKING = "blocking"
    NONBLOCKING = "nonblocking"
    PERSISTENT = "persistent"

    def method(self, name: str) -> str:
        """The name of the method: `Allreduce`, `Iallreduce`, `Allreduce_init`."""
        if self is Mode.NONBLOCKING:
            return f"I{name.lower()}"
        return f"{name}_init" if self is Mode.PERSISTENT else name


@contextmanager
def bound(mode: Mode, comm: Any, name: str, arguments: tuple[Any, ...], options: Any) -> Iterator[Call]:
    """The call with its arguments, ready to be made and timed.

    A persistent request is made here, once, and freed at the end; not after an error, when it may be active.
    """
    method = partial(getattr(comm, mode.method(name)), *arguments, **options)
    if mode is Mode.BLOCKING:
        yield method
    elif mode is Mode.NONBLOCKING:
        yield Halves(lambda: method().Wait)
    else:
        request = method()
        yield Halves(partial(_started, request))
        request.Free()


def _started(request: Any) -> Wait:
    request.Start()
    wait: Wait = request.Wait
    return wait
