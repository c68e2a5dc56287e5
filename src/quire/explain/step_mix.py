"""What the steps of a window computed, by their sizes: rows of running sequences, and prompts."""

from __future__ import annotations

from quire.core.cost import RooflineCost, StepParts
from quire.explain.evidence import Window
from quire.system.records import dataclass

MIXED = 1.5
"""Tokens of a step, relative to its rows without prompts, from which it contains prompts."""


@dataclass(frozen=True, slots=True)
class Step:
    """`count` equal steps with so many prompts; for the other fields see `StepCost.seconds`."""

    count: int
    tokens: float
    seqs: float
    context_tokens: float
    attended: float
    prompts: float = 0.0

    def parts(self, cost: RooflineCost) -> StepParts:
        """Return the predicted times of one of the steps."""
        return cost.parts(
            max(1, round(self.tokens)),
            max(1, round(self.seqs)),
            max(round(self.tokens), round(self.context_tokens)),
            round(self.attended),
        )


class StepMix:
    """The steps of a window, and others of the same load.

    Attributes:
        steps: one per bucket of `Window.step_sizes`.
    """

    def __init__(self, window: Window, block_size: int) -> None:
        self._window = window
        self._block_size = block_size
        self.steps = [self.of_size(count, tokens) for tokens, count in window.step_sizes]

    @property
    def prompt_tokens(self) -> float:
        """Return the number of computed tokens that belong to prompts."""
        w = self._window
        return max(1.0, w.computed_tokens - (w.generation_tokens - w.requests))

    @property
    def own(self) -> float:
        """Return the mean number of computed tokens of a prompt, without cached ones."""
        return self.prompt_tokens / max(1, self._window.requests)

    @property
    def rows(self) -> float:
        """Return the mean number of a step's rows that belong to no prompt, with drafts."""
        w = self._window
        return max(1.0, w.running) * (1.0 + w.draft_tokens / max(1, w.drafted_passes))

    def of_size(self, count: int, tokens: float) -> Step:
        """Return steps of this size; those larger than the batch contain prompts."""
        if tokens <= MIXED * self.rows:
            return self.decoding(count, tokens)
        return self.with_prompts(count, tokens - self.rows, self.rows)

    def decoding(self, count: int, tokens: float) -> Step:
        """Return steps in which each row attends to the mean context."""
        seqs, context = min(max(1.0, self._window.running), tokens), self.context
        return Step(count, tokens, seqs, seqs * context, tokens * context)

    def with_prompts(self, count: int, tokens: float, rows: float) -> Step:
        """Return steps with so many tokens of prompts, and other rows."""
        w, beside = self._window, self.decoding(count, rows) if rows else Step(count, 0, 0, 0, 0)
        cached = w.cached_tokens / max(1, w.requests)
        prompts = max(1.0, tokens / self.own)
        each = tokens / prompts  # of a long prompt, its mean chunk
        context = cached + max(each, self.own)
        return Step(
            count,
            tokens + beside.tokens,
            prompts + beside.seqs,
            prompts * context + beside.context_tokens,
            tokens * (cached + self.own / 2) + beside.attended,
            tokens / self.own,
        )

    @property
    def context(self) -> float:
        """Return the mean number of tokens in the KV cache per running sequence."""
        w = self._window
        held = w.kv_share * w.kv_blocks * self._block_size
        return max(1.0, held / max(1.0, w.running))
