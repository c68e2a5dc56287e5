"""Decides whether to copy keys and values or to compute them again, from predicted times."""

from __future__ import annotations

from quire.core.batch import BlockCopies, ModelOutput
from quire.core.cost import StepCost

MEMORY = 16
"""Steps in the running average."""
OUTLIER = 2.0
"""Limit of measured over predicted time, and of the inverse. First touches of memory and busy disks
take longer than usual."""
LEAST = 1e-3
"""Least predicted seconds of copies that are measured: shorter ones measure the overhead."""
STALE = 50
"""Decisions against copying after which the measurements are dropped: without copies there are no
new ones."""


class TierCost:
    """Compares the time of copies with that of computation.

    Args:
        cost: predicts both; `observe` corrects the predictions of copies.
        state_tokens: tokens whose keys and values take as many bytes as a state.
    """

    def __init__(self, cost: StepCost, block_size: int, state_tokens: int) -> None:
        self._cost = cost
        self._block_size = block_size
        self._state_tokens = state_tokens
        self._memory = _Scale()
        self._files = _Scale()

    def observe_step(self, copies: BlockCopies | None, result: ModelOutput) -> None:
        """Learn from what a step copied and read."""
        if copies is not None:
            self.observe(copies, result.copy_seconds)
        self.observe_reads(*result.reads)

    def observe(self, copies: BlockCopies, seconds: float) -> None:
        """Learn from the seconds of a step's copies; 0 means unknown."""
        count = _count(copies)
        if copies.states is not None:
            count += self._state_tokens / self._block_size * _count(copies.states)
        block = self._cost.copy_seconds(self._block_size)
        if seconds > 0.0 and count * block >= LEAST:
            self._memory.observe(seconds / (count * block))

    def observe_reads(self, blocks: float, seconds: float) -> None:
        """Learn from the seconds of reading so many blocks from files in the background."""
        predicted = blocks * self._cost.copy_seconds(self._block_size)
        if predicted >= LEAST:
            self._files.observe(seconds / predicted)

    def copy_seconds(self, num_tokens: int, from_files: int = 0) -> float:
        """Return the predicted time of copying tokens one way, `from_files` of them from disk."""
        memory = self._memory.value * self._cost.copy_seconds(num_tokens - from_files)
        return memory + self._files.value * self._cost.copy_seconds(from_files)

    def swap_pays(self, num_tokens: int) -> bool:
        """Return whether copying tokens to the host and back is faster than computing them."""
        again = self._cost.seconds(num_tokens, 1, num_tokens, num_tokens * (num_tokens + 1) // 2)
        return self._decided(2 * self.copy_seconds(num_tokens) < again)

    def load_pays(
        self,
        num_tokens: int,
        num_saved: int,
        num_loaded: int,
        from_files: int = 0,
        *,
        with_state: bool = False,
    ) -> bool:
        """Return whether loading tokens is faster than computing them.

        Args:
            num_tokens: tokens that are present after the loads.
            num_saved: the last of these, which need not be computed then.
            num_loaded: tokens to load; less than `num_saved` with a sliding window.
            from_files: how many of them are on disk.
            with_state: a state is loaded, too.
        """
        num_loaded += with_state * self._state_tokens
        attended = num_saved * num_tokens - num_saved * (num_saved - 1) // 2
        again = self._cost.seconds(num_saved, 1, num_tokens, attended)
        return self._decided(self.copy_seconds(num_loaded, from_files) < again)

    def _decided(self, copying: bool) -> bool:
        for scale in (self._memory, self._files):
            scale.age(used=copying)
        return copying


def _count(copies: BlockCopies) -> float:
    """Return the number of copies that end in their step."""
    return len(copies.saves) + len(copies.stores) + sum(load.slot >= 0 for load in copies.loads)


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
        """Count a decision; forget the average after `STALE` decisions against copying."""
        self._age = 0 if used else self._age + 1
        if self._age >= STALE:
            self.value, self._count, self._age = 1.0, 0, 0
