"""What a transport raises when elements have not arrived as they were given."""

from __future__ import annotations

from dataclasses import dataclass

SEGMENT, MESSAGE = "the node's shared memory", "a message"


@dataclass(eq=False)
class Corrupted(Exception):  # noqa: N818 - not an error for callers, who get IntegrityError
    """Found by the rank that was to have the elements; none of them goes further.

    Attributes:
        peer: who gave them: a rank, or `member` of a group where that is not -1.
        nbytes: of how many bytes the checksum is.
        told, found: the giver's checksum and that of what is here.
        part: which part of the call on a group, of those that pass its memory one after the other; -1: none.
        carrier: what brought them, SEGMENT or MESSAGE.
        where: what it was in words, which those fill in who know.
        chunk: of the plan; -1: none.

    """

    peer: int
    nbytes: int
    told: int
    found: int
    carrier: str
    member: int = -1
    part: int = -1
    where: str = ""
    chunk: int = -1

    def __str__(self) -> str:
        return (
            f"{self.nbytes} bytes have checksum {self.found:08x}, not {self.told:08x} as when they were given"
        )
