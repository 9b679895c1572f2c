"""How far the calls of one communicator have come, in words that Python and the C extension share."""

from __future__ import annotations

from array import array

NEXT, AGREED, ARRIVALS = range(3)  # the order is that of _native/repeats.c


class Counts:
    """Numbers of one communicator.

    `words` holds them: the number of the next call; how many calls have agreed; how often this rank arrived
    in the control segment.
    """

    def __init__(self) -> None:
        self.words = array("q", [0] * 3)

    def take_number(self) -> int:
        """The sequence number of a call that begins."""
        number = self.words[NEXT]
        self.words[NEXT] = number + 1
        return number

    @property
    def last(self) -> int:
        """The sequence number of the call that began last."""
        return self.words[NEXT] - 1

    @property
    def agreed(self) -> int:
        """All calls before this number have agreed."""
        return self.words[AGREED]

    @agreed.setter
    def agreed(self, number: int) -> None:
        self.words[AGREED] = number

    @property
    def arrivals(self) -> int:
        """How often this rank has arrived."""
        return self.words[ARRIVALS]

    def arrive(self) -> int:
        """The number of an arrival."""
        number = self.words[ARRIVALS]
        self.words[ARRIVALS] = number + 1
        return number
