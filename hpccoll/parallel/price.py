"""What a way to be parallel costs on a machine, before the run: bytes by level, time, bubble, memory.

A step of m micro-batches through p stages takes

    (m + p - 1) (compute + tensor + pipeline)  +  data

where compute, tensor and pipeline are those of one micro-batch on one stage, so that (p - 1) of (m + p - 1)
parts are the bubble ([N] section 2.2).  Nothing is overlapped: a real run may hide the exchange of
gradients, and part of the rest.  What is exchanged is what the blocks of this package exchange (tensor,
pipeline, optimizer); time is that of the cheapest plan (`plans.cost`), of all groups of a dimension at the
same time on the links of a node.  Letters and sources: `models`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from hpccoll.errors import UsageError
from hpccoll.parallel.dimensions import HEAVIEST_FIRST
from hpccoll.parallel.models import GRADIENT_BYTES, OPTIMIZER_BYTES, PARAMETER_BYTES, RECOMPUTE, Model
from hpccoll.parallel.placement import Placement, place
from hpccoll.parallel.traffic import NETWORK, SHIFT, Bytes, Use, plan_bytes, shift_bytes
from hpccoll.plans.collective import BLOCKED, Collective
from hpccoll.plans.links import Links
from hpccoll.plans.select import Tuning, candidates
from hpccoll.topology.layout import Layout

ELEMENT_BYTES = 2  # activations and gradients travel in 16 bits


@dataclass(frozen=True)
class Choice:
    """A way to be parallel.

    Attributes:
        tensor, pipeline, data: sizes of the groups.
        batch: sequences of a step; micro_batch: those of a micro-batch.
        sequence: activations between the parallel layers are spread over the tensor group, [K].
        recompute: of the activations: "none", "selective" or "full".
        sharded: the optimizer's state is spread over the data group, [R] stage 1.

    """

    tensor: int
    pipeline: int
    data: int
    batch: int
    micro_batch: int = 1
    sequence: bool = True
    recompute: str = "selective"
    sharded: bool = True

    @property
    def micro_batches(self) -> int:
        """Of a step and pipeline."""
        return self.batch // (self.data * self.micro_batch)

    def why_not(self, model: Model) -> str:
        """What does not divide, or is not known; "" where the choice can be made."""
        for what, whole, part in (
            ("heads", model.heads, self.tensor),
            ("layers", model.layers, self.pipeline),
            ("sequences of a batch", self.batch, self.data * self.micro_batch),
        ):
            if whole < part or whole % part:
                return f"{whole} {what} cannot be divided by {part}"
        return (
            "" if self.recompute in RECOMPUTE else f"recompute {self.recompute!r} is not one of {RECOMPUTE}"
        )


@dataclass(frozen=True)
class Priced:
    """The price of a choice; times of a step in seconds, memory in bytes of the rank with most."""

    choice: Choice
    placement: Placement
    moved: dict[str, Bytes]  # of all ranks in a step, by dimension and level
    compute_s: float
    tensor_s: float
    pipeline_s: float
    bubble_s: float
    data_s: float
    state_bytes: float
    activation_bytes: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.tensor_s + self.pipeline_s + self.bubble_s + self.data_s

    @property
    def memory_bytes(self) -> float:
        return self.state_bytes + self.activation_bytes


def price_choice(choice: Choice, model: Model, layout: Layout, links: Links, rate: float) -> Priced:
    """The price; `rate`: floating-point operations a second that a rank reaches.

    Raises: UsageError for a choice that the model or the layout does not allow.
    """
    if why := choice.why_not(model):
        raise UsageError(why)
    sizes = {"tensor": choice.tensor, "data": choice.data, "pipeline": choice.pipeline}
    placement = place(layout, HEAVIEST_FIRST, [sizes.get(name, 1) for name in HEAVIEST_FIRST])
    moved = {name: Bytes() for name in sizes}
    seconds = dict.fromkeys(sizes, 0.0)
    for use in uses_of(choice, model):
        (name,) = use.names
        each, total = price_use(use, placement, links)
        seconds[name] += each
        moved[name].update(total)
    m, p = choice.micro_batches, choice.pipeline
    compute = model.operations(choice.batch, choice.recompute) / layout.size / rate
    # Of a step: m micro-batches on a stage; p - 1 more pass while it is idle.
    per_stage = compute + seconds["tensor"] + seconds["pipeline"]
    return Priced(
        choice,
        placement,
        {name: +total for name, total in moved.items()},
        compute,
        seconds["tensor"],
        seconds["pipeline"],
        per_stage * (p - 1) / m,
        seconds["data"],
        state_bytes(choice, model),
        activation_bytes(choice, model),
    )


def uses_of(choice: Choice, model: Model) -> list[Use]:
    """What the groups exchange in a step, [N] section 3.2, [K] section 4.2.

    Activations of b s h elements: for each layer and micro-batch four all-reduces (two forward, two
    backward; `full` recomputes the forward ones), with `sequence` as reduce-scatters and all-gathers, and
    two all-gathers more, of what is not kept.  To the next stage and back: b s h elements, with `sequence`
    1/t of them.  Gradients: a reduce-scatter of the gradients and an all-gather of the parameters, which
    together are an all-reduce.
    """
    t, m = choice.tensor, choice.micro_batches
    nbytes = choice.micro_batch * model.sequence * model.hidden * ELEMENT_BYTES
    layers = model.layers // choice.pipeline * m
    again = 2 * layers if choice.recompute == "full" else 0
    gradients = int(stage_parameters(choice, model) * ELEMENT_BYTES)
    uses = [Use("pipeline", SHIFT, nbytes // t if choice.sequence else nbytes, 2 * m)]
    if choice.sequence:
        uses += [
            Use("tensor", "allgather", nbytes, 6 * layers + again),
            Use("tensor", "reduce_scatter", nbytes, 4 * layers + again),
        ]
    else:
        uses.append(Use("tensor", "allreduce", nbytes, 4 * layers + again))
    uses += [Use("data", name, gradients) for name in ("reduce_scatter", "allgather")]
    return uses


@dataclass(frozen=True)
class Message:
    """What a GPU of the first stage exchanges in one dimension: bytes of a call, calls of a step.

    `sent`: bytes that it sends in a step, where the call is a ring, which is the least there can be.  Of the
    messages between stages the first one sends those forward.
    """

    dimension: str
    collective: str
    nbytes: int
    times: int
    sent: float


def messages(choice: Choice, model: Model) -> list[Message]:
    """The calls of one GPU, of dimensions with more than one rank."""
    found = []
    for use in uses_of(choice, model):
        (name,) = use.names
        size = getattr(choice, name)
        parts = {"allreduce": 2 * (size - 1) / size, SHIFT: 0.5}.get(use.collective, (size - 1) / size)
        if size > 1:
            found.append(Message(name, use.collective, use.nbytes, use.times, parts * use.nbytes * use.times))
    return found


def stage_parameters(choice: Choice, model: Model) -> float:
    """Of a rank of the first stage, which has the embedding."""
    layers = model.layers // choice.pipeline * model.layer_parameters
    return (layers + model.embedding_parameters) / choice.tensor


def state_bytes(choice: Choice, model: Model) -> float:
    """Parameters, gradients, the optimizer's state: 2 + 2 + 12 bytes, with `sharded` 12/d, [R] section 5."""
    optimizer = OPTIMIZER_BYTES / (choice.data if choice.sharded else 1)
    return stage_parameters(choice, model) * (PARAMETER_BYTES + GRADIENT_BYTES + optimizer)


