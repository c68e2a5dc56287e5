"""Whether keys and values are copied or computed again: predicted, from copies that were timed."""

from __future__ import annotations

from quire.core.batch import ON_DISK, BlockCopies
from quire.core.cost import StepCost

MEMORY = 16
"""Steps over which what was seen is averaged."""
OUTLIER = 2.0
"""Copies that took so many times their prediction, or the inverse, count as having taken just that:
memory that is touched for the first time takes longer, and so does a disk that is busy."""
LEAST = 1e-3
"""Seconds, predicted, from which copies are learned from: less tells of calls, not of copying."""
STALE = 50
"""Decisions against copying after which what was learned is forgotten: without copies nothing would
tell that they have become faster."""


class TierCost:
    """Weighs copies against computation.

    Args:
        cost: predicts both; how long copies really take is learned from what `observe` is told.
    """

    def __init__(self, cost: StepCost, block_size: int) -> None:
        self._cost = cost
        self._block_size = block_size
        self._memory = _Scale()
        self._files = _Scale()

    def observe(self, copies: BlockCopies, seconds: float) -> None:
        """Learn from a step's copies, which took so long together; 0 is not known."""
        from_files = sum(load.slot == ON_DISK for load in copies.loads)
        others = len(copies.spills) + len(copies.stores) + len(copies.loads) - from_files
        block = self._cost.copy_seconds(self._block_size)
        if seconds <= 0.0 or (from_files or others) * block < LEAST:
            return
        if from_files:
            rest = max(0.0, seconds - others * self._memory.value * block)
            self._files.observe(rest / (from_files * block))
        else:
            self._memory.observe(seconds / (others * block))

    def copy_seconds(self, num_tokens: int, from_files: int = 0) -> float:
        """Predicted time of copying so many tokens one way, some of them out of files."""
        memory = self._memory.value * self._cost.copy_seconds(num_tokens - from_files)
        return memory + self._files.value * self._cost.copy_seconds(from_files)

    def swap_pays(self, num_tokens: int) -> bool:
        """Whether copying the keys and values of so many tokens to the host and back is faster
        than computing them again."""
        again = self._cost.seconds(num_tokens, 1, num_tokens, num_tokens * (num_tokens + 1) // 2)
        return self._decided(2 * self.copy_seconds(num_tokens) < again)

    def load_pays(
        self, num_tokens: int, num_saved: int, num_loaded: int, from_files: int = 0
    ) -> bool:
        """Whether loading `num_loaded` tokens, some of them out of files, is faster than computing
        the last `num_saved` of the first `num_tokens` tokens. (Of those that no window reaches
        any more, nothing has to be loaded.)"""
        attended = num_saved * num_tokens - num_saved * (num_saved - 1) // 2
        again = self._cost.seconds(num_saved, 1, num_tokens, attended)
        return self._decided(self.copy_seconds(num_loaded, from_files) < again)

    def _decided(self, copying: bool) -> bool:
        for scale in (self._memory, self._files):
            scale.age(used=copying)
        return copying


class _Scale:
    """Measured over predicted time, a running average."""

    def __init__(self) -> None:
        self.value = 1.0
        self._count = 0
        self._age = 0

    def observe(self, ratio: float) -> None:
        if self._count:
            ratio = min(max(ratio, self.value / OUTLIER), self.value * OUTLIER)
        self._count = min(self._count + 1, MEMORY)
        self.value += (ratio - self.value) / self._count
        self._age = 0

    def age(self, *, used: bool) -> None:
        """A decision was taken that may have relied on this."""
        self._age = 0 if used else self._age + 1
        if self._age >= STALE:
            self.value, self._count, self._age = 1.0, 0, 0
