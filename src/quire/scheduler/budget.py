"""How much of the prompts a step computes, so that those who decode beside them keep their pace.

Decoding reads all weights for a few tokens, so a few tokens of a prompt ride along for next to
nothing; many make everybody wait. `StepBudget` gives a step as many as keep its predicted time
within `max_itl_stretch` times that of the same step without them, and where more prompts wait than
sequences decode, so many times as long as there are more of them. The prediction is a cost model's,
corrected by the steps that were seen.
"""

from __future__ import annotations

import numpy as np

from quire.core.batch import Column
from quire.core.cost import StepCost

MEMORY = 16
"""Steps of a size over which what was seen is averaged."""
STALE = 500
"""Steps after which a size that was not seen counts as new: it may have been avoided since because
it once looked slow."""
OUTLIER = 2.0
"""A step that took so many times its prediction, or the inverse, counts as having taken just that:
a busy neighbour must not be mistaken for a slow machine."""


TRIALS = 4
"""Steps of a size to see before the next size, a power of two of tokens, is tried for once if it is
new: what lies there no prediction can tell."""


class StepBudget:
    """Chooses the number of tokens of each step; depends on nothing but what it is told.

    Args:
        cost: predicts a step's seconds; proportions matter, the scale is learned.
        max_tokens: of a step, also while nobody decodes.
        max_itl_stretch: how many times as long as without prompts a step may take.
    """

    def __init__(self, cost: StepCost, *, max_tokens: int, max_itl_stretch: float) -> None:
        self.max_tokens = max_tokens
        self._cost = cost
        self._stretch = max_itl_stretch
        self._decode = _Scales()
        self._mixed = _Scales()

    def tokens(self, wanted: Column, computed: Column, waiting: int = 0) -> int:
        """The most tokens that the next step may hold.

        Args:
            wanted: tokens that each running request has to compute; 1 is one that decodes.
            computed: tokens of each that are computed.
            waiting: requests beside them that may begin.
        """
        decoding = wanted == 1
        num_decodes = int(np.count_nonzero(decoding))
        if num_decodes == 0:
            return self.max_tokens
        context = int(computed[decoding].sum()) + num_decodes
        prompts = np.flatnonzero(wanted > 1)
        behind = int(computed[prompts[0]]) if len(prompts) else 0
        crowd = max(1.0, (len(prompts) + waiting) / num_decodes)
        limit = crowd * self._stretch * self.decode_seconds(num_decodes, context)
        # Bisection. A token is always given, and one of each prompt: they never starve.
        fits, fails = max(1, len(prompts)), self.max_tokens
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if self.mixed_seconds(num_decodes, context, middle, behind) <= limit:
                fits = middle
            else:
                fails = middle
        total = num_decodes + fits
        if self._mixed.count(total) >= TRIALS:
            larger = 1 << total.bit_length()
            if not self._mixed.count(larger):
                total = larger
        return min(self.max_tokens, total)

    def observe(self, scheduled: Column, computed: Column, seconds: float) -> None:
        """Learn from a step.

        Args:
            scheduled: tokens of each of its sequences.
            computed: tokens of each that had been computed before.
            seconds: what it took the executor; 0 is not known.
        """
        if seconds <= 0.0 or len(scheduled) == 0:
            return
        total = int(scheduled.sum())
        context = total + int(computed.sum())
        attended, scales = context, self._decode
        if total > len(scheduled):
            attended = int((scheduled * computed + scheduled * (scheduled + 1) // 2).sum())
            scales = self._mixed
        predicted = self._cost.seconds(total, len(scheduled), context, attended)
        scales.observe(total, seconds / predicted)

    def decode_seconds(self, num_seqs: int, context: int) -> float:
        """Predicted time of a step in which so many sequences decode."""
        scale = self._decode.at(num_seqs) or self._mixed.at(num_seqs) or 1.0
        return scale * self._cost.seconds(num_seqs, num_seqs, context, context)

    def mixed_seconds(self, num_seqs: int, context: int, chunk: int, behind: int) -> float:
        """The same with `chunk` tokens of a prompt, of which `behind` tokens are computed."""
        attended = context + chunk * behind + chunk * (chunk + 1) // 2
        total = num_seqs + chunk
        scale = self._mixed.at(total) or self._decode.at(num_seqs) or 1.0
        return scale * self._cost.seconds(total, num_seqs + 1, context + behind + chunk, attended)


class _Scales:
    """Measured over predicted time, averaged for each power of two of tokens."""

    def __init__(self) -> None:
        self._scale: dict[int, float] = {}
        self._count: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._steps = 0

    def at(self, num_tokens: int) -> float | None:
        """The scale of the seen size nearest to this one, the smaller one of two; None if none."""
        if not self._scale:
            return None
        size = num_tokens.bit_length()
        if size not in self._scale:
            size = min(self._scale, key=lambda seen: (abs(seen - size), seen))
        return self._scale[size]

    def count(self, num_tokens: int) -> int:
        """How many steps of about this size were seen of late, up to `MEMORY`."""
        size = num_tokens.bit_length()
        stale = self._steps - self._seen.get(size, 0) > STALE
        return 0 if stale else self._count.get(size, 0)

    def observe(self, num_tokens: int, ratio: float) -> None:
        """Enter what a step of so many tokens took, over its prediction."""
        size = num_tokens.bit_length()
        known = self.at(num_tokens) or ratio
        ratio = min(max(ratio, known / OUTLIER), known * OUTLIER)
        count = self._count[size] = min(self.count(num_tokens) + 1, MEMORY)
        self._scale[size] = known + (ratio - known) / count
        self._steps += 1
        self._seen[size] = self._steps
