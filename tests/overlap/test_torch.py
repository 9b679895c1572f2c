"""PyTorch modules: gradients averaged during backward are those of one process with all of the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hpccoll import MismatchError, NotFiniteError, UsageError
from tests.collectives.conftest import Make
from tests.support.layouts import layouts

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
torch.set_num_threads(1)

FEW = layouts({"": (2,), "2+1": (3,)})


def network(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()


def batch(size: int, seed: int = 3) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(4 * size, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(4 * size, 3, generator=generator, dtype=torch.float64)


def share(comm: Any, whole: Any) -> Any:
    return whole[comm.rank :: comm.size]


def wrapped(comm: Any, seed: int, **options: Any) -> Any:
    from hpccoll.torch import DistributedDataParallel

    return DistributedDataParallel(network(seed), comm, **options)


def loss_of(model: Any, inputs: Any, targets: Any) -> Any:
    return ((model(inputs) - targets) ** 2).mean()


@pytest.mark.parametrize("to_none", [True, False])
@FEW
def test_training_equals_one_process(communicator: Make, layout: str, to_none: bool) -> None:
    comm = communicator(layout=layout)
    model = wrapped(comm, seed=comm.rank, bucket_bytes=500)
    assert len(model.buckets) > 1
    assert "copied" not in str(model.buckets)
    alone = network(seed=0)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (model, alone)]
    for step in range(4):
        inputs, targets = batch(comm.size, step)
        for one in optimizers:
            one.zero_grad(set_to_none=to_none)
        loss_of(model, share(comm, inputs), share(comm, targets)).backward()
        loss_of(alone, inputs, targets).backward()
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-12, atol=1e-14)
        for one in optimizers:
            one.step()
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)
    weights = comm.allgather([one.detach().numpy().tobytes() for one in model.parameters()])
    assert all(one == weights[0] for one in weights)
    assert model.buckets.total_times.steps == 4
    assert set(model.state_dict()) == {f"module.{name}" for name in alone.state_dict()}


class Digits(torch.nn.Module):  # type: ignore[misc]
    """A small CNN for images of 8 x 8."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.convolutions = torch.nn.Sequential(
            torch.nn.Conv2d(1, 6, 3, padding=1),
            torch.nn.BatchNorm2d(6),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(6, 12, 3, padding=1),
            torch.nn.ReLU(),
        )
        self.head = torch.nn.Linear(12 * 4 * 4, 10)

    def forward(self, images: Any) -> Any:
        return self.head(self.convolutions(images).flatten(1))


@pytest.fixture
def gloo(world: Any) -> Iterator[None]:
    """torch's process group of the ranks, over gloo."""
    from benchmarks.node.gloo import Gloo, missing

    if reason := missing():
        pytest.skip(reason)
    group = Gloo(world)
    yield
    group.close()


@pytest.mark.ranks(2)
def test_a_cnn_on_digits_equals_ddp_over_gloo(communicator: Make, gloo: None) -> None:
    """Step by step: gradients, weights and buffers; in the end it has learned."""
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    from torch.nn.parallel import DistributedDataParallel as OverGloo

    from hpccoll.torch import DistributedDataParallel

    comm = communicator()
    images, digits = datasets.load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    digits = torch.tensor(digits)
    models = [
        DistributedDataParallel(Digits(seed=comm.rank), comm, bucket_bytes=4000),
        OverGloo(Digits(seed=comm.rank), bucket_cap_mb=0.004),
    ]
    assert len(models[0].buckets) > 1
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.2, momentum=0.9) for one in models]
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(5))
    losses = []
    for batch in order.split(128):
        mine = batch[comm.rank :: comm.size]
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[mine]), digits[mine])
            loss.backward()
            losses.append(loss.item())
        for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
        for optimizer in optimizers:
            optimizer.step()
        for name, theirs in models[1].state_dict().items():
            torch.testing.assert_close(models[0].state_dict()[name], theirs, rtol=1e-4, atol=1e-5)
    assert len(losses) == 2 * 15
    assert losses[-2] < losses[0] / 2