def activation_bytes(choice: Choice, model: Model) -> float:
    """Of the first stage, which keeps p micro-batches (or all, where they are fewer), [K] section 4.3."""
    kept = min(choice.pipeline, choice.micro_batches) * (model.layers // choice.pipeline)
    return kept * model.activation_bytes(
        choice.micro_batch, choice.tensor, sequence=choice.sequence, recompute=choice.recompute
    )


def neighbours(choice: Choice, model: Model) -> list[Choice]:
    """Choices in which a factor of 2 went from one dimension to another, where the model allows it."""
    found = []
    names = ("tensor", "pipeline", "data")
    for one in names:
        for other in names:
            if one != other and getattr(choice, one) % 2 == 0:
                halved = {one: getattr(choice, one) // 2, other: getattr(choice, other) * 2}
                moved = replace(choice, **halved)
                if not moved.why_not(model):
                    found.append(moved)
    return found


# --- one use ---------------------------------------------------------------------------------------


def price_use(use: Use, placement: Placement, links: Links) -> tuple[float, Bytes]:
    """Seconds a step of the slowest group, and bytes a step of all groups."""
    groups = placement.groups(*use.names)
    total: Bytes = Bytes()
    if len(groups[0]) == 1:
        return 0.0, total
    layout = placement.layout
    in_node = [0] * layout.node_count
    for group in groups:
        for node in {layout.node_of[rank] for rank in group}:
            in_node[node] += 1
    slowest = 0.0
    for group in groups:
        seconds, moved = _price_group(use.collective, use.nbytes, layout.restrict(group), links, max(in_node))
        slowest = max(slowest, seconds)
        for level, nbytes in moved.items():
            total[level] += use.times * nbytes
    return use.times * slowest, total


@lru_cache(maxsize=4096)
def _price_group(
    collective: str, nbytes: int, layout: Layout, links: Links, groups_of_node: int
) -> tuple[float, Bytes]:
    links = shared(links, groups_of_node)
    if collective == SHIFT:
        moved = shift_bytes(layout, range(layout.size), nbytes)
        return message_s(links, nbytes, between=bool(moved[NETWORK])), moved
    count = nbytes // (layout.size if collective in BLOCKED else 1)
    tuning = Tuning(native_bytes=1 << 62, small_bytes=0, links=links)
    found = candidates(Collective(collective, layout.size, count), layout, 1, tuning)
    return found[0].time_s, plan_bytes(found[0].made, 1)


def message_s(links: Links, nbytes: int, *, between: bool) -> float:
    """The time of one message, inside a node or between two."""
    if links.fabric is not None:
        link = links.fabric.network if between else links.fabric.inside
        return link.latency_us * 1e-6 + nbytes / link.rate
    latency_us = links.network_latency_us if between else links.message_latency_us
    return latency_us * 1e-6 + nbytes / ((links.network_gbs if between else links.message_gbs) * 1e9)


def shared(links: Links, groups: int) -> Links:
    """The links of a node for one of so many groups that use them at the same time.

    A GPU has its own links inside the node; network cards are shared where there are fewer than groups.
    """
    fabric = links.fabric
    if fabric is not None:
        part = min(1.0, fabric.cards / groups)
        network = replace(fabric.network, gbs=fabric.network.gbs * part)
        return replace(links, fabric=replace(fabric, network=network))
    return replace(
        links,
        memory_gbs=links.memory_gbs / groups,
        staging_gbs=None if links.staging_gbs is None else links.staging_gbs / groups,
        message_gbs=links.message_gbs / groups,
        network_gbs=links.network_gbs / groups,
    )
