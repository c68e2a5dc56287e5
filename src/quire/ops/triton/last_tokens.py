"""Launches that choose tokens and keep them on the device; see `ops.last_tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.core.sampling_params import SamplingParams
from quire.ops.last_tokens import Chosen
from quire.ops.sample_row import SampleRow
from quire.ops.torch_ops.last_tokens import TorchLastTokens
from quire.ops.triton import sampling
from quire.ops.triton.kernels import sampling as kernels
from quire.ops.triton.launch import overlap

FILLED = 256
"""Ids that a program fills."""
GREEDY = SamplingParams(temperature=0.0)


class TritonLastTokens(TorchLastTokens):
    """The likeliest and drawn tokens."""

    draws = True

    def fill(self, ids: Any) -> None:
        grid = (-(-len(ids) // FILLED),)
        kernels.fill[grid](ids, self._tokens, len(ids), block=FILLED, **overlap(ids.device))

    def choose(self, logits: Any, slots: Any, drawn: Sequence[SampleRow]) -> Chosen:
        rows, given = len(logits), None
        if drawn:
            known = {row.row: row for row in drawn}
            everyone = [known.get(row) or SampleRow(row, GREEDY) for row in range(rows)]
            sent: Any = self._device.stage(sampling.parameters(everyone)).send()
            given = sent[0], sent[1]
        passes, kept = sampling.passes_for(drawn), (slots, self._tokens)
        return self.send(sampling.choose(logits, logits, rows, given, passes, kept))
