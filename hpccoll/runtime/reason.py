"""Why a communicator was given up, as all its ranks are told; the first reason stays."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hpccoll.errors import AbortedError, CollectiveTimeoutError, HpccollError, PeerLostError
from hpccoll.observe.caller import calling_line

LOST, LATE, FAILED = "lost", "late", "failed"
_LONGEST = 1500  # characters of the text


@dataclass(frozen=True)
class Reason:
    """Why, and who found out.

    Attributes:
        rank: who gave the communicator up.
        kind: LOST, LATE or FAILED.
        text: what happened, in words.
        suspects: the ranks it is about, if known.

    """

    rank: int
    kind: str
    text: str
    suspects: tuple[int, ...] = ()

    @staticmethod
    def of(error: HpccollError, rank: int) -> Reason:
        """From what a call on this rank raised."""
        kinds = {PeerLostError: LOST, CollectiveTimeoutError: LATE}
        kind = next((kind for one, kind in kinds.items() if isinstance(error, one)), FAILED)
        return Reason(rank, kind, str(error), error.suspects[:16])

    def to_bytes(self) -> bytes:
        """JSON, of a few thousand bytes at most."""
        text = self.text if len(self.text) <= _LONGEST else self.text[: _LONGEST - 4] + " ..."
        return json.dumps([self.rank, self.kind, text, self.suspects]).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Reason:
        """What `to_bytes` made.  Raises ValueError for anything else."""
        try:
            rank, kind, text, suspects = json.loads(data)
            if kind not in (LOST, LATE, FAILED):
                raise ValueError(f"{kind!r} is no kind of reason")
            return Reason(int(rank), kind, str(text), tuple(map(int, suspects)))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a reason: {error}") from error

    def error(self, collective: str, sequence: int, rank: int, line: str | None = None) -> HpccollError:
        """What a call on a rank raises; the same kind on all ranks but the one that is to blame.

        `line`: of the caller, where that is not the one who waits.
        """
        line = calling_line() if line is None else line
        text = self.text if self.rank == rank else f"rank {self.rank} gave up: {self.text}"
        kind: type[HpccollError] = AbortedError
        if rank not in self.suspects:
            kind = {LOST: PeerLostError, LATE: CollectiveTimeoutError}.get(self.kind, AbortedError)
        return kind(
            f"{collective} #{sequence}{line}: {text}",
            collective=collective,
            sequence=sequence,
            rank=rank,
            suspects=self.suspects or (self.rank,),
        )
