"""Pipeline parallelism: the order in which a stage does its micro-batches, and messages between stages.

One forward, one backward (D. Narayanan et al., "PipeDream", 2019; "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM", 2021, section 2.2).  A stage begins with as many forward passes
as stages follow it, then does one of each in turn.  Three stages, four micro-batches, F forward, B backward::

    stage 0    F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
    stage 1    .  F0 F1 .  B0 F2 B1 F3 B2 .  B3
    stage 2    .  .  F0 B0 F1 B1 F2 B2 F3 B3

No stage keeps the activations of more micro-batches than there are stages, and with m micro-batches and p
stages each is idle for (p-1)/m of the time in which it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hpccoll.communicator import Communicator
from hpccoll.errors import UsageError
from hpccoll.runtime.wait import Waits

Array = Any
FORWARD, BACKWARD = "forward", "backward"
_TAGS = {FORWARD: 1, BACKWARD: 2}


class Action(NamedTuple):
    """A pass of one micro-batch through a stage."""

    kind: str  # FORWARD or BACKWARD
    micro_batch: int


def one_forward_one_backward(stages: int, stage: int, micro_batches: int) -> tuple[Action, ...]:
    """What a stage does, in order.  Raises: UsageError for a stage that is none, or no micro-batch."""
    if not 0 <= stage < stages or micro_batches < 1:
        raise UsageError(f"stage {stage} of {stages} with {micro_batches} micro-batches: there is none")
    ahead = min(stages - 1 - stage, micro_batches)
    first = [Action(FORWARD, number) for number in range(ahead)]
    pairs = [
        action
        for number in range(micro_batches - ahead)
        for action in (Action(FORWARD, number + ahead), Action(BACKWARD, number))
    ]
    last = [Action(BACKWARD, number) for number in range(micro_batches - ahead, micro_batches)]
    return (*first, *pairs, *last)


def bubble(stages: int, micro_batches: int) -> float:
    """The time in which a stage is idle, over the time in which it computes: (p - 1) / m."""
    return (stages - 1) / micro_batches


class Stage:
    """The stage of this rank in a pipeline: messages to and from the stages beside it.

    Sends are started and never waited for before `finish`, so that two stages which send to one another do
    not wait for each other; the array sent must not change until then.  A receive waits, and yields the
    core.  At the ends of the pipeline, where there is no neighbour, nothing is sent or received.

    Args:
        comm: the pipeline's communicator; ranks are stages.  Collective at first use.

    Raises:
        CollectiveTimeoutError: a message did not come within `timeout_s`.
        PeerLostError, AbortedError: a stage is gone, or the communicator was given up.

    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._context = comm._used()
        self._sends: list[tuple[Any, Array]] = []

    @property
    def number(self) -> int:
        """Which stage it is."""
        return self._comm.rank

    @property
    def count(self) -> int:
        """How many stages there are."""
        return self._comm.size

    @property
    def is_first(self) -> bool:
        return self.number == 0

    @property
    def is_last(self) -> bool:
        return self.number == self.count - 1

    def send(self, kind: str, array: Array) -> None:
        """Send activations to the next stage (FORWARD), or a gradient to the one before (BACKWARD)."""
        to = self.number + (1 if kind == FORWARD else -1)
        if 0 <= to < self.count:
            self._sends.append((self._comm.Isend(array, to, _TAGS[kind]), array))

    def receive(self, kind: str, array: Array) -> Array:
        """Receive into `array` from the stage before (FORWARD), or after (BACKWARD), and return it."""
        source = self.number - (1 if kind == FORWARD else -1)
        if 0 <= source < self.count:
            self._wait(self._comm.Irecv(array, source, _TAGS[kind]), f"a {kind} message of stage {source}")
        return array

    def finish(self) -> None:
        """Wait for all that was sent."""
        for request, _ in self._sends:
            self._wait(request, f"the end of a message of stage {self.number}")
        self._sends.clear()

    def _wait(self, request: Any, what: str) -> None:
        if not request.Test():
            self._context.wait_for_message(_until_complete(request), what)

    def run(
        self,
        micro_batches: int,
        forward: Callable[[int, Array], Array],
        backward: Callable[[int, Array], Array],
        room: Callable[[], Array],
    ) -> None:
        """All passes of a step, by `one_forward_one_backward`.

        Args:
            micro_batches: how many, the same on all stages.
            forward: with the micro-batch's number and the stage's input (as `room` made it; the first
                stage's is not filled) gives what the next stage gets.
            backward: with the number and the gradient by what forward gave (likewise, on the last stage)
                gives that by its input.
            room: an array for a message, of the shape that all stages exchange.

        """
        for kind, number in one_forward_one_backward(self.count, self.number, micro_batches):
            passes = forward if kind == FORWARD else backward
            self.send(kind, passes(number, self.receive(kind, room())))
        self.finish()


def _until_complete(request: Any) -> Waits:
    while not request.Test():
        yield None


def deadlock(schedules: list[tuple[Action, ...]]) -> str:
    """Why stages that do these actions in order would wait for each other; "" where they get to the end.

    A pass waits for the message of its neighbour; what is sent does not wait to be received.
    """
    done: list[set[Action]] = [set() for _ in schedules]
    moved = True
    while moved:
        moved = False
        for stage, actions in enumerate(schedules):
            while len(done[stage]) < len(actions) and _can_run(actions[len(done[stage])], stage, done):
                done[stage].add(actions[len(done[stage])])
                moved = True
    stuck = [
        f"stage {stage} waits in {actions[len(done[stage])]}"
        for stage, actions in enumerate(schedules)
        if len(done[stage]) < len(actions)
    ]
    return "; ".join(stuck)


def _can_run(action: Action, stage: int, done: list[set[Action]]) -> bool:
    if action.kind == FORWARD:
        return stage == 0 or action in done[stage - 1]
    if stage == len(done) - 1:
        return Action(FORWARD, action.micro_batch) in done[stage]
    return action in done[stage + 1] and Action(FORWARD, action.micro_batch) in done[stage]
