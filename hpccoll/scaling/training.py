"""Training of a model on more and more nodes: what a step takes, what is hidden, and what limits it.

Compute, tensor, pipeline and bubble are those of `hpccoll layout` (`parallel.price`).  Gradients go in
buckets, as `hpccoll.overlap` sends them: each is all-reduced over the data group once it is full, one after
the other, while the backward pass of the last micro-batch goes on:

    backward   |----b0----|----b1----|----b2----|
    buckets               |==a0==|   |==a1==|   |==a2==|
                                                ^-------^ exposed: what the step waits for

A bucket's time is that of the cheapest plan, of all data groups at the same time.  Communication is taken to
leave the compute as fast as it is.  Strong scaling keeps the batch, weak scaling its part of each data group;
efficiency is the rate of operations per GPU over that of the fewest nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from hpccoll.errors import UsageError
from hpccoll.parallel.models import Model
from hpccoll.parallel.placement import Placement
from hpccoll.parallel.price import ELEMENT_BYTES, Choice, Priced, price_choice, price_use, stage_parameters
from hpccoll.parallel.traffic import Use
from hpccoll.plans.links import Links
from hpccoll.topology.layout import Layout

STRONG, WEAK = "strong", "weak"
# What the efficiency of a study may be lost to.
LOSSES = ("tensor", "pipeline", "bubble", "exposed gradients")


@dataclass(frozen=True)
class Step:
    """A step of training on so many nodes; seconds.

    `gradients_s`: all buckets' all-reduces; `exposed_s`: the part of it that the backward pass does not hide.
    `buckets` of `bucket_bytes` each.  `efficiency`: 1 on the fewest nodes.  `limit`: what takes most of the
    time that is lost on the fewest nodes; on more of them, what has grown most since, as a part of the step.
    """

    nodes: int
    gpus: int
    tensor: int
    pipeline: int
    data: int
    batch: int
    micro_batches: int
    compute_s: float
    tensor_s: float
    pipeline_s: float
    bubble_s: float
    gradients_s: float
    exposed_s: float
    buckets: int
    bucket_bytes: int
    tflops: float
    efficiency: float = 1.0
    limit: str = ""

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.compute_s + self.tensor_s + self.pipeline_s + self.bubble_s + self.exposed_s

    @property
    def losses(self) -> dict[str, float]:
        """Seconds in which a GPU does not compute, by what it waits for."""
        found = (self.tensor_s, self.pipeline_s, self.bubble_s, self.exposed_s)
        return dict(zip(LOSSES, found, strict=True))

    @property
    def lost(self) -> dict[str, float]:
        """The same as parts of the step."""
        return {name: seconds / self.step_s for name, seconds in self.losses.items()}


def study(
    model: Model,
    first: Choice,
    layouts: Sequence[Layout],
    links: Links,
    rate: float,
    bucket_bytes: int,
    *,
    scaling: str = STRONG,
    overlap: bool = True,
) -> Iterator[Step]:
    """A step for each layout, the fewest nodes first; it ends where the batch can be divided no further.

    Args:
        model: what is trained.
        first: the sizes of tensor and pipeline groups and the batch on the first layout.
        layouts: one for each number of nodes.
        links: of the machine.
        rate: floating-point operations a second that a GPU reaches while it computes.
        bucket_bytes: of gradients; an all-reduce each.
        scaling: "strong" or "weak".
        overlap: whether buckets are sent while the backward pass goes on.

    Raises:
        UsageError: sizes that the first layout does not allow.

    """
    base: Step | None = None
    inner = first.tensor * first.pipeline
    for layout in layouts:
        if layout.size % inner:
            raise UsageError(f"{layout.size} GPUs are no multiple of tensor x pipeline, {inner}")
        data = layout.size // inner
        groups = data / (base.data if base else data)
        batch = round(first.batch * groups) if scaling == WEAK and base else first.batch
        choice = replace(first, data=data, batch=batch)
        if base is not None and choice.why_not(model):
            return  # strong scaling has no more sequences to give to each group
        step = _step(choice, model, layout, links, rate, bucket_bytes, overlap=overlap)
        base = base or step
        yield replace(step, efficiency=step.tflops / base.tflops, limit=_limit(step, base))


def _limit(step: Step, base: Step) -> str:
    grown = {name: part - (base.lost[name] if step is not base else 0) for name, part in step.lost.items()}
    worst = max(grown, key=lambda one: grown[one])
    return worst if grown[worst] > 0.01 else "compute" if step is base else "-"


def _step(
    choice: Choice,
    model: Model,
    layout: Layout,
    links: Links,
    rate: float,
    bucket_bytes: int,
    *,
    overlap: bool,
) -> Step:
    priced = price_choice(choice, model, layout, links, rate)
    nbytes = int(stage_parameters(choice, model) * ELEMENT_BYTES)
    buckets = max(1, ceil(nbytes / bucket_bytes))
    each_s = _bucket_s(priced.placement, min(nbytes, bucket_bytes), links)
    last_s = _bucket_s(priced.placement, nbytes - (buckets - 1) * bucket_bytes, links)
    times = [each_s] * (buckets - 1) + [last_s]
    exposed_s = exposed(backward_s(priced), times) if overlap else sum(times)
    step = Step(
        layout.node_count,
        layout.size,
        choice.tensor,
        choice.pipeline,
        choice.data,
        choice.batch,
        choice.micro_batches,
        priced.compute_s,
        priced.tensor_s,
        priced.pipeline_s,
        priced.bubble_s,
        sum(times),
        exposed_s,
        buckets,
        bucket_bytes,
        0.0,
    )
    operations = model.operations(choice.batch, "none")  # those that count: not what is computed again
    return replace(step, tflops=operations / layout.size / step.step_s / 1e12)


def _bucket_s(placement: Placement, nbytes: int, links: Links) -> float:
    return price_use(Use("data", "allreduce", nbytes), placement, links)[0]


def backward_s(priced: Priced) -> float:
    """The backward pass of the last micro-batch on a stage: twice the forward one, and what is recomputed."""
    passes = 4 if priced.choice.recompute == "full" else 3
    of_micro_batch = (priced.compute_s + priced.tensor_s) / priced.choice.micro_batches
    return of_micro_batch * (passes - 1) / passes


def exposed(backward: float, times_s: Sequence[float]) -> float:
    """What is left of the buckets' all-reduces when the backward pass ends; its end fills the last one."""
    done = 0.0
    for index, time_s in enumerate(times_s):
        done = max(done, backward * (index + 1) / len(times_s)) + time_s
    return done - backward
