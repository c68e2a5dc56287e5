"""Random weights, to run a model's shape without its files."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quire.core.config import ModelConfig
from quire.models.parameters import Parameter, parameters

_STD = 0.02
"""Hugging Face's usual `initializer_range`; norms keep the activations finite."""
_POOL = 1_000_003
"""Numbers drawn, a prime: weights repeat them, but rows do not fall in step with one another."""


def random_tensors(
    config: ModelConfig,
    dtype: torch.dtype,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """The decoder's parameters by name, the same for the same seed and dtype.

    Norms are 1, biases 0, all else normal with a deviation of 0.02. Drawing billions of normal
    numbers takes minutes, so a pool of a million is drawn and copied, at memory speed.
    """
    wanted = parameters(config)
    total = sum(parameter.numel for parameter in wanted) * dtype.itemsize
    generator = torch.Generator().manual_seed(seed)
    pool = (torch.randn(_POOL, generator=generator) * _STD).to(dtype).repeat(2)
    offsets = torch.randint(_POOL, (len(wanted),), generator=generator).tolist()
    tensors, done = {}, 0
    for parameter, offset in zip(wanted, offsets, strict=True):
        tensor = torch.empty(parameter.shape, dtype=dtype)
        _fill(tensor, parameter, pool, offset)
        tensors[parameter.name] = tensor
        done += tensor.nbytes
        if progress is not None:
            progress(done, total)
    return tensors


def _fill(tensor: Tensor, parameter: Parameter, pool: Tensor, offset: int) -> None:
    """`pool` lies twice in a row, so that all of it can be read from any offset."""
    if parameter.name.endswith(".bias"):
        tensor.zero_()
    elif parameter.name.endswith("norm.weight"):
        tensor.fill_(1.0)
    else:
        flat, row = tensor.view(-1), pool[offset : offset + _POOL]
        whole = flat.numel() // _POOL * _POOL
        flat[:whole].view(-1, _POOL).copy_(row)
        flat[whole:] = row[: flat.numel() - whole]
