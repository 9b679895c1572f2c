"""The opening of a call: all ranks agree that they call the same, by which plan, with which lengths.

The elements of small calls travel along (`one_shot`); the others move afterwards (movement.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from hpccoll.calls import Call
from hpccoll.config import Config
from hpccoll.dtypes import tag
from hpccoll.errors import MismatchError, UsageError, UsageTypeError
from hpccoll.memory.shared import gathered
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.runtime.agreement import Agreement, Payload
from hpccoll.runtime.fingerprint import (
    ACCEPTED,
    DEVICE,
    EXCHANGING,
    HOST,
    MAKING,
    RAGGED,
    REFUSED_TYPE,
    REFUSED_VALUE,
    Fingerprint,
    operator_code,
)
from hpccoll.runtime.movement import Movement
from hpccoll.runtime.one_shot import payload_of
from hpccoll.runtime.planning import Planned, Planner, Rows
from hpccoll.runtime.ragged import balance, differing, disagreeing, partly_known, shared_counts, vectors
from hpccoll.runtime.wait import Hint, Waits
from hpccoll.transports.base import Array

if TYPE_CHECKING:
    from hpccoll._native import _core


class Opening:
    """Opens the calls of one communicator, one after the other."""

    def __init__(
        self,
        private: MPI.Intracomm,
        config: Config,
        planner: Planner,
        agreement: Agreement,
        movement: Movement,
    ) -> None:
        self._private = private
        self._rank, self._size = private.rank, private.size
        self._config = config
        self._planner = planner
        self._agreement = agreement
        self._movement = movement

    def agree(
        self,
        call: Call,
        sequence: int,
        give: Array,
        arrived: bool = False,
        spread: _core.Spread | None = None,
    ) -> Generator[Hint | None, None, tuple[Planned, Payload | None]]:
        """The plan that all ranks take, and the payload if it has travelled along.

        `arrived`, `spread`: as in `Agreement.check`.
        """
        if partly_known(call):
            planned = yield from self._agree_on_lengths(call, sequence)
            payload = None
        else:
            again = call.ragged and call.collective == "reduce_scatter" and call.gives is None
            refusal = (yield from self._exchange_counts(call, sequence)) if again else None
            planned = self._planner.plan(call)
            one_shot = planned.plan.name == ONE_SHOT
            payload = payload_of(call, planned.plan, give) if one_shot else None
            if payload is not None or again or self._config.checks == "on" or call.collective == "barrier":
                fingerprint = fingerprint_of(call, sequence, planned.code, refusal=refusal)
                try:
                    yield from self._agreement.check(
                        sequence, fingerprint, str(refusal or ""), payload, again, arrived, spread
                    )
                except MismatchError as error:
                    yield from self._name_counts(call, error)
                    raise
                if refusal is not None:
                    raise refusal
        if planned.needs_staging:
            yield from self._movement.open()
        return planned, payload

    def _exchange_counts(self, call: Call, sequence: int) -> Generator[Hint | None, None, UsageError | None]:
        """The lengths of a reduce-scatter whose callers only know their own; what is wrong with them here."""
        own = np.array([call.take.count if call.take is not None else 0])
        counts = np.empty(self._size, own.dtype)
        payload = Payload("gather", own, counts, 1, own.dtype, 0, None)
        fingerprint = fingerprint_of(call, sequence, 0, EXCHANGING)
        yield from self._agreement.check(sequence, fingerprint, "", payload)
        try:
            call.complete(counts.tolist())
        except UsageError as error:
            return error
        return None

    def _agree_on_lengths(self, call: Call, sequence: int) -> Generator[Hint | None, None, Planned]:
        """As `_agree`, for blocks of which no rank knows all lengths."""
        both = vectors(call, self._rank, self._size)
        total = yield from self._balanced(call, sequence, both, 0)
        name = self._planner.choose(call, total)
        if name == "direct":
            return self._planner.plan_ragged(call, name, {self._rank: both[0]}, {self._rank: both[1]})
        if self._lengths_travel(both):
            said = self._agreement.said_in_node(sequence, 2 + both.size, both.dtype)
            rows, columns = self._rows_and_columns({rank: one[2:] for rank, one in said.items()})
        else:
            rows, columns = yield from self.lengths_in_node(call)
        return self._planner.plan_ragged(call, name, rows, columns)

    def _lengths_travel(self, both: Array) -> bool:
        """Whether the lengths fit beside what is balanced."""
        return both.nbytes + 2 * both.itemsize <= self._agreement.room

    def lengths_in_node(self, call: Call) -> Generator[Hint | None, None, tuple[Rows, Rows]]:
        """How many elements each rank of this node gives to each rank, and takes from each, where others do
        not know.
        """
        if not partly_known(call):
            return {}, {}
        yield from self._movement.open()
        both = vectors(call, self._rank, self._size)
        known = yield from self._movement.node_rows(both.ravel())
        return self._rows_and_columns(known)

    def _rows_and_columns(self, known: dict[int, Array]) -> tuple[Rows, Rows]:
        rows = {rank: row[: self._size] for rank, row in known.items()}
        return rows, {rank: row[self._size :] for rank, row in known.items()}

    def _balanced(
        self, call: Call, sequence: int, both: Array, form: int
    ) -> Generator[Hint | None, None, int]:
        """All ranks call the same, and give what others take; returns how many elements there are."""
        out = np.zeros(2, np.int64)
        said = balance(both, self._rank)
        if self._lengths_travel(both):
            said = np.concatenate((said, both.ravel()))
        payload = Payload("reduce", said, out, 2, out.dtype, 0, _add)
        fingerprint = fingerprint_of(call, sequence, self._planner.asked_code(call), form)
        yield from self._agreement.check(sequence, fingerprint, "", payload)
        if out[0] != 0:
            yield from self._name_disagreement(call, sequence, both)
        call.total = int(out[1])
        return call.total

    def _name_disagreement(self, call: Call, sequence: int, both: Array) -> Waits:
        """Raises MismatchError on all ranks, with the pairs that do not fit."""
        table = yield from gathered(self._private, both)
        pairs = disagreeing(table[:, : self._size], table[:, self._size :])
        raise MismatchError(
            f"the ranks disagree about lengths (nothing was moved): {pairs}",
            collective=call.collective,
            sequence=sequence,
            rank=self._rank,
        )

    def _name_counts(self, call: Call, error: MismatchError) -> Waits:
        """Raises MismatchError with the blocks of which the ranks have different lengths, if it is that."""
        counts = shared_counts(call)
        if counts is None or not error.counts_differ:
            return
        table = yield from gathered(self._private, np.array(counts, np.int64))
        raise MismatchError(
            f"the ranks have different counts (nothing was moved): {differing(table)}",
            collective=error.collective,
            sequence=error.sequence,
            rank=self._rank,
            suspects=error.suspects,
        ) from None

    def agree_on_device(self, call: Call, sequence: int, before: int) -> Waits:
        """All ranks call the same on device arrays, and did; `before`: checksum of the calls so far."""
        if self._config.checks != "on":
            return
        if partly_known(call):
            yield from self._balanced(call, sequence, vectors(call, self._rank, self._size), 0)
            return
        code = self._planner.asked_code(call)
        try:
            fingerprint = fingerprint_of(call, sequence, code, before=before)
            yield from self._agreement.check(sequence, fingerprint, "", None)
        except MismatchError as error:
            yield from self._name_counts(call, error)
            raise

    def agree_to_make(self, call: Call, sequence: int) -> Waits:
        if partly_known(call):
            yield from self._balanced(call, sequence, vectors(call, self._rank, self._size), MAKING)
        else:
            fingerprint = fingerprint_of(call, sequence, self._planner.asked_code(call), MAKING)
            yield from self._agreement.check(sequence, fingerprint, "", None)


def refusal_kind(error: UsageError | None) -> int:
    """What a fingerprint says of a rank's arguments."""
    if error is None:
        return ACCEPTED
    return REFUSED_TYPE if isinstance(error, UsageTypeError) else REFUSED_VALUE


def fingerprint_of(
    call: Call,
    sequence: int,
    plan: int,
    form: int = 0,
    refusal: UsageError | None = None,
    before: int = 0,
) -> bytes:
    """What this rank calls, packed; `plan`: its number among those of the collective.

    `before`: checksum of its calls on devices so far, where it does not say lengths of blocks.
    """
    operator = operator_code(call.arithmetic.operator) if call.arithmetic is not None else 0
    count, checksum = call.count, before
    if (counts := shared_counts(call)) is not None:
        count, checksum = sum(counts), zlib.crc32(repr(counts).encode())
    form += RAGGED if call.ragged else 0
    return Fingerprint(
        sequence,
        tag(call.dtype),
        count,
        call.root,
        call.collective,
        operator,
        memory=DEVICE if call.on_device else HOST,
        refused=refusal_kind(refusal),
        plan=plan,
        form=form,
        counts=checksum,
    ).pack()


def _add(left: Array, right: Array, target: Array) -> None:
    np.add(left, right, out=target)
