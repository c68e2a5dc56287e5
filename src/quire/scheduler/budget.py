"""Chooses how many prompt tokens a step computes, so that decoding is not slowed too much.

Decoding reads all weights for a few tokens, so a few prompt tokens in the same step cost almost
nothing. Many of them delay all requests. `StepBudget` limits the predicted time of a step to
`max_itl_stretch` times that of the same step without prompts. If more prompts wait than sequences
decode, the limit grows in that proportion, but a client's prompts do not slow another's streams so.
Prompts with images do not count: one takes as long as many others. Streams that go on after a
preemption, or after another engine, need no fast first token: four of them count as one. A cost
model predicts; measured steps correct it.

Other programs may slow the machine while prompts are computed in every step. Then decoding alone
has to be measured again, or prompts would get what is left of an outdated limit: almost nothing, or
far too much.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from quire.core.batch import Column
from quire.core.cost import StepCost

MEMORY = 16
"""Steps in the running average of each size."""
STALE = 500
"""Steps after which a size without measurements counts as new. One slow step may have been enough
to avoid it."""
OUTLIER = 2.0
"""Limit of measured over predicted time, and of the inverse: a busy neighbour must not look like a
slow machine."""
PATIENT = 4
"""Streams that go on for each that decodes, before the limit grows: their loss must not slow all
others."""
CHANGE = 1.25
"""Steps with prompts that have become so much slower or faster make older measurements doubtful."""
SOON, LATE = 8, 64
"""Steps with prompts before one without: after a change, and else."""
SHARED_SECONDS, SHARED_TIMES = 0.5, 20
"""Limits of a step that computes prompts only, if another client may come: in seconds, and in times
of the smallest step. Each step reads all weights, so shorter ones would cost throughput."""
TRIALS = 4
"""Measured steps of a size before the next power of two is tried once, if it is new: no prediction
can replace a measurement there. One slow step is no reason to avoid it for `STALE` steps, so it is
tried again: the fewer measurements it has, the sooner."""


class StepBudget:
    """Chooses the number of tokens of each step, from its arguments and past steps only.

    Args:
        cost: predicts a step's seconds; only proportions matter, the scale is learned.
        max_tokens: the most tokens of a step, also while no request decodes.
        max_itl_stretch: limit of a step's time, relative to the step without prompts.
    """

    def __init__(self, cost: StepCost, *, max_tokens: int, max_itl_stretch: float) -> None:
        self.max_tokens = max_tokens
        self._cost = cost
        self._stretch = max_itl_stretch
        self._decode = Scales()
        self._mixed = Scales()
        self._mixed_steps = 0
        """Measured since the last step without prompts."""
        self._asked = False
        """A step without prompts was scheduled to measure decoding."""
        self._change = 0.0
        """Logarithm: by how much steps have become slower than decoding was when last measured."""

    def tokens(
        self,
        wanted: Column,
        computed: Column,
        waiting: int = 0,
        pictured: int = 0,
        *,
        resumed: int = 0,
        most_crowd: float = math.inf,
        rivals: Collection[int] = (),
        reads: bool = False,
    ) -> int:
        """Return the token budget of the next step; now and then, one for decoding alone.

        Args:
            wanted: tokens that each running request has to compute; 1 means it decodes.
            computed: computed tokens of each.
            waiting: further requests that may be admitted.
            pictured: how many of the running prompts have images.
            resumed: of the other prompts, running and waiting, those that have had output before.
            most_crowd: the most that waiting prompts may raise the limit.
            rivals: prompt tokens of each client that has any, if there are several clients.
            reads: the step reads an image, too. Without texts, half of the time is for that.
        """
        decoding = wanted == 1
        num_decodes = int(np.count_nonzero(decoding))
        prompts = np.flatnonzero(wanted > 1)
        behind = int(computed[prompts[0]]) if len(prompts) else 0
        if num_decodes == 0:
            return self._shared(len(prompts), behind, rivals) if rivals else self.max_tokens
        if self._mixed_steps >= (SOON if self._has_changed else LATE) and not reads:
            self._mixed_steps, self._asked = 0, True
            return num_decodes
        context = int(computed[decoding].sum()) + num_decodes
        texts = len(prompts) - pictured
        crowd = max((texts + waiting - resumed) / num_decodes, resumed / PATIENT / num_decodes)
        stretch = max(1.0, min(crowd, most_crowd)) * self._stretch
        if reads and texts + waiting == 0:
            stretch = (stretch + 1.0) / 2
        limit = stretch * self.decode_seconds(num_decodes, context)
        # Each text gets at least one token, so none starves; of images the first does. One more,
        # or the step would be measured as one that only decodes, never as mixed again.
        least = max(1, texts + (pictured > 0)) + 1
        total = num_decodes + self._largest(least, limit, num_decodes, context, behind)
        if self._mixed.count(total) >= TRIALS:
            larger = 1 << total.bit_length()
            if self._mixed.is_new(larger):
                total = larger
        return min(self.max_tokens, total)

    def _shared(self, num_prompts: int, behind: int, rivals: Collection[int]) -> int:
        """Return the tokens of a step that computes prompts only, if there are several clients.

        The shortest prompt takes little longer than if all were as short.
        """
        limit = min(SHARED_SECONDS, SHARED_TIMES * self.mixed_seconds(0, 0, 1, behind))
        if len(rivals) > 1:
            short = self.mixed_seconds(0, 0, len(rivals) * min(rivals), behind)
            limit = min(limit, self._stretch * short)
        return min(self.max_tokens, self._largest(num_prompts + 1, limit, 0, 0, behind))

    def _largest(self, least: int, limit: float, num_seqs: int, context: int, behind: int) -> int:
        """Return the largest chunk, of at least `least` tokens, within `limit` seconds."""
        fits, fails = least, self.max_tokens
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if self.mixed_seconds(num_seqs, context, middle, behind) <= limit:
                fits = middle
            else:
                fails = middle
        return fits

    def observe(self, scheduled: Column, computed: Column, seconds: float) -> None:
        """Learn from a step.

        Args:
            scheduled: tokens of each of its sequences.
            computed: tokens of each that were computed before.
            seconds: the executor's time; 0 means unknown.
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
        ratio = seconds / predicted
        if scales is self._mixed:
            known, before = scales.count(total) > 0, scales.at(total)
            after = scales.observe(total, ratio)
            self._mixed_steps += 1
            self._change += math.log(after / before) if known and before else 0.0
            return
        if self._asked and self._has_changed:
            self._decode.doubt()
            self._mixed.doubt()
        self._mixed_steps, self._asked = 0, False
        self._change = math.log(ratio / scales.observe(total, ratio))

    @property
    def _has_changed(self) -> bool:
        return abs(self._change) > math.log(CHANGE)

    def decode_seconds(self, num_seqs: int, context: int) -> float:
        """Return the predicted time of a step in which `num_seqs` sequences decode."""
        scale = self._decode.at(num_seqs) or self._mixed.at(num_seqs) or 1.0
        return scale * self._cost.seconds(num_seqs, num_seqs, context, context)

    def seconds_left(self, scheduled: Column, computed: Column) -> float:
        """Return by how much such a step may take longer, to read an image.

        Beside prompts that take all of it, it is a quarter more, so that no image starves.

        Args:
            scheduled: tokens that each of its sequences computes; 1 means it decodes.
            computed: computed tokens of each.
        """
        decoding = scheduled == 1
        num_decodes = max(1, int(np.count_nonzero(decoding)))
        context = int(computed[decoding].sum()) + num_decodes
        alone = self.decode_seconds(num_decodes, context)
        if not (prompts := np.flatnonzero(scheduled > 1)).size:
            return (self._stretch - 1.0) * alone
        chunk, behind = int(scheduled[prompts].sum()), int(computed[prompts[0]])
        mixed = self.mixed_seconds(num_decodes, context, chunk, behind)
        return max((self._stretch - 1.0) / 4 * alone, self._stretch * alone - mixed)

    def mixed_seconds(self, num_seqs: int, context: int, chunk: int, behind: int) -> float:
        """Return the same with `chunk` tokens of a prompt that has `behind` computed tokens."""
        attended = context + chunk * behind + chunk * (chunk + 1) // 2
        total = num_seqs + chunk
        scale = self._mixed.at(total) or self._decode.at(num_seqs) or 1.0
        return scale * self._cost.seconds(total, num_seqs + 1, context + behind + chunk, attended)


