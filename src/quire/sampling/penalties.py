"""Repetition, presence and frequency penalties, from counts that grow with the output."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.sampling_params import SamplingParams
from quire.ops.sample_row import LogitEdits
from quire.sampling.masks import TokenRow


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
        ids, counts = np.unique(output, return_counts=True)
        if params.repetition_penalty != 1.0:
            only_prompt = np.setdiff1d(prompt, output)
            ids = np.concatenate([ids, only_prompt])
            counts = np.concatenate([counts, np.zeros(len(only_prompt), dtype=counts.dtype)])
        self._size = len(ids)
        self._ids: NDArray[np.int64] = np.zeros(_capacity(self._size), dtype=np.int64)
        self._counts: NDArray[np.float32] = np.zeros(len(self._ids), dtype=np.float32)
        self._ids[: self._size] = ids
        self._counts[: self._size] = counts
        self._index = {token: i for i, token in enumerate(ids.tolist())}

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
            at = self._index.setdefault(token, self._size)
            if at == self._size:
                if at == len(self._ids):
                    room = _capacity(at + 1) - at
                    self._ids = np.pad(self._ids, (0, room))
                    self._counts = np.pad(self._counts, (0, room))
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


def _capacity(size: int) -> int:
    """Return room for twice `size` entries, so that growth is rare."""
    return max(64, 2 * size)
