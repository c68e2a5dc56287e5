"""Launches that choose tokens and keep them on the device; see `ops.last_tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from quire.ops.last_tokens import Chosen
from quire.ops.sample_row import SampleRow
from quire.ops.torch_ops.last_tokens import TorchLastTokens
from quire.ops.triton import sampling
from quire.ops.triton.kernels import sampling as kernels
from quire.ops.triton.launch import overlap, power_of_two

FILLED = 256
"""Ids that a program fills."""


class TritonLastTokens(TorchLastTokens):
    """The likeliest and drawn tokens. A row is cut into parts, which have programs of their own."""

    draws = True

    def fill(self, ids: Any) -> None:
        grid = (-(-len(ids) // FILLED),)
        kernels.fill[grid](ids, self._tokens, len(ids), block=FILLED, **overlap(ids.device))

    def choose(self, logits: Any, slots: Any, drawn: Sequence[SampleRow]) -> Chosen:
        (rows, vocab), device = logits.shape, logits.device
        block = min(sampling.BLOCK, power_of_two(vocab))
        parts = -(-vocab // block)
        tops = torch.empty((rows, parts), dtype=torch.float32, device=device)
        places = torch.empty((rows, parts), dtype=torch.int32, device=device)
        kernels.peaks[(rows, parts)](
            logits, tops, places, vocab, logits.stride(0), block=block, num_warps=8,
            **overlap(device),
        )  # fmt: skip
        tokens = entries = slots
        if drawn:
            numbers = np.full(rows, -1, np.int64)
            numbers[[row.row for row in drawn]] = np.arange(len(drawn))
            sent: Any = self._device.stage([numbers, *sampling.parameters(drawn)]).send()
            entries, ints, floats = sent
            tokens = torch.empty(len(drawn), dtype=torch.int64, device=device)
            sampling.draw(logits, None, tokens, ints, floats)
        results = torch.empty((2, rows), dtype=torch.float64, device=device)
        kernels.settle[(rows,)](
            tops, places, tokens, entries, slots, self._tokens, results, parts,
            draws=bool(drawn), width=power_of_two(parts), num_warps=1, **overlap(device),
        )  # fmt: skip
        return self.send(results)
