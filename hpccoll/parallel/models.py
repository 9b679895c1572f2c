"""Transformers and what training them takes: parameters, operations, memory.  Formulas with their sources.

[N]  D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
SC 2021 [K]  V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022
[R]  S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020

Letters are those of [N]: l layers, h hidden size, a heads, s sequence length, V vocabulary; b sequences of
a micro-batch, m micro-batches, B sequences of a batch; t, p, d sizes of tensor, pipeline and data groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.errors import UsageError

RECOMPUTE = ("none", "selective", "full")
# [R] section 3: 16-bit parameters and gradients; 32-bit parameters, first and second moments of Adam.
PARAMETER_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 2, 12


@dataclass(frozen=True)
class Model:
    """A decoder: sizes in elements."""

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int = 2048
    vocabulary: int = 51200

    @property
    def layer_parameters(self) -> float:
        """Of one layer: 12 h^2 (1 + 13/(12 h)), [N] eq. 2."""
        return 12 * self.hidden**2 * (1 + 13 / (12 * self.hidden))

    @property
    def embedding_parameters(self) -> float:
        """Of tokens and places: (V + s) h, [N] eq. 2."""
        return (self.vocabulary + self.sequence) * self.hidden

    @property
    def parameters(self) -> float:
        """All of them, [N] eq. 2."""
        return self.layers * self.layer_parameters + self.embedding_parameters

    def operations(self, batch: int, recompute: str) -> float:
        """Floating-point operations of a step of `batch` sequences, [N] eq. 3 and its appendix.

        Each layer takes 24 B s h^2 + 4 B s^2 h forward and twice that backward, the logits 6 B s h V in
        all; `full` recomputes the layers once more, `selective` their attention alone (4 B s^2 h), [K]
        section 5.
        """
        tokens, h, s = batch * self.sequence, self.hidden, self.sequence
        matrices, attention = 24 * tokens * h * h, 4 * tokens * s * h
        passes = 4 if recompute == "full" else 3
        layer = passes * (matrices + attention) + (attention if recompute == "selective" else 0)
        return self.layers * layer + 6 * tokens * h * self.vocabulary

    def activation_bytes(self, micro_batch: int, tensor: int, *, sequence: bool, recompute: str) -> float:
        """What a rank keeps of one micro-batch in one layer, [K] table 2.

        s b h (10 + 24/t + 5 a s/(h t)); with `sequence` all of it is divided by t; `selective` leaves out
        the attention (5 a s/h); `full` keeps the layer's input alone, 2 s b h.
        """
        s, b, h, a, t = self.sequence, micro_batch, self.hidden, self.heads, tensor
        spread = t if sequence else 1
        if recompute == "full":
            return 2 * s * b * h / spread
        attention = 0.0 if recompute == "selective" else 5 * a * s / (h * t)
        return s * b * h * (10 / spread + 24 / t + attention)


# [N] table 1; GPT-2 and GPT-3 as published.
MODELS = {
    model.name: model
    for model in (
        Model("gpt2-1.5b", 48, 1600, 25, 1024, 50304),
        Model("gpt-1.7b", 24, 2304, 24),
        Model("gpt-7.5b", 36, 4096, 32),
        Model("gpt-39b", 48, 8192, 64),
        Model("gpt-76b", 60, 10240, 80),
        Model("gpt-145b", 80, 12288, 96),
        Model("gpt3-175b", 96, 12288, 96),
        Model("gpt-530b", 105, 20480, 128),
        Model("gpt-1t", 128, 25600, 160),
    )
}


def model_of(name: str) -> Model:
    """The model of a name.  Raises: UsageError, naming those there are."""
    if name not in MODELS:
        raise UsageError(f"no model {name!r}; there are {', '.join(MODELS)}")
    return MODELS[name]
