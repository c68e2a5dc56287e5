"""Last tokens in torch's memory; see `ops.last_tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quire.ops.device import Event
from quire.ops.filters import FloatRow
from quire.ops.last_tokens import Chosen
from quire.ops.sample_row import SampleRow, TokenIds
from quire.ops.torch_ops.devices import TorchAccelerator


class TorchLastTokens:
    """The likeliest tokens, by plain torch."""

    draws = False

    def __init__(self, device: TorchAccelerator, slots: int) -> None:
        self._device = device
        self._tokens = torch.zeros(slots, dtype=torch.int64, device=device.torch)
        self._landings: list[Tensor] = []

    def fill(self, ids: Any) -> None:
        ids.copy_(torch.where(ids < 0, self._tokens[(~ids).clamp(min=0)], ids))

    def choose(self, logits: Any, slots: Any, drawn: Sequence[SampleRow]) -> Chosen:
        peaks, tokens = logits.max(dim=-1)  # passes NaN on; a token of such a row is any
        self._tokens[slots] = tokens
        return self.send(torch.stack([tokens.to(peaks.dtype), peaks]))

    def send(self, results: Tensor) -> Chosen:
        """Queue the copy of tokens and largest logits, floats [2, rows], to the host.

        float32 holds both exactly: no vocabulary has 2**24 tokens.
        """
        most = 16 * len(self._tokens)
        landing = self._landings.pop() if self._landings else self._device.pinned(most)
        host = landing[: results.nbytes].view(results.dtype).view(results.shape)
        host.copy_(results, non_blocking=True)
        return _Landing(host, self._device.record(), landing, self._landings)


class _Landing(NamedTuple):
    """Results on their way to pinned memory, which goes back to `free` after that."""

    host: Tensor
    event: Event
    memory: Tensor
    free: list[Tensor]

    def read(self) -> tuple[TokenIds, FloatRow]:
        self.event.synchronize()
        tokens, peaks = self.host.numpy()
        found = tokens.astype(np.int64), peaks.astype(np.float32)
        self.free.append(self.memory)
        return found
