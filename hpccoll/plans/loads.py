"""What the cost model works with: a step without its place in the index space, and what it asks for."""

from __future__ import annotations

from typing import NamedTuple

from hpccoll.plans.steps import Kind


class Load(NamedTuple):
    """What one step asks of the machine: bytes by node."""

    time_s: float
    sent: tuple[int, ...]
    inside: tuple[int, ...]

    @property
    def level(self) -> str:
        return "network" if any(self.sent) else "NODE"


class Sizes(NamedTuple):
    """Bytes of an element, and of one between nodes; the longest message in elements."""

    itemsize: int
    between: int
    segment: int


class Shape(NamedTuple):
    """A step without where it is in the index space and what it waits for: `lengths` of its regions."""

    kind: Kind
    family: str
    groups: tuple[tuple[int, ...], ...]
    roots: tuple[int, ...]
    algorithm: str
    lengths: tuple[tuple[int, ...], ...]

    def root(self, group: int) -> int:
        return self.roots[group] if self.roots else 0

    def total(self, group: int) -> int:
        """Elements that a group acts on."""
        lengths = self.lengths[group]
        if self.kind is Kind.ALLTOALL:
            half = len(lengths) // 2
            return sum(lengths[:half]) * sum(lengths[half:])
        return sum(lengths)
