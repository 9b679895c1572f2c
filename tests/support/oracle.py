"""What collectives must give, said in NumPy over the arrays of all ranks; and one call checked against it.

Every rank makes the arrays of all ranks itself, so the oracle needs no communication.  The data are whole
numbers small enough that every order of the operations has the same answer: equality is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce as fold
from typing import Any

import ml_dtypes
import numpy as np
from mpi4py import MPI

import hpccoll

Array = np.ndarray[Any, np.dtype[Any]]

COLLECTIVES = ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter")
REDUCTIONS = ("allreduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "broadcast")

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)
INT64 = np.dtype(np.int64)
BOOL = np.dtype(np.bool_)
INTEGERS = tuple(np.dtype(code) for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))
REALS = (FLOAT16, BFLOAT16, *(np.dtype(code) for code in ("f4", "f8", "g")))
COMPLEX = tuple(np.dtype(code) for code in ("c8", "c16", "G"))
NUMBERS = INTEGERS + REALS + COMPLEX

ARITHMETIC = ("SUM", "PROD", "AVG")
ORDER = ("MAX", "MIN")
LOGICAL = ("LAND", "LOR", "LXOR")
BITWISE = ("BAND", "BOR", "BXOR")
UFUNCS: dict[str, np.ufunc] = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}
OPERATORS = (*UFUNCS, "AVG")
# What lies in memory that a call must not touch: no rank's data, and no zero.
GUARD = 0xA5
MARGIN = 64


def operators(dtype: np.dtype[Any]) -> tuple[str, ...]:
    """The operators that a dtype takes."""
    if dtype == BOOL:
        return LOGICAL + BITWISE
    if dtype in COMPLEX:
        return ARITHMETIC
    return ARITHMETIC + ORDER + (LOGICAL + BITWISE if dtype in INTEGERS else ())


def operator(name: str) -> Any:
    """The operator to pass to a call."""
    return hpccoll.AVG if name == "AVG" else getattr(MPI, name)


def data(dtype: np.dtype[Any], count: int, rank: int, op: str = "SUM", salt: int = 0) -> Array:
    """The elements of one rank: different for every rank, place and salt, exact under `op` in any order."""
    random = np.random.default_rng([rank, salt, count])
    if not dtype.isnative and dtype.newbyteorder("=") in NUMBERS:
        return data(dtype.newbyteorder("="), count, rank, op, salt).astype(dtype)
    if dtype == BOOL:
        return random.integers(0, 2, count).astype(dtype)
    if op in LOGICAL:
        return random.integers(0, 3, count).astype(dtype)
    if dtype not in NUMBERS or (dtype in INTEGERS and (op != "AVG" or dtype.itemsize < 8)):
        # All bits: integers wrap, in the same way whatever the order.
        return random.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype)
    # For products powers of two with a sign, else at most 3 significant bits for each of a few ranks.
    signs = 1 if dtype.kind == "u" else random.choice([-1, 1], count)
    values = signs * (random.choice([1, 2], count) if op == "PROD" else random.integers(0, 8, count))
    if dtype in COMPLEX:
        turned = values * random.choice([1, 1j], count)
        return (turned if op == "PROD" else values + 1j * random.integers(-7, 8, count)).astype(dtype)
    return values.astype(dtype)


def combined(op: str, parts: Sequence[Array]) -> Array:
    """All ranks' elements under an operator; 16-bit floats in float32, rounded once."""
    dtype = parts[0].dtype.newbyteorder("=")
    if op == "AVG" and dtype in INTEGERS:
        totals = [sum(column) for column in zip(*(part.tolist() for part in parts), strict=True)]
        return np.array([abs(one) // len(parts) * (1 if one > 0 else -1) for one in totals], dtype)
    wide = np.dtype(np.float32) if dtype in (BFLOAT16, FLOAT16) else dtype
    with np.errstate(all="ignore"):
        result = np.asarray(fold(UFUNCS.get(op, np.add), [part.astype(wide) for part in parts]))
        if op == "AVG":
            numbers = result.view(result.real.dtype)
            result = (numbers / numbers.dtype.type(len(parts))).view(result.dtype)
        return result.astype(dtype)


@dataclass(frozen=True)
class Job:
    """One collective call: `count` elements of the buffer, or of each rank's block."""

    collective: str
    count: int
    dtype: np.dtype[Any] = INT64
    op: str = "SUM"
    root: int = 0
    in_place: bool = False
    salt: int = 0

    def given(self, size: int) -> list[Array]:
        """What each rank puts in."""
        count = self.count * (size if self.collective == "reduce_scatter" else 1)
        return [data(self.dtype, count, rank, self.op, self.salt) for rank in range(size)]

    def passes_in_place(self, rank: int) -> bool:
        """Whether this rank passes MPI.IN_PLACE: in a reduction to a root only that one does."""
        return self.in_place and (self.collective != "reduce" or rank == self.root)

    def before(self, given: Sequence[Array], rank: int) -> Array:
        """What the receive buffer of a rank holds before the call."""
        own, size = given[rank], len(given)
        if self.collective == "broadcast":
            return own if rank == self.root else untouched(self.dtype, self.count)
        if self.collective == "allgather":
            buffer = untouched(self.dtype, size * self.count)
            if self.in_place:
                buffer[rank * self.count : (rank + 1) * self.count] = own
            return buffer
        return own.copy() if self.passes_in_place(rank) else untouched(self.dtype, self.count)

    def after(self, given: Sequence[Array], rank: int) -> Array:
        """What it must hold after the call."""
        before = self.before(given, rank)
        if self.collective == "broadcast":
            return given[self.root]
        if self.collective == "allgather":
            return np.concatenate(given).astype(self.dtype)
        if self.collective == "reduce" and rank != self.root:
            return before
        result = combined(self.op, given).astype(self.dtype)
        if self.collective != "reduce_scatter":
            return result
        # In place the result takes the first block, and the others keep what they hold.
        before[: self.count] = result[rank * self.count : (rank + 1) * self.count]
        return before

    def __str__(self) -> str:
        op = f" {self.op}" if self.collective in REDUCTIONS else ""
        root = f" root {self.root}" if self.collective in ROOTED else ""
        return f"{self.collective}{op}{root} of {self.count} {self.dtype}{' in place' * self.in_place}"


# What a caller has: an array whose elements, in C order, are those given; and whether the memory around it is
# still as it was.
Placed = tuple[Array, Callable[[], bool]]
Place = Callable[[Array], Placed]


def in_line(array: Array) -> Placed:
    """Contiguous, between two margins."""
    memory = np.full(array.nbytes + 2 * MARGIN, GUARD, np.uint8)
    inner = memory[MARGIN : MARGIN + array.nbytes].view(array.dtype)
    inner[...] = array
    return inner, lambda: bool((memory[:MARGIN] == GUARD).all() and (memory[-MARGIN:] == GUARD).all())


def untouched(dtype: np.dtype[Any], count: int) -> Array:
    """Elements that no rank sends."""
    return np.full(count * dtype.itemsize, GUARD % 2 if dtype == BOOL else GUARD, np.uint8).view(dtype)


def equal(one: Array, other: Array, *, bits: bool) -> bool:
    """The same bits, or else the same numbers, among which a zero has no sign.

    The bits of the longest types are not all part of the number.
    """
    padded = one.dtype.char in "gG"
    if padded or (not bits and (one.dtype.kind in "fc" or one.dtype == BFLOAT16)):
        return one.dtype == other.dtype and bool(np.array_equal(one, other, equal_nan=True))
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def call(comm: Any, job: Job, send: Any, receive: Any) -> None:
    """The call of a job on the buffers given; a broadcast has no `send`."""
    if job.collective == "allreduce":
        comm.Allreduce(send, receive, op=operator(job.op))
    elif job.collective == "reduce":
        comm.Reduce(send, receive, op=operator(job.op), root=job.root)
    elif job.collective == "broadcast":
        comm.Bcast(receive, root=job.root)
    elif job.collective == "allgather":
        comm.Allgather(send, receive)
    else:
        comm.Reduce_scatter_block(send, receive, op=operator(job.op))


def perform(comm: Any, job: Job, place: Place = in_line) -> None:
    """Make a call and compare: the result, what must not change, the memory around the buffers."""
    rank, size = comm.rank, comm.size
    given = job.given(size)
    receive, receive_intact = place(job.before(given, rank))
    send, send_intact = place(given[rank])
    call(comm, job, MPI.IN_PLACE if job.passes_in_place(rank) else send, receive)
    where = f"rank {rank} of {size}: {job}"
    wanted = job.after(given, rank)
    found = receive.reshape(-1) if receive.flags.c_contiguous else receive.flatten()
    bits = job.collective not in REDUCTIONS
    assert equal(found, wanted, bits=bits), f"{where}: {_difference(found, wanted, bits)}"
    assert equal(send.reshape(-1), given[rank], bits=True), f"{where}: the send buffer was written to"
    assert receive_intact(), f"{where}: memory around the receive buffer was written to"
    assert send_intact(), f"{where}: memory around the send buffer was written to"


def perform_all(comm: Any, jobs: Sequence[Job], place: Place = in_line) -> None:
    """`perform` every job with every plan that its collective has on this layout."""
    assert jobs
    for job in jobs:
        for name in comm.algorithms(job.collective):
            try:
                with comm.forced(name):
                    perform(comm, job, place)
            except AssertionError as error:
                raise AssertionError(f"{name} on {comm.machine.layout}: {error}") from None


def every_place(jobs: Sequence[Job]) -> list[Job]:
    """Each job out of place and, where the collective has that, in place."""
    return [
        replace(job, in_place=in_place)
        for job in jobs
        for in_place in ((False,) if job.collective == "broadcast" else (False, True))
    ]


def every_root(jobs: Sequence[Job], size: int) -> list[Job]:
    """Each job for every root, where the collective has one."""
    roots = {name: range(size) if name in ROOTED else (0,) for name in COLLECTIVES}
    return [replace(job, root=root) for job in jobs for root in roots[job.collective]]


def _difference(found: Array, wanted: Array, bits: bool) -> str:
    if found.size != wanted.size:
        return f"{found.size} elements, wanted {wanted.size}"
    one_by_one = [slice(k, k + 1) for k in range(found.size)]
    wrong = [k for k, one in enumerate(one_by_one) if not equal(found[one], wanted[one], bits=bits)]
    values = f"{found[wrong[0]]!r}, wanted {wanted[wrong[0]]!r}" if wrong else ""
    return f"{len(wrong)} of {found.size} wrong, first at {wrong[:1]}: {values}"
