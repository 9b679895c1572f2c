"""Why a communicator was given up, as all its ranks are told; the first reason stays."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hpccoll.errors import (
    AbortedError,
    CollectiveTimeoutError,
    HpccollError,
    IntegrityError,
    PeerLostError,
)
from hpccoll.observe.caller import calling_line
from hpccoll.topology.layout import Layout
from hpccoll.transports.corrupted import Corrupted

LOST, LATE, CORRUPT, FAILED = KINDS = "lost", "late", "corrupt", "failed"
_LONGEST = 1500  # characters of the text


@dataclass(frozen=True)
class Reason:
    """Why, and who found out.

    Attributes:
        rank: who gave the communicator up.
        kind: LOST, LATE, CORRUPT or FAILED.
        text: what happened, in words.
        suspects: the ranks it is about, if known.
        place: of a CORRUPT one: level, chunk (-1: none) and peer, as IntegrityError has them.

    """

    rank: int
    kind: str
    text: str
    suspects: tuple[int, ...] = ()
    place: tuple[str, int, int] | None = None

    @staticmethod
    def of(error: HpccollError, rank: int) -> Reason:
        """From what a call on this rank raised."""
        kinds = {PeerLostError: LOST, CollectiveTimeoutError: LATE, IntegrityError: CORRUPT}
        kind = next((kind for one, kind in kinds.items() if isinstance(error, one)), FAILED)
        place = None
        if isinstance(error, IntegrityError):
            place = (error.level, -1 if error.chunk is None else error.chunk, error.peer or 0)
        return Reason(rank, kind, str(error), error.suspects[:16], place)

    def to_bytes(self) -> bytes:
        """JSON, of a few thousand bytes at most."""
        text = self.text if len(self.text) <= _LONGEST else self.text[: _LONGEST - 4] + " ..."
        return json.dumps([self.rank, self.kind, text, self.suspects, self.place]).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Reason:
        """What `to_bytes` made.  Raises ValueError for anything else."""
        try:
            rank, kind, text, suspects, place = json.loads(data)
            if kind not in KINDS or (kind == CORRUPT) != (place is not None):
                raise ValueError(f"{kind!r} is no kind of reason")
            if place is not None:
                level, chunk, peer = place
                place = str(level), int(chunk), int(peer)
            return Reason(int(rank), kind, str(text), tuple(map(int, suspects)), place)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a reason: {error}") from error

    def error(self, collective: str, sequence: int, rank: int, line: str | None = None) -> HpccollError:
        """What a call on a rank raises; the same kind on all ranks but the one that is lost or late.

        `line`: of the caller, where that is not the one who waits.
        """
        line = calling_line() if line is None else line
        text = self.text if self.rank == rank else f"rank {self.rank} gave up: {self.text}"
        message = f"{collective} #{sequence}{line}: {text}"
        if self.place is not None:
            level, chunk, peer = self.place
            return IntegrityError(
                message,
                collective=collective,
                sequence=sequence,
                rank=rank,
                suspects=self.suspects,
                level=level,
                chunk=None if chunk < 0 else chunk,
                peer=peer,
                finder=self.rank,
            )
        kind: type[HpccollError] = AbortedError
        if rank not in self.suspects:
            kind = {LOST: PeerLostError, LATE: CollectiveTimeoutError}.get(self.kind, AbortedError)
        return kind(
            message,
            collective=collective,
            sequence=sequence,
            rank=rank,
            suspects=self.suspects or (self.rank,),
        )


def corruption(
    found: Corrupted, layout: Layout, collective: str, sequence: int, rank: int, line: str | None = None
) -> IntegrityError:
    """What the rank raises that has found out, in whose words all others learn it.

    `line` as in `Reason.error`.
    """
    line = calling_line() if line is None else line
    between = layout.node(found.peer) != layout.node(rank)
    through = found.carrier + (" between nodes" if between else "")
    part = f" (part {found.part} of it)" if found.part >= 0 else ""
    where = f"; {found.where}{part}" if found.where else ""
    return IntegrityError(
        f"{collective} #{sequence}{line}: rank {rank} has got from rank {found.peer}, by {through}, "
        f"other bytes than were given: {found}{where}",
        collective=collective,
        sequence=sequence,
        rank=rank,
        suspects=(found.peer, rank),
        level="between nodes" if between else "node",
        chunk=found.chunk if found.chunk >= 0 else None,
        peer=found.peer,
        finder=rank,
    )
