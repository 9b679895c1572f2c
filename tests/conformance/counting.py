"""Which collective calls a program makes on our communicators, and which of them ran on our plans."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import hpccoll
from hpccoll.arrays.foreign import on_device
from hpccoll.collectives import base
from hpccoll.runtime.context import Context
from hpccoll.runtime.enqueued import EnqueuedRequest

KINDS = (
    hpccoll.Communicator,
    hpccoll.CartCommunicator,
    hpccoll.GraphCommunicator,
    hpccoll.DistgraphCommunicator,
)
# A method of MPI -> what hpccoll calls the collective.
COLLECTIVES = {
    "Allgather": "allgather",
    "Allgatherv": "allgather",
    "Allreduce": "allreduce",
    "Alltoall": "alltoall",
    "Alltoallv": "alltoall",
    "Alltoallw": "alltoall",
    "Barrier": "barrier",
    "Bcast": "broadcast",
    "Exscan": "exscan",
    "Gather": "gather",
    "Gatherv": "gather",
    "Reduce": "reduce",
    "Reduce_scatter": "reduce_scatter",
    "Reduce_scatter_block": "reduce_scatter",
    "Scan": "scan",
    "Scatter": "scatter",
    "Scatterv": "scatter",
}
# Collectives that no plan is made for: they stay MPI's own.
PICKLED = (
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "exscan",
    "gather",
    "reduce",
    "scan",
    "scatter",
)
OF_NEIGHBOURS = ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")


def _inherited() -> Iterator[str]:
    yield from PICKLED
    yield from ("neighbor_allgather", "neighbor_alltoall")
    for name in OF_NEIGHBOURS:
        yield from (f"Neighbor_{name}", f"Ineighbor_{name}", f"Neighbor_{name}_init")


# Gets the object, the method's result and its arguments.
After = Callable[[Any, Any, tuple[Any, ...]], None]


class Census:
    """Counts the calls that returned normally, on this rank, from `begin()` on."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        """(collective, method): calls that plans are made for; each start of a persistent one is a call."""
        self.inherited: Counter[str] = Counter()
        """Method: calls of collectives that are MPI's own."""
        self.on_devices = 0
        """Calls, of those that plans are made for, with arrays on a device."""
        self.over_host = 0
        """Of these, how many went over the host; the others went over NCCL."""
        self._freed: Counter[tuple[str, str]] = Counter()
        self._used: dict[int, Any] = {}
        self._inside = False
        self._on_device = False  # what was last looked at inside

    def begin(self) -> None:
        """Put a counter around the methods of our communicators and persistent requests; for good."""
        for kind in KINDS:
            for name, collective in COLLECTIVES.items():
                self._wrap(kind, name, self._add_call(collective, name))
                self._wrap(kind, f"I{name.lower()}", self._add_call(collective, f"I{name.lower()}"))
                self._wrap(kind, f"{name}_init", self._remember(collective, f"{name}_init"))
            for name in filter(functools.partial(hasattr, kind), _inherited()):
                self._wrap(kind, name, self._add_inherited(name))
            for name in ("Free", "Disconnect", "close"):
                self._wrap_end(kind, name)
        for request in (hpccoll.PersistentRequest, EnqueuedRequest):
            self._wrap(request, "Start", self._add_start)
        self._watch_devices()

    def on_plans(self) -> Counter[tuple[str, str]]:
        """(collective, plan): the calls that ran on it."""
        total = Counter(self._freed)
        for comm in self._used.values():
            total += comm.tally()
        return total

    def differences(self, on_plans: Counter[tuple[str, str]]) -> list[str]:
        """The collectives of which not as many calls ran on plans as were made."""
        found = []
        for collective in sorted({key[0] for key in self.calls} | {key[0] for key in on_plans}):
            made, ran = (of_collective(counts, collective).total() for counts in (self.calls, on_plans))
            if made != ran:
                found.append(f"{collective}: {made} calls, {ran} on plans")
        return found

    def _wrap(self, kind: Any, name: str, after: After) -> None:
        method = getattr(kind, name)

        @functools.wraps(method)
        def counted(this: Any, *args: Any, **kwargs: Any) -> Any:
            # What a method does by calling another one is no call of the program.
            if self._inside:
                return method(this, *args, **kwargs)
            self._inside, self._on_device = True, False
            try:
                result = method(this, *args, **kwargs)
            finally:
                self._inside = False
            after(this, result, args)
            return result

        setattr(kind, name, counted)

    def _wrap_end(self, kind: Any, name: str) -> None:
        method = getattr(kind, name)

        @functools.wraps(method)
        def ended(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self._used.pop(id(this), None) is not None:
                self._freed += this.tally()
            return method(this, *args, **kwargs)

        setattr(kind, name, ended)

    def _watch_devices(self) -> None:
        """Note what a call that is looked at turns out to be; one on memory known from before is not."""
        steps, prepared = Context.steps, base._prepared

        @functools.wraps(steps)
        def counted(context: Context, call: Any, *rest: Any, **options: Any) -> Any:
            self.over_host += call.staged
            return steps(context, call, *rest, **options)

        def looked_at(prepare: Any, context: Context) -> Any:
            call = prepared(prepare, context)
            self._on_device = call.on_device
            return call

        Context.steps = counted  # type: ignore[method-assign]
        base._prepared = looked_at

    def _add_call(self, collective: str, name: str) -> After:
        def add(comm: Any, _result: Any, buffers: tuple[Any, ...]) -> None:
            self._used[id(comm)] = comm
            self.calls[collective, name] += 1
            self.on_devices += self._on_device or any(map(_is_of_device, buffers))

        return add

    def _remember(self, collective: str, name: str) -> After:
        def remember(comm: Any, request: Any, buffers: tuple[Any, ...]) -> None:
            self._used[id(comm)] = comm
            request.counted_as = (collective, name)
            request.is_of_device = self._on_device

        return remember

    def _add_start(self, request: Any, _result: Any, _arguments: tuple[Any, ...]) -> None:
        if hasattr(request, "counted_as"):  # and not a message, or a call between neighbours
            self.calls[request.counted_as] += 1
            self.on_devices += request.is_of_device

    def _add_inherited(self, name: str) -> After:
        def add(_comm: Any, _result: Any, _arguments: tuple[Any, ...]) -> None:
            self.inherited[name] += 1

        return add


def _is_of_device(argument: Any) -> bool:
    """Whether an argument is an array on a device, or one of mpi4py's lists with one."""
    return on_device(argument[0] if isinstance(argument, (list, tuple)) and argument else argument)


def table(calls: Counter[tuple[str, str]], on_plans: Counter[tuple[str, str]]) -> list[str]:
    """Lines for people: each collective with its calls, how many ran on plans, and on which."""
    lines = [f"{'collective':<16}{'calls':>8}{'on plans':>10}"]
    for collective in sorted({key[0] for key in calls} | {key[0] for key in on_plans}):
        made, ran = of_collective(calls, collective), of_collective(on_plans, collective)
        names = f"{words(made)}; plans: {words(ran) or 'none'}"
        lines.append(f"{collective:<16}{made.total():>8}{ran.total():>10}  {names}")
    share = 100 * on_plans.total() / max(calls.total(), 1)
    lines.append(f"{'all':<16}{calls.total():>8}{on_plans.total():>10}  {share:.6g} %")
    return lines


def of_collective(counts: Counter[tuple[str, str]], collective: str) -> Counter[str]:
    """What `counts` holds of one collective, by method or plan."""
    return Counter({name: count for (key, name), count in counts.items() if key == collective})


def words(counts: Counter[str]) -> str:
    """As "Bcast 12, Ibcast 4"."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def device_words(numbers: Mapping[str, Any]) -> str:
    """As "12 calls, 10 of them over NCCL, 2 over the host"."""
    every, over_host = numbers["on_devices"], numbers["over_host"]
    return f"{every} calls, {every - over_host} of them over NCCL, {over_host} over the host"
