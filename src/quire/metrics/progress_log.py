"""The log's line about the engine's progress."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from quire.core.messages import SpecDecodingStats

if TYPE_CHECKING:
    from quire.metrics.stats import EngineStats

logger = logging.getLogger(__name__)

LOG_INTERVAL = 10.0
"""Seconds between two lines, while there is work."""


class ProgressLog:
    """Logs one line every `LOG_INTERVAL`, from the counters' change since the last line."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._prompt_tokens = self._generation_tokens = 0
        self._seconds: dict[str, float] = {}
        self._speculation: SpecDecodingStats | None = None

    def restart(self) -> None:
        """Begin again: the core was lost, and the next one counts from zero."""
        self._start = self._speculation = None

    def on_step(self, stats: EngineStats, now: float) -> None:
        """Log a line if it is time; a pause restarts the interval.

        Args:
            stats: after the step; its `last_step` is still the end of the step before.
        """
        paused = now - stats.last_step > LOG_INTERVAL
        if self._start is not None and not paused:
            if now - self._start < LOG_INTERVAL:
                return
            self._write(stats, now - self._start)
        self._start = now
        self._speculation = stats.scheduler.spec_decoding if stats.scheduler else None
        self._prompt_tokens = stats.prompt_tokens
        self._generation_tokens = stats.generation_tokens
        self._seconds = stats.seconds()

    def _write(self, stats: EngineStats, elapsed: float) -> None:
        s = stats.scheduler
        logger.info(
            "prompt %.1f tok/s, generation %.1f tok/s, running %d, waiting %d, "
            "KV cache %.1f%%, prefix hits %.1f%%, %s",
            (stats.prompt_tokens - self._prompt_tokens) / elapsed,
            (stats.generation_tokens - self._generation_tokens) / elapsed,
            s.num_running if s else 0,
            s.num_waiting if s else 0,
            100 * stats.kv_cache_usage,
            100 * stats.prefix_hit_rate,
            self._shares(stats, elapsed),
        )
        if s and s.spec_decoding:
            line = _speculation_line(s.spec_decoding, self._speculation, elapsed)
            if line is not None:
                logger.info(line)

    def _shares(self, stats: EngineStats, elapsed: float) -> str:
        """Return the model's share of the time since the last line, and the largest other share."""
        spent = {k: v - self._seconds.get(k, 0.0) for k, v in stats.seconds().items()}
        model = spent.pop("model")
        del spent["queue"]  # all waiting requests add up in it
        largest = max(spent, key=lambda name: spent[name])
        return f"model {model / elapsed:.0%}, {largest} {_share(spent[largest] / elapsed)}"


def _share(part: float) -> str:
    """Return a share of the time; above 1, as for several tokenizers, in cores."""
    return f"{part:.0%}" if part <= 1 else f"{part:.1f} cores"


def _speculation_line(
    now: SpecDecodingStats, before: SpecDecodingStats | None, seconds: float
) -> str | None:
    """Return the log's line about the time between two states; None if nothing was drafted."""
    positions = now.num_accepted_tokens_per_pos
    before = before or SpecDecodingStats(0, 0, 0, [0] * len(positions))
    passes = now.num_drafts - before.num_drafts
    drafted = now.num_draft_tokens - before.num_draft_tokens
    accepted = now.num_accepted_tokens - before.num_accepted_tokens
    if passes <= 0:
        return None
    rates = ", ".join(
        f"{(new - old) / passes:.3f}"
        for new, old in zip(positions, before.num_accepted_tokens_per_pos, strict=True)
    )
    return (
        f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / passes:.2f}, "
        f"Accepted throughput: {accepted / seconds:.2f} tokens/s, "
        f"Drafted throughput: {drafted / seconds:.2f} tokens/s, "
        f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
        f"Per-position acceptance rate: {rates}, "
        f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%"
    )
