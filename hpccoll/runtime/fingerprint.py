"""What a rank calls, in 48 bytes, and the words for how calls differ.

sequence 8 | dtype 16 | count 8 | root 4 | collective 2 | operator 2 | memory, refused, plan, form 1 each |
checksum of the counts 4
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hpccoll.errors import HpccollError, MismatchError, UsageError, UsageTypeError
from hpccoll.ops.table import NAMES as OPERATORS
from hpccoll.ops.table import Operator
from hpccoll.ops.wire import WIRES
from hpccoll.plans.catalogue import RECIPES
from hpccoll.plans.collective import NAMES as COLLECTIVES
from hpccoll.topology.notation import format_ranks

_FORMAT = struct.Struct("<q16sqihhBBBBI")
FINGERPRINT_BYTES = _FORMAT.size
REFUSED_BYTE = 41
HOST, DEVICE = range(2)
MEMORIES = {HOST: "host", DEVICE: "device"}
_WIRES = ("", *WIRES)
ACCEPTED, REFUSED_VALUE, REFUSED_TYPE = range(3)
# Ragged calls are other calls than those with equal blocks; so is making a persistent one.
REGULAR, RAGGED, MAKING, EXCHANGING, ALLOCATING, CLOSING = 0, 1, 2, 4, 8, 16
# Which method takes blocks of different lengths.
UNEQUAL = {
    "allgather": "Allgatherv", "gather": "Gatherv", "scatter": "Scatterv", "alltoall": "Alltoallv",
    "reduce_scatter": "Reduce_scatter",
}  # fmt: skip
FORMS = {
    RAGGED: " with counts",
    MAKING: ", persistent, being made",
    EXCHANGING: ", counts to be exchanged",
    ALLOCATING: " of comm.empty",
    CLOSING: " of close",
}


@dataclass(frozen=True)
class Fingerprint:
    """One rank's call.  `refused` says that its arguments were wrong, and of which kind the error is."""

    sequence: int
    dtype: bytes
    count: int
    root: int
    collective: str
    operator: int
    memory: int = HOST
    refused: int = ACCEPTED
    plan: int = 0  # index among the collective's plans
    form: int = REGULAR
    counts: int = 0
    """Checksum of the lengths of ragged blocks, where all know them; on devices, of the calls before."""

    def pack(self) -> bytes:
        return _FORMAT.pack(
            self.sequence,
            self.dtype,
            self.count,
            self.root,
            COLLECTIVES.index(self.collective),
            self.operator,
            self.memory,
            self.refused,
            self.plan,
            self.form,
            self.counts,
        )

    @classmethod
    def unpack(cls, data: bytes) -> Fingerprint:
        sequence, dtype, count, root, collective, operator, *rest = _FORMAT.unpack(data)
        return cls(
            sequence,
            dtype.rstrip(b"\0"),
            count,
            root,
            COLLECTIVES[collective],
            operator,
            *rest,
        )

    def fields(self) -> dict[str, str]:
        """The fields that must be equal on all ranks, in words."""
        return {
            "collective": self.collective + "".join(text for bit, text in FORMS.items() if self.form & bit),
            "sequence number": str(self.sequence),
            "dtype": self.dtype.decode(errors="replace"),
            "count": str(self.count) + (f" in blocks of checksum {self.counts:08x}" if self._ragged else ""),
            "operator": _operator_name(self.operator),
            "root": str(self.root),
            "memory": MEMORIES.get(self.memory, str(self.memory)),
            "plan": _plan_name(self.collective, self.plan),
        }

    @property
    def _ragged(self) -> bool:
        """Blocks of lengths that all ranks know."""
        return self.form & RAGGED != 0 and self.counts != 0


@dataclass(frozen=True)
class Called:
    """Ranks that called the same: their packed fingerprint, and what they said if it was refused."""

    ranks: tuple[int, ...]
    call: bytes
    text: str = ""


def disagreement(calls: Sequence[Called], rank: int, total: int) -> HpccollError:
    """The error for ranks whose calls differ or were refused; `rank` is this one, of `total`."""
    found = [(one, Fingerprint.unpack(one.call)) for one in calls]
    refusing = [(one, call) for one, call in found if call.refused]
    on_devices = any(call.memory == DEVICE for _, call in found)
    if refusing:
        kind = UsageTypeError if refusing[0][1].refused == REFUSED_TYPE else UsageError
        said = "; ".join(f"{format_ranks(one.ranks)}: {one.text}" for one, _ in refusing[:4])
        refusal = kind(
            f"{said} (nothing was moved on any rank)",
            collective=refusing[0][1].collective,
            sequence=refusing[0][1].sequence,
            rank=rank,
            suspects=[member for one, _ in refusing for member in one.ranks],
        )
        refusal.on_devices = on_devices
        return refusal
    sides = [_sides(found, name) for name in found[0][1].fields()]
    fewest = min(_sides_by_call(found), key=len)
    own = next((call for one, call in found if rank in one.ranks), found[0][1])
    words = "; ".join(side for side in sides if side) or "the same by now, but not before"
    # All ranks come to the same answer, so that they may exchange their counts next.
    forms = {(call.collective, call.form, call.sequence) for _, call in found}
    counts_differ = len(forms) == 1 and len({(call.counts, call.count) for _, call in found}) > 1
    if counts_differ and own.form == REGULAR and own.collective in UNEQUAL:
        words += f" (blocks of different lengths: {UNEQUAL[own.collective]})"
    error = MismatchError(
        f"the ranks call different things (nothing was moved): {words}",
        collective=own.collective,
        sequence=own.sequence,
        rank=rank,
        suspects=fewest if 2 * len(fewest) < total else (),
    )
    error.on_devices = on_devices
    error.counts_differ = counts_differ
    return error


def operator_code(operator: Operator) -> int:
    """The number of an operator, with that of the dtype in which its elements travel where it says that."""
    return operator.code + (0 if operator.wire is None else 256 * (1 + _WIRES.index(operator.wire)))


def _operator_name(code: int) -> str:
    wire, number = divmod(code, 256)
    name = OPERATORS.get(number, str(number))
    if not 1 <= wire <= len(_WIRES):
        return name
    return f"{name} as {_WIRES[wire - 1] or 'it is'} between nodes"


def _plan_name(collective: str, index: int) -> str:
    recipes = RECIPES[collective]
    return recipes[index].name if index < len(recipes) else "by selection"


def _sides(found: Sequence[tuple[Called, Fingerprint]], name: str) -> str:
    """Who has which value of a field; empty when all have the same."""
    by_value: dict[str, list[int]] = defaultdict(list)
    for one, call in found:
        by_value[call.fields()[name]] += one.ranks
    if len(by_value) == 1:
        return ""
    return f"{name}: " + ", ".join(f"{value} on {format_ranks(who)}" for value, who in by_value.items())


def _sides_by_call(found: Sequence[tuple[Called, Fingerprint]]) -> list[list[int]]:
    by_call: dict[bytes, list[int]] = defaultdict(list)
    for one, _ in found:
        by_call[one.call] += one.ranks
    return [sorted(ranks) for ranks in by_call.values()]
