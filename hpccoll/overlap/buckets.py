"""Gradients that are averaged over the ranks while others are still computed.

::

    time ────────────────────────────────────────────────────────►
    program   ready(3) ready(2)   ready(1)      ready(0)  wait()
    bucket 0  ▒▒▒▒▒▒▒▒▒▒▒▓▓▓▓▓▓▓▓▓▓▓▓▓▓
    bucket 1            ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▓▓▓▓▓▓▓      ▒ filling   ▓ under way

Arrays are dealt to buckets in the reverse order of their use (grouping.py), which all ranks agree on at
creation.  A bucket's all-reduce starts with the last of its arrays, and not before the buckets ahead of it
have started, so that all ranks make the same calls in the same order, whatever order their arrays become
ready in.  Source: S. Li et al. (2020), PyTorch Distributed.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt
from types import TracebackType
from typing import Any

from hpccoll.collectives.base import Base
from hpccoll.errors import HpccollError, NotFiniteError, UsageError
from hpccoll.observe.overlapped import Times
from hpccoll.ops.gradients import check as check_kernels
from hpccoll.overlap.agreement import Key
from hpccoll.overlap.making import Options, make
from hpccoll.overlap.memory import DeviceMemory
from hpccoll.overlap.status import Attendance, DeviceReport, Report
from hpccoll.overlap.times import times_of
from hpccoll.units import in_binary_unit, number_text

_NAMED = 8


class GradientBuckets:
    """Arrays of all ranks that are averaged, in buckets, each as soon as its arrays are ready.

    ::

        buckets = hpccoll.GradientBuckets(comm, gradients)  # arrays in the order of the layers
        for batch in batches:
            for k in reversed(range(len(gradients))):
                compute_gradient(k, batch, out=gradients[k])
                buckets.ready(k)
            buckets.wait()  # now all ranks have the averages in their gradients

    Making one is collective: all ranks pass the same number of arrays, or the same keys, with the same
    shapes and dtypes; ranks may have the keys in different orders, rank 0's counts.  Between creation and
    `close` the arrays stay where they are.  From `ready(k)` until `wait()` returns array `k` belongs to the
    call.  In that time no other collective is called on this communicator (use a `Dup`), since ranks would
    not agree on its place among the buckets' calls.

    Args:
        comm: an hpccoll communicator.
        arrays: a list, or a dict, of writable arrays of numbers, all of the host or all on one device.
        bucket_bytes: when a bucket is full; the last ones are smaller, down to an eighth or 64 KiB.  By
            default the smallest power of two from 64 KiB to 64 MiB that by `comm.explain` reaches 90 % of the
            rate of 64 MiB; on devices 25 MiB.
        dtype_on_wire: "bfloat16" or "float16": float32 and float64 travel in it, and what rounding leaves
            over is added in the next step (short.py).
        average: divide by the number of ranks; else the sum.
        views: the buckets have memory of their own, and `arrays` has views of it, with the values passed:
            what computes into them needs no copies.  Without, results come to the arrays passed.  These need
            no copies either where those of a bucket lie in memory one after the other in C order.
        unused: "error": `wait` raises where an array is not ready.  "zero": such an array counts as zeros,
            and gets the average of all ranks like any; `unused_keys` then has those that no rank had ready.
        check_finite: `wait` raises NotFiniteError on all ranks where one has a NaN or an infinity, naming
            rank and array.  Costs a pass over the elements, and a small all-reduce; on devices another one,
            for which the host waits.
        uneven: ranks may make different numbers of steps; those that are through call `join`.  Averages are
            over the ranks that take part in a step, and need floating-point arrays.  Costs a small
            all-reduce, for which the host waits.

    Raises (on all ranks):
        UsageError: an argument is wrong on any rank.
        MismatchError: ranks pass different arrays or options; it names the difference and the ranks.

    """

    def __init__(
        self,
        comm: Base,
        arrays: Sequence[Any] | Mapping[Any, Any],
        *,
        bucket_bytes: int | None = None,
        dtype_on_wire: Any = None,
        average: bool = True,
        views: bool = False,
        unused: str = "error",
        check_finite: bool = False,
        uneven: bool = False,
    ) -> None:
        options = Options(average, bucket_bytes, check_finite, dtype_on_wire, uneven, unused, views)
        made = make(comm, arrays, options)
        self.comm: Any = comm
        self.arrays: Any = made.arrays
        self.bucket_bytes = made.bucket_bytes
        self._options = options
        self._keys = made.keys
        self._names = [repr(key) for key in made.keys]
        self._number = {key: number for number, key in enumerate(made.keys)}
        self._buckets = made.buckets
        self._place = {
            number: (bucket, place)
            for bucket in made.buckets
            for place, number in enumerate(bucket.memory.group.members)
        }
        self._attendance = Attendance(comm) if uneven else None
        wanted = unused == "zero" or check_finite
        self._report: Report | None = None
        if wanted:
            first = made.buckets[0].memory
            if check_finite and isinstance(first, DeviceMemory):
                self._report = DeviceReport(comm, len(made.keys), first)
            else:
                self._report = Report(comm, len(made.keys))
        self.times = Times()
        self.total_times = Times()
        self.unused_keys: tuple[Key, ...] = ()
        self._paused = False
        self._closed = False
        self._begun = self._reported = False
        self._reset()

    # --- a step ---------------------------------------------------------------------------------

    def ready(self, key: Key, value: Any = None) -> None:
        """Array `key` is computed: its bucket's all-reduce starts when all of the bucket are.  Local.

        In any order, which may differ between ranks.  `value`: an array of the same shape and dtype whose
        elements are taken in place of those of the array; results come to the array.

        Raises: UsageError for an unknown key, a key that is ready already, a `value` of another shape or
            dtype.
        """
        number = self._number_of(key)
        if self._paused:
            return
        if self._is_ready[number]:
            raise UsageError(f"array {key!r} is ready already in this step, which wait() ends")
        bucket, place = self._place[number]
        bucket.memory.put(place, value)
        self._begin()
        self._is_ready[number] = True
        bucket.missing -= 1
        if self._report is not None:
            self._report.used(number)
        self._start_full()

    def wait(self) -> None:
        """Return when all buckets are reduced and their results in place; the next step begins.

        All ranks call it.  On devices the current stream waits, and the host does not.

        Raises: UsageError where arrays are not ready (unless `unused` is "zero"), on this rank naming them,
            and on the others that wait for them; NotFiniteError; the errors of `comm.Allreduce`.  The next
            step begins all the same.
        """
        if self._paused:
            return
        self._check_open()
        begin = time.perf_counter()
        missing = [key for key, is_ready in zip(self._keys, self._is_ready, strict=True) if not is_ready]
        error: BaseException | None = None
        try:
            self._begin()
            if missing and self._options.unused == "error":
                error = self._refuse(missing)
            else:
                self._fill_up()
                self._start_full()
            found = self._finish()
            error = error or found
        finally:
            end = time.perf_counter()
            flights = {
                number: (one.began, one.ended or end)
                for number, one in enumerate(self._buckets)
                if one.began is not None
            }
            self.times = times_of(list(flights.values()), (begin, end))
            self.total_times += self.times
            self.comm._note_step(self.times, self.total_times.steps, flights, (begin, end), self._label)
            self._reset()
        if error is not None:
            raise error

    @contextmanager
    def no_sync(self) -> Generator[None, None, None]:
        """Inside, `ready` and `wait` do nothing: gradients of several batches add up before they travel.

        The same on all ranks.  Raises: UsageError in the midst of a step.
        """
        self._check_between("no_sync() begins")
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def join(self) -> Iterator[None]:
        """Take part in the other ranks' steps until all are through; of `uneven` buckets.

        A rank that has no more batches loops over it, and every rank does so in the end.  In each round the
        arrays have the averages of a step of others: apply them, and all ranks keep the same weights::

            for _ in buckets.join():
                update(weights, gradients)

        Raises: UsageError where the buckets are not `uneven`, and in the midst of a step.
        """
        if self._attendance is None:
            raise UsageError("join() needs GradientBuckets(..., uneven=True) on all ranks")
        self._check_between("join() is called")
        while self._others_go_on():
            yield

    def clip_norm(self, max_norm: float) -> float:
        """After `wait`: scale all arrays so that the norm of all of them together is at most `max_norm`.

        Returns the 2-norm before, summed in float64.  No communication: it is the same on all ranks, to the
        last bit.  On devices the host waits.  Raises: UsageError for a `max_norm` that is not positive, in
        the midst of a step, for integer arrays, and on devices without CuPy.
        """
        self._check_between("clip_norm() is called")
        if not max_norm > 0:
            raise UsageError(f"max_norm is {max_norm!r}: must be positive")
        dtypes = {bucket.memory.group.dtype for bucket in self._buckets}
        if integers := sorted(str(dtype) for dtype in dtypes if dtype.kind in "iub"):
            raise UsageError(f"clip_norm() cannot scale arrays of {', '.join(integers)}")
        if isinstance(self._buckets[0].memory, DeviceMemory):
            for dtype in dtypes:
                check_kernels(dtype)
        for bucket in self._buckets:
            bucket.settle()
        norm = sqrt(sum(bucket.memory.sum_of_squares() for bucket in self._buckets))
        if norm > max_norm:
            for bucket in self._buckets:
                bucket.memory.scale(max_norm / norm)
                bucket.memory.deliver()
        return norm

    # --- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the arrays.  Local; a step under way is waited for.  Twice is no harm."""
        if not self._closed:
            self._closed = True
            for one in (*self._buckets, self._attendance, self._report):
                if one is not None:
                    one.close()

    def __enter__(self) -> GradientBuckets:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:  # else what is under way may never be complete
            self.close()

    def __len__(self) -> int:
        return len(self._buckets)

    def __str__(self) -> str:
        return "\n".join(map(self._label, range(len(self._buckets))))

    def _label(self, number: int) -> str:
        """A bucket in words."""
        bucket = self._buckets[number]
        one = bucket.memory.group
        size, unit = in_binary_unit(one.count * one.dtype.itemsize)
        where = "in place" if bucket.memory.direct else "copied"
        named = ", ".join(self._names[member] for member in one.members[:_NAMED])
        rest = len(one.members) - _NAMED
        named += f" and {rest} more" if rest > 0 else ""
        return f"bucket {number}: {number_text(size)} {unit} of {one.dtype}, {where}: {named}"

    # --- parts of a step ------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            if self._attendance is not None:
                self._attendance.start(takes_part=True)

    def _start_full(self) -> None:
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            bucket = self._buckets[self._next]
            if self._options.check_finite and bucket.memory.group.dtype.kind not in "iub":
                assert self._report is not None
                self._report.look(bucket.memory)
            bucket.start()
            self._next += 1
        if self._next == len(self._buckets) and self._report is not None and not self._reported:
            self._report.start()
            self._reported = True

    def _fill_up(self) -> None:
        for number, is_ready in enumerate(self._is_ready):
            if not is_ready:
                bucket, place = self._place[number]
                bucket.memory.clear(place)
                bucket.missing -= 1

    def _refuse(self, missing: Sequence[Key]) -> UsageError:
        """Tell the other ranks, in place of all calls that this rank cannot make."""
        named = ", ".join(map(repr, missing[:_NAMED]))
        rest = len(missing) - _NAMED
        named += f" and {rest} more" if rest > 0 else ""
        error = UsageError(f"wait() was called before these arrays were ready: {named}", rank=self.comm.rank)
        calls = len(self._buckets) - self._next + (0 if self._report is None else self._report.calls)
        for _ in range(calls):
            self.comm._used().refuse("allreduce", error, wait=False)
        return error

    def _finish(self) -> BaseException | None:
        """Wait for all that was started; the first error."""
        first: BaseException | None = None
        factor = None
        try:
            if self._attendance is not None:
                factor = self._factor(self._attendance.finish())
        except HpccollError as error:
            first = error
        for bucket in self._buckets:
            if bucket.started:
                try:
                    bucket.finish(factor)
                except HpccollError as error:
                    first = first or error
        if self._report is not None and self._reported:
            try:
                unused, bad = self._report.finish()
                self.unused_keys = tuple(self._keys[number] for number in unused)
                if bad and first is None:
                    first = self._not_finite(bad)
            except HpccollError as error:
                first = first or error
        return first

    def _not_finite(self, bad: Sequence[tuple[int, int]]) -> NotFiniteError:
        named = "; ".join(f"array {self._names[number]} of rank {rank}" for number, rank in bad[:_NAMED])
        rest = len(bad) - _NAMED
        named += f"; and {rest} more arrays" if rest > 0 else ""
        return NotFiniteError(f"a NaN or an infinity in {named}", suspects=sorted({rank for _, rank in bad}))

    def _factor(self, taking_part: int) -> float | None:
        """What averages over all ranks become averages over some with."""
        size = self.comm.size
        return size / taking_part if self._options.average and 0 < taking_part < size else None

    def _others_go_on(self) -> bool:
        assert self._attendance is not None
        self._attendance.start(takes_part=False)
        taking_part = self._attendance.finish()
        if not taking_part:
            return False
        self._begun = True
        self._fill_up()
        attendance, self._attendance = self._attendance, None  # which is finished
        try:
            self._start_full()
            factor = self._factor(taking_part)
            error: BaseException | None = None
            for bucket in self._buckets:
                try:
                    bucket.finish(factor)
                except HpccollError as found:
                    error = error or found
            if self._report is not None:
                _, bad = self._report.finish()
                error = error or (self._not_finite(bad) if bad else None)
        finally:
            self._attendance = attendance
            self._reset()
        if error is not None:
            raise error
        return True

    def _reset(self) -> None:
        self._is_ready = [False] * len(self._keys)
        self._next = 0
        self._begun = self._reported = False
        for bucket in self._buckets:
            bucket.reset()
        if self._report is not None:
            self._report.reset()

    # --- checks ---------------------------------------------------------------------------------

    def _number_of(self, key: Key) -> int:
        self._check_open()
        try:
            return self._number[key]
        except (KeyError, TypeError):
            named = ", ".join(self._names[:_NAMED]) + (", ..." if len(self._names) > _NAMED else "")
            raise UsageError(f"there is no array {key!r}; there are {named}") from None

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("these buckets are closed")

    def _check_between(self, what: str) -> None:
        self._check_open()
        if self._begun:
            raise UsageError(f"{what} in the midst of a step: call wait() first")
