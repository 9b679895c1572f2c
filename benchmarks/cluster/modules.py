"""The training step of buckets.py as a PyTorch module, whose backward pass is the same computation.

Gradients are averaged by torch's DDP over gloo, or by hpccoll's in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.node.gloo import Gloo, missing

if TYPE_CHECKING:
    from pathlib import Path

    import hpccoll
    from benchmarks.cluster.buckets import Training

    Ways = dict[str, Callable[[], object]]

WITHOUT_TORCH = missing()
MIB = 1 << 20


class Modules:
    """Steps with torch; `ways` by name, and for those with buckets what has their times."""

    def __init__(
        self, training: Training, comm: hpccoll.Communicator, meeting: Path, interface: str, size: int
    ) -> None:
        """`meeting`: a folder that all hosts see.  `size`: bytes of a bucket, beside the default of DDP."""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        from hpccoll.torch import DistributedDataParallel as OverHpccoll

        torch.set_num_threads(1)
        self._training = training
        self._gloo = Gloo(training.world, meeting, interface)
        flat = torch.from_numpy(training.flat)

        def by_gloo() -> None:
            training.compute()
            self._gloo.Allreduce(flat, flat)
            np.divide(training.flat, training.world.size, out=training.flat)

        mib = size / MIB
        of_ddp = {
            "ddp": DistributedDataParallel(_chain(training), gradient_as_bucket_view=True),
            f"ddp {mib:g}M": DistributedDataParallel(
                _chain(training), gradient_as_bucket_view=True, bucket_cap_mb=mib
            ),
        }
        ours = OverHpccoll(_chain(training), comm, bucket_bytes=size)
        self.buckets = {"module": ours.buckets}
        self.ways: Ways = {"gloo": by_gloo}
        self._models: dict[str, Any] = {**of_ddp, "module": ours}
        for name, model in self._models.items():
            self.ways[name] = _step(model)

    def wrong(self, name: str) -> int:
        """Wrong elements on all ranks, of averages; NumPy's gradients where `name` has none of its own."""
        model = self._models.get(name)
        if model is None:
            return self._training.wrong()
        return self._training.wrong([one.grad.numpy() for one in model.parameters()])

    def close(self) -> None:
        """Collective."""
        for buckets in self.buckets.values():
            buckets.close()
        self._gloo.close()


def _chain(training: Training) -> Any:
    """A module with a parameter for each layer."""
    import torch

    class Layer(torch.autograd.Function):
        """Forward nothing; backward the computation of a layer, and its gradient."""

        @staticmethod
        def forward(context: Any, inputs: Any, weight: Any, number: int) -> Any:
            context.number, context.shape = number, weight.shape
            return inputs.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            value = training.layer(context.number)
            return gradient, torch.full(context.shape, value), None

    class Chain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [part.size for part in training.gradients]
            self.weights = torch.nn.ParameterList(torch.zeros(size) for size in sizes)

        def forward(self, inputs: Any) -> Any:
            for number, weight in enumerate(self.weights):
                inputs = Layer.apply(inputs, weight, number)
            return inputs.sum()

    return Chain()


def _step(model: Any) -> Callable[[], None]:
    import torch

    inputs = torch.zeros(1, requires_grad=True)

    def step() -> None:
        model.zero_grad()
        model(inputs).backward()

    return step