class Either(torch.nn.Module):  # type: ignore[misc]
    """Three layers of unlike shapes, used in the order that each call says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, size).double() for size in (3, 50, 200))

    def forward(self, inputs: Any, order: list[int]) -> Any:
        total = inputs
        for number in order:  # one after the other, so that backward takes them in the opposite order
            total = total + self.layers[number](total).mean(dim=1, keepdim=True)
        return (total**2).sum()


@pytest.mark.parametrize("unused", [False, True])
@FEW
def test_parameters_used_in_other_orders_pair_rightly(communicator: Make, layout: str, unused: bool) -> None:
    from hpccoll.torch import DistributedDataParallel

    comm = communicator(layout=layout)
    model = DistributedDataParallel(Either(), comm, bucket_bytes=300, find_unused_parameters=unused)
    assert len(model.buckets) > 2
    seen: list[int] = []
    for number, layer in enumerate(model.module.layers):
        layer.weight.register_post_accumulate_grad_hook(lambda _, number=number: seen.append(number))
    for step in range(3):
        orders = [np.random.default_rng((step, rank)).permutation(3).tolist() for rank in range(comm.size)]
        orders[-1] = orders[0][::-1]
        inputs = [torch.full((2, 4), 1.0 + step + rank, dtype=torch.float64) for rank in range(comm.size)]
        seen.clear()
        model.zero_grad()
        model(inputs[comm.rank], orders[comm.rank]).backward()
        assert seen == orders[comm.rank][::-1], "autograd has taken another order than this test wants"
        alone = Either()
        for one, order in zip(inputs, orders, strict=True):
            (alone(one, order) / comm.size).backward()
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-12, atol=1e-12)


@FEW
def test_gradients_add_up_without_travelling(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    model, alone = wrapped(comm, seed=0), network(seed=0)
    parts = [batch(comm.size, seed) for seed in range(3)]
    with model.no_sync():
        for inputs, targets in parts[:2]:
            loss_of(model, share(comm, inputs), share(comm, targets)).backward()
    assert model.buckets.total_times.steps == 0
    loss_of(model, *(share(comm, one) for one in parts[2])).backward()
    for inputs, targets in parts:
        loss_of(alone, inputs, targets).backward()
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-12, atol=1e-14)


class Branches(torch.nn.Module):  # type: ignore[misc]
    """Three layers of which a call uses some."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2, bias=False) for _ in range(3))

    def forward(self, inputs: Any, used: tuple[int, ...]) -> Any:
        return sum(self.layers[number](inputs).sum() for number in used)


@pytest.mark.ranks(2)
def test_unused_parameters(communicator: Make) -> None:
    from hpccoll.torch import DistributedDataParallel

    comm = communicator()
    model = DistributedDataParallel(Branches(), comm, find_unused_parameters=True, bucket_bytes=16)
    inputs = torch.ones(1, 2)
    for _ in range(2):
        for one in model.parameters():
            one.grad = None
        model(inputs, (0,) if comm.rank == 0 else (0, 1)).backward()
        first, second, third = (layer.weight.grad for layer in model.module.layers)
        assert torch.equal(first, torch.ones(2, 2))
        assert torch.equal(second, torch.full((2, 2), 0.5))
        assert third is None
    strict = DistributedDataParallel(Branches(), comm)
    with pytest.raises(UsageError, match=r"before these arrays were ready: 'layers.1.weight'"):
        strict(inputs, (0, 2)).backward()
    strict(inputs, (0, 1, 2)).backward()


@FEW
def test_buffers_and_other_dtypes(communicator: Make, layout: str) -> None:
    from hpccoll.torch import DistributedDataParallel

    comm = communicator(layout=layout)
    torch.manual_seed(comm.rank)
    module = torch.nn.ModuleDict(
        {
            "norm": torch.nn.BatchNorm1d(3),
            "narrow": torch.nn.Linear(3, 2).to(torch.bfloat16),
            "frozen": torch.nn.Linear(2, 2).requires_grad_(False),
        }
    )

    class Both(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.parts = module

        def forward(self, inputs: Any) -> Any:
            return self.parts["narrow"](self.parts["norm"](inputs).to(torch.bfloat16)).float().sum()

    model = DistributedDataParallel(Both(), comm)
    for _ in range(2):
        model(torch.randn(5, 3) + comm.rank).backward()
    bias = model.module.parts["narrow"].bias.grad
    assert bias.dtype == torch.bfloat16
    assert bias.tolist() == [10, 10]
    assert model.module.parts["frozen"].weight.grad is None
    frozen = comm.allgather(model.module.parts["frozen"].weight.tolist())
    assert all(one == frozen[0] for one in frozen)
    model(torch.zeros(5, 3))  # copies rank 0's running means before it changes them alike
    means = comm.allgather(model.module.parts["norm"].running_mean.tolist())
    assert all(one == means[0] for one in means)


@pytest.mark.ranks(2)
def test_mistakes(communicator: Make) -> None:
    from hpccoll.torch import DistributedDataParallel

    comm = communicator()
    with pytest.raises(MismatchError, match=r"array 'weight' differs in shape"):
        DistributedDataParallel(torch.nn.Linear(2, 2 + comm.rank), comm)
    with pytest.raises(UsageError, match="no parameter that requires a gradient"):
        DistributedDataParallel(torch.nn.Linear(2, 2).requires_grad_(False), comm)
    model = wrapped(comm, seed=0, check_finite=True)
    inputs, targets = batch(1)
    if comm.rank == 1:
        inputs[0, 0] = np.nan
    with pytest.raises(NotFiniteError, match=r"'0.weight' of rank 1"):
        loss_of(model, inputs, targets).backward()
