"""Data-parallel training of PyTorch modules over an hpccoll communicator.

::

    model = hpccoll.torch.DistributedDataParallel(model, comm)
    for batch in batches:
        optimizer.zero_grad()
        loss(model(batch)).backward()  # on return all ranks have the averages of their gradients
        optimizer.step()

The gradients of all parameters lie in one piece of memory for each dtype, of which the buckets
(`hpccoll.GradientBuckets`) are parts: nothing is copied on the way.  Where `zero_grad` has set gradients to
None, as it does by default, autograd makes others, which are copied there; `zero_grad(set_to_none=False)`
spares that.

Needs PyTorch 2.1 or later; nothing else of hpccoll does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from hpccoll.errors import ResourceError, UsageError, UsageTypeError
from hpccoll.overlap import GradientBuckets, broadcast

try:
    import torch
except ImportError as error:
    raise ImportError("hpccoll.torch needs PyTorch: pip install torch") from error

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(torch.nn.Module):  # type: ignore[misc]  # torch may be absent: then it is Any
    """A module whose gradients are averaged over the ranks during `backward()`.

    Takes the place of `torch.nn.parallel.DistributedDataParallel` in its basic use: forward, `no_sync`,
    `module`, names in `state_dict`.  Making one is collective: all ranks pass modules with the same
    parameters, and rank 0's parameters and buffers are copied to all.  Every backward pass outside of
    `no_sync` is collective and must reach at least one parameter on every rank.

    Args:
        module: its parameters that require gradients are all on the CPU, or all on one CUDA device.
        comm: an hpccoll communicator; nothing else is called on it during backward passes.
        bucket_bytes: when a bucket is full; by default by the cost model (`GradientBuckets`).
        dtype_on_wire: "bfloat16" or "float16", with error feedback; CPU only.
        find_unused_parameters: parameters may get no gradient in a backward pass on some ranks, where they
            count as zeros; one that gets none on any rank keeps the gradient that it has.  Costs a small
            all-reduce.
        broadcast_buffers: before each forward pass in training mode rank 0's buffers are copied to all ranks.
        check_finite: NotFiniteError names ranks and parameters of gradients with a NaN or an infinity; CPU
            only.

    Raises: UsageError, MismatchError on all ranks, as `GradientBuckets`.

    """

    def __init__(
        self,
        module: Any,
        comm: Any,
        *,
        bucket_bytes: int | None = None,
        dtype_on_wire: Any = None,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        self.module = module
        self._comm = comm
        self._broadcast_buffers = broadcast_buffers
        self._find_unused = find_unused_parameters
        state = dict(module.named_parameters()) | dict(module.named_buffers())
        broadcast(comm, {name: tensor.detach() for name, tensor in state.items()})
        self._parameters_by_name = {name: one for name, one in module.named_parameters() if one.requires_grad}
        if not self._parameters_by_name:
            raise UsageError("the module has no parameter that requires a gradient")
        self._views = _gradients(comm, self._parameters_by_name)
        self.buckets = GradientBuckets(
            comm,
            self._views,
            bucket_bytes=bucket_bytes,
            dtype_on_wire=dtype_on_wire,
            unused="zero" if find_unused_parameters else "error",
            check_finite=check_finite,
        )
        self._synchronizes = True
        self._in_backward = False
        self._is_ready: set[str] = set()
        for name, parameter in self._parameters_by_name.items():
            parameter.register_post_accumulate_grad_hook(partial(self._accumulated, name))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        if self._broadcast_buffers and self.training and torch.is_grad_enabled() and self._synchronizes:
            for buffer in self.module.buffers():
                self._comm.Bcast(buffer.detach(), root=0)
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Generator[None, None, None]:
        """Inside, backward passes add gradients up on each rank; the next one outside averages the sums."""
        with self.buckets.no_sync():
            before, self._synchronizes = self._synchronizes, False
            try:
                yield
            finally:
                self._synchronizes = before

    def _accumulated(self, name: str, parameter: Any) -> None:
        """A gradient is complete: autograd calls this in the midst of a backward pass."""
        if not self._synchronizes:
            return
        if not self._in_backward:
            self._in_backward = True
            # At the end of this backward pass, on the thread that it began on; torch's own DDP does the same.
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        try:
            self._put(name, parameter)
        except BaseException:
            self._in_backward = False
            raise

    def _put(self, name: str, parameter: Any) -> None:
        view = self._views[name]
        if parameter.grad is not view:
            if parameter.grad.is_sparse:
                raise UsageTypeError(f"the gradient of {name} is sparse: must be dense")
            with torch.no_grad():
                view.copy_(parameter.grad)
            parameter.grad = view
        self._is_ready.add(name)
        self.buckets.ready(name)

    def _end_of_backward(self) -> None:
        self._in_backward = False
        late = [name for name in self._parameters_by_name if name not in self._is_ready]
        self._is_ready.clear()
        if self._find_unused:
            for name in late:  # what earlier passes have added up is to travel all the same
                if self._parameters_by_name[name].grad is not None:
                    self._put(name, self._parameters_by_name[name])
            self._is_ready.clear()
        self.buckets.wait()
        for name in set(late) - set(self.buckets.unused_keys):
            self._parameters_by_name[name].grad = self._views[name]


def _gradients(comm: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """Zeros in the shapes of the parameters, one after the other in one piece of memory for each dtype."""
    views = {}
    for dtype in sorted({one.dtype for one in parameters.values()}, key=str):
        mine = {name: one for name, one in parameters.items() if one.dtype == dtype}
        device = next(iter(mine.values())).device
        flat = _zeros(comm, sum(one.numel() for one in mine.values()), dtype, device)
        for name, part in zip(mine, _parts(flat, mine.values()), strict=True):
            views[name] = part
    return {name: views[name] for name in parameters}


def _parts(flat: Any, parameters: Iterable[Any]) -> Generator[Any, None, None]:
    begin = 0
    for one in parameters:
        end = begin + one.numel()
        yield flat[begin:end].view(one.shape)
        begin = end


def _zeros(comm: Any, count: int, dtype: Any, device: Any) -> Any:
    """On the CPU in memory that the ranks of the node share, where there is enough of it.  Collective."""
    make: Callable[..., Any] = partial(torch.zeros, count, dtype=dtype, device=device)
    if device.type != "cpu":
        return make()
    try:
        shared = comm.zeros(count * dtype.itemsize, np.uint8)
    except ResourceError:  # on all ranks
        return make()
    return torch.from_numpy(shared).view(dtype)