class Scales:
    """Running averages of measured over predicted time, one per power of two of tokens.

    Args:
        stale: steps after which a size without measurements counts as new.
    """

    def __init__(self, stale: int = STALE) -> None:
        self._stale = stale
        self._scale: dict[int, float] = {}
        self._count: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._steps = 0

    def at(self, num_tokens: int) -> float | None:
        """Return the scale of the nearest measured size (of two, the smaller); None if none."""
        if not self._scale:
            return None
        size = num_tokens.bit_length()
        if size not in self._scale:
            size = min(self._scale, key=lambda seen: (abs(seen - size), seen))
        return self._scale[size]

    def count(self, num_tokens: int) -> int:
        """Return how many recent steps had about this size, up to `MEMORY`."""
        size = num_tokens.bit_length()
        stale = self._steps - self._seen.get(size, 0) > self._stale
        return 0 if stale else self._count.get(size, 0)

    def is_new(self, num_tokens: int) -> bool:
        """Return whether this size has had too few measurements for the steps since the last."""
        size = num_tokens.bit_length()
        since = self._steps - self._seen.get(size, 0)
        return since * MEMORY > self._stale * self._count.get(size, 0)

    def doubt(self) -> None:
        """Let the average of each size count as little as one step."""
        self._count = dict.fromkeys(self._count, 1)

    def observe(self, num_tokens: int, ratio: float) -> float:
        """Add a step's measured over predicted time; return the new average of its size."""
        size = num_tokens.bit_length()
        known = self.at(num_tokens) or ratio
        ratio = min(max(ratio, known / OUTLIER), known * OUTLIER)
        count = self._count[size] = min(self.count(num_tokens) + 1, MEMORY)
        self._scale[size] = known + (ratio - known) / count
        self._steps += 1
        self._seen[size] = self._steps
        return self._scale[size]
