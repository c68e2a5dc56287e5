"""Repetition, presence and frequency penalties, from counts that grow with the output."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quire.core.sampling_params import SamplingParams
from quire.ops.sample_row import LogitEdits
from quire.sampling.masks import TokenRow

LEAST_ROOM = 64
"""Further tokens that a new sequence has room for."""
BEYOND = 2**31
"""Above any token."""


class Penalties:
    """The token counts of one sequence, for its penalties.

    It stores distinct tokens only. A step costs O(distinct tokens), a new token O(1), independent
    of the vocabulary and the context.

    Args:
        prompt: int32 [p]; counts for the repetition penalty only.
        output: int32 [n]; counts for all three.

    Attributes:
        num_output_tokens: how many output tokens were counted.
    """

    def __init__(self, params: SamplingParams, prompt: TokenRow, output: TokenRow) -> None:
        self._params = params
        self.num_output_tokens = len(output)
        counted = prompt if params.repetition_penalty != 1.0 else prompt[:0]
        self._prompt = _distinct(counted.astype(np.int32).tobytes())
        ids, counts = np.unique(output, return_counts=True)
        at = np.searchsorted(self._prompt, ids)
        new = self._prompt[at] != ids
        num_prompt, others = len(self._prompt) - 1, ids[new]
        self._size = num_prompt + len(others)
        self._ids: NDArray[np.int64] = np.zeros(self._size + LEAST_ROOM, dtype=np.int64)
        self._ids[: self._size] = np.concatenate([self._prompt[:-1], others])
        self._counts: NDArray[np.float32] = np.zeros(len(self._ids), dtype=np.float32)
        self._counts[at[~new]] = counts[~new]
        self._counts[num_prompt : self._size] = counts[new]
        self._others = {token: i for i, token in enumerate(others.tolist(), num_prompt)}

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        return (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )

    def count(self, output: TokenRow) -> None:
        """Count the new tokens of the output [n]."""
        new = output[self.num_output_tokens :].tolist()
        self.num_output_tokens = len(output)
        for token in new:
            at = int(self._prompt.searchsorted(token))
            if self._prompt[at] != token:
                at = self._others.setdefault(token, self._size)
            if at == self._size:
                if at == len(self._ids):  # twice as much, so that growth is rare
                    self._ids = np.pad(self._ids, (0, at))
                    self._counts = np.pad(self._counts, (0, at))
                self._ids[at] = token
                self._size += 1
            self._counts[at] += 1

    def add_to(self, edits: LogitEdits, drafts: TokenRow) -> None:
        """Add the counts of the output and of `drafts` [k], without storing those of the drafts.

        Without drafts, a later `count` may change the added counts in place.
        """
        edits.counted, edits.counts = self._ids[: self._size], self._counts[: self._size]
        if len(drafts):
            drafted, numbers = np.unique(drafts, return_counts=True)
            known = np.isin(edits.counted, drafted)
            edits.counts = edits.counts.copy()
            edits.counts[known] += numbers[np.searchsorted(drafted, edits.counted[known])]
            new = np.isin(drafted, edits.counted, invert=True)
            edits.counted = np.concatenate([edits.counted, drafted[new]])
            edits.counts = np.concatenate([edits.counts, numbers[new].astype(np.float32)])
        edits.repetition = self._params.repetition_penalty
        edits.frequency = self._params.frequency_penalty
        edits.presence = self._params.presence_penalty


@lru_cache(maxsize=4)
def _distinct(prompt: bytes) -> NDArray[np.int64]:
    """Return the distinct tokens of a prompt, int32, in order, and `BEYOND`. The n completions of a
    request share them, because making them takes milliseconds."""
    return np.append(np.unique(np.frombuffer(prompt, dtype=np.int32)), BEYOND).astype(np.int64)
