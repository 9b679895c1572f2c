"""How much cheaper than NCCL's own call a plan must be, to be taken for its price alone.

Nobody is to be slower by plans than without, by more than 5 %.  Prices are not that sure: the model's times
of NCCL's published figures are off by factors from 0.5 to 1.3 (docs/cost-model.md).  Were the two prices that
are compared wrong by the worst of these, each in the worse direction, a plan that is `margin` times cheaper
than NCCL's own call would still be at most 5 % slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

FLAT = "flat"
SLOWER = 1.05  # by no more may a plan be slower than NCCL's own call
# Up to so many bytes: the worst that a predicted time is, as a part of the published one and as a multiple.
OFF = ((1 << 20, 0.73, 1.32), (128 << 20, 0.50, 1.02), (inf, 0.85, 1.07))


def margin(nbytes: int) -> float:
    """So many times cheaper than NCCL's own call a plan must be."""
    # Between the sizes of the figures both neighbours count.
    beside = [worst for worst in OFF if nbytes <= 2 * worst[0]][:1] + [w for w in OFF if nbytes <= w[0]][:1]
    return max(most / least for _, least, most in beside) / SLOWER


def clearly_cheaper(times_s: Mapping[str, float], nbytes: int) -> tuple[str, str]:
    """The plan to take by its price, and why.  `times_s`: by name, of all that can do a call, flat too."""
    if len(times_s) == 1:
        return FLAT, "NCCL's own call, which is all there is for one node, or with one rank on each"
    best = min(times_s, key=lambda name: (times_s[name], name != FLAT))
    if best == FLAT:
        return FLAT, "NCCL's own call, which has the lowest predicted time"
    clear = margin(nbytes)
    times = times_s[FLAT] / times_s[best] if times_s[best] else 1.0
    if times >= clear:
        return best, f"predicted {times:.2f} times as fast as NCCL's own call; {clear:.2f} is enough"
    unsure = f"{best} is predicted {times:.2f} times as fast, and below {clear:.2f} that is not sure"
    return FLAT, f"NCCL's own call: {unsure}"
