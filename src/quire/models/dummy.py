"""Random weights, to run a model's shape without its files."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.core.config import ModelConfig
from quire.models.parameters import Parameter, Progress, parameters

_STD = 0.02
"""Hugging Face's usual `initializer_range`; norms keep the activations finite."""
_POOL = 1_000_003
"""Numbers drawn, a prime: weights repeat them, but rows do not fall in step with one another."""


class RandomParameters:
    """Parameters that are the same for the same seed and dtype: a `ParameterSource`.

    Norms are 1, biases 0, all else normal with a deviation of 0.02. Drawing billions of normal
    numbers takes minutes, so a pool of a million is drawn, and weights are views of it: as many
    rows at a time as it holds. No row may be longer than the pool.
    """

    def __init__(
        self, model: ModelConfig, dtype: torch.dtype, seed: int, progress: Progress | None = None
    ) -> None:
        wanted = parameters(model)
        generator = torch.Generator().manual_seed(seed)
        # Twice in a row, so that all of it can be read from any offset.
        self._pool = (torch.randn(_POOL, generator=generator) * _STD).to(dtype).repeat(2)
        offsets = torch.randint(_POOL, (len(wanted),), generator=generator).tolist()
        self._wanted = {p.name: (p, offset) for p, offset in zip(wanted, offsets, strict=True)}
        self._progress = progress
        self._done = 0
        self._total = sum(parameter.numel for parameter in wanted) * dtype.itemsize

    def has(self, name: str) -> bool:
        return name in self._wanted

    def parts(self, name: str) -> list[Tensor]:
        parameter, offset = self._wanted[name]
        self._done += parameter.numel * self._pool.itemsize
        if self._progress is not None:
            self._progress(self._done, self._total)
        if name.endswith(".bias"):
            return [self._pool.new_zeros(parameter.shape)]
        if name.endswith("norm.weight"):
            return [self._pool.new_ones(parameter.shape)]
        return self._views(parameter, offset)

    def tensor(self, name: str) -> Tensor:
        return torch.cat(self.parts(name))

    def _views(self, parameter: Parameter, offset: int) -> list[Tensor]:
        """Rows of the pool's numbers repeated for ever, from `offset` on."""
        rows, columns = parameter.shape
        most = _POOL // columns
        views = []
        for row in range(0, rows, most):
            start, count = (offset + row * columns) % _POOL, min(most, rows - row)
            views.append(self._pool[start : start + count * columns].view(count, columns))
        return views
