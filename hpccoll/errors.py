"""Every error that hpccoll raises of its own.

::

    HpccollError                     .collective .sequence .group .rank .suspects
    ├── UsageError(ValueError)       your call is wrong; nothing moved; the communicator stays usable
    │   └── UsageTypeError(TypeError)    the same, for a wrong kind of object, dtype or operator
    ├── MismatchError                ranks called different things; names the ranks on each side and the field
    ├── PeerLostError                a rank died or left; names it
    ├── CollectiveTimeoutError(TimeoutError)   names who has not arrived and at which step
    ├── IntegrityError               with `checksums`: what arrived is not what was given; says where
    ├── AbortedError                 another rank failed first for another reason, or because of this one
    ├── NotFiniteError(FloatingPointError)   a NaN or an infinity where GradientBuckets were to look for them
    ├── TopologyError                the machine is not what was asked for
    └── ResourceError(OSError)       shared memory, descriptors, device memory: wanted, free, what to do

What to do next: after `UsageError` and `MismatchError` no data has moved and the communicator is as
before; after `NotFiniteError` it is too, and the arrays have what was computed.  After any other error the
communicator is broken: every later call on it raises `AbortedError` with the first error as its cause; close
it and make another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class HpccollError(Exception):
    """Base of all; the context is there when it is known, else None (or empty)."""

    def __init__(
        self,
        message: str,
        *,
        collective: str | None = None,
        sequence: int | None = None,
        group: str | None = None,
        rank: int | None = None,
        suspects: Sequence[int] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.collective = collective
        self.sequence = sequence
        self.group = group
        self.rank = rank
        self.suspects = tuple(suspects)

    on_devices = False
    """Of a disagreement: a rank of it calls something on a device."""

    def __str__(self) -> str:
        return self.message


class UsageError(HpccollError, ValueError):
    """The call is wrong on at least one rank.  Nothing moved; the communicator stays usable."""


class UsageTypeError(UsageError, TypeError):
    """The call is wrong because of the kind of an object, a dtype or an operator."""


class MismatchError(HpccollError):
    """The ranks called different things.  Nothing moved; the communicator stays usable.

    `counts_differ`: all called the same collective, with different counts.
    """

    counts_differ = False


class PeerLostError(HpccollError):
    """A rank died or left; the same on all ranks (docs/reliability.md)."""


class CollectiveTimeoutError(HpccollError, TimeoutError):
    """A wait passed its deadline, here or on another rank."""


class IntegrityError(HpccollError):
    """With `checksums`: what a rank got is not what another gave; raised by all ranks (docs/reliability.md).

    Attributes:
        level: where it happened, on one "node" or "between nodes".
        chunk: of the plan, from 0; None where elements travelled with the agreement check.
        peer: the rank that gave the elements.
        finder: the rank that was to have them, and found out.

    """

    def __init__(
        self,
        message: str,
        *,
        level: str = "",
        chunk: int | None = None,
        peer: int | None = None,
        finder: int | None = None,
        **context: Any,
    ) -> None:
        super().__init__(message, **context)
        self.level, self.chunk, self.peer, self.finder = level, chunk, peer, finder


class AbortedError(HpccollError):
    """Another rank, or an earlier call on this rank, failed first."""


class NotFiniteError(HpccollError, FloatingPointError):
    """Arrays that were to be reduced have a NaN or an infinity; the message names ranks and arrays."""


class TopologyError(HpccollError):
    """The machine is not what was asked for."""


class ResourceError(HpccollError, OSError):
    """A resource of the machine is missing: the message has how much was wanted, is free, and what to do."""
