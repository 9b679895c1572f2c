"""Adam with its state spread over the data-parallel ranks.

Stage 1 of S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
2020: each of d ranks has both moments of 1/d of the parameters.  A step is a reduce-scatter of the
gradients, the step on this rank's part, and an all-gather of the parameters: as many bytes as the
all-reduce of plain data parallelism, 2 (d-1)/d of the gradients for each rank.
"""

from __future__ import annotations

import math
from typing import Any

from hpccoll.communicator import Communicator
from hpccoll.parallel.tensor import all_gather, module_of, reduce_scatter

Array = Any


class ShardedAdam:
    """Adam (D. Kingma, J. Ba, 2015) on a vector of parameters that all ranks of a group have alike.

    Args:
        comm: the data-parallel group.
        parameters: contiguous vector of floats, the same on all ranks; `step` changes it in place.
        rate, betas, epsilon: of Adam.

    """

    def __init__(
        self,
        comm: Communicator,
        parameters: Array,
        *,
        rate: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        xp = module_of(parameters)
        self._comm, self._parameters = comm, parameters
        self._rate, self._betas, self._epsilon = rate, betas, epsilon
        self._part = math.ceil(parameters.size / comm.size)  # the last rank's may be shorter
        self._first = xp.zeros(self._part, parameters.dtype)
        self._second = xp.zeros_like(self._first)
        self._steps = 0

    @property
    def state_bytes(self) -> int:
        """What this rank keeps."""
        return int(self._first.nbytes + self._second.nbytes)

    def step(self, gradient: Array) -> None:
        """A step by the sum of all ranks' gradients, vectors like the parameters.  Collective."""
        mine = reduce_scatter(self._comm, self._padded(gradient))
        self._steps += 1
        first, second = self._betas
        self._first += (1 - first) * (mine - self._first)
        self._second += (1 - second) * (mine * mine - self._second)
        mean = self._first / (1 - first**self._steps)
        square = self._second / (1 - second**self._steps)
        xp = module_of(mean)
        part = self._part_of_parameters() - self._rate * mean / (xp.sqrt(square) + self._epsilon)
        self._parameters[...] = all_gather(self._comm, part)[: self._parameters.size]

    def _padded(self, vector: Array) -> Array:
        missing = self._comm.size * self._part - vector.size
        return module_of(vector).pad(vector, (0, missing)) if missing else vector

    def _part_of_parameters(self) -> Array:
        begin = self._comm.rank * self._part
        part = self._parameters[begin : begin + self._part]
        missing = self._part - part.size
        return module_of(part).pad(part, (0, missing)) if missing else part
