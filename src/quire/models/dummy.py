"""Random weights, to run a model's shape without its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from quire.core.config import ModelConfig
from quire.core.quantization import Form
from quire.models.layout import parameters
from quire.models.parameters import Parameter, Progress
from quire.ops.quantized import QuantizedWeight
from quire.quant.codebooks import CODEBOOKS

_STD = 0.02
"""Hugging Face's usual `initializer_range`; norms keep the activations finite."""
_POOL = 1_000_003
"""Numbers drawn, a prime: weights repeat them, but rows do not fall in step with one another."""


class RandomParameters:
    """Parameters that are the same for the same seed and dtype: a `ParameterSource`.

    Norms are 1, biases 0, all else normal with a deviation of 0.02. Drawing billions of normal
    numbers takes minutes, so a pool of a million is drawn, and weights are views of it: as many
    rows at a time as it holds. No row may be longer than the pool.

    Linear weights that have `forms` (see `models.forms`) are random codes, equally often each,
    with scales that give them the same deviation.
    """

    def __init__(
        self,
        model: ModelConfig,
        dtype: torch.dtype,
        seed: int,
        progress: Progress | None = None,
        forms: Mapping[str, Sequence[Form | None]] | None = None,
    ) -> None:
        wanted = parameters(model)
        self.dtype = dtype
        self._forms = forms or {}
        generator = torch.Generator().manual_seed(seed)
        # Twice in a row, so that all of it can be read from any offset.
        self._pool = (torch.randn(_POOL, generator=generator) * _STD).to(dtype).repeat(2)
        offsets = torch.randint(_POOL, (len(wanted),), generator=generator).tolist()
        self._bytes = torch.randint(256, (_POOL,), dtype=torch.uint8, generator=generator).repeat(2)
        self._wanted = {p.name: (p, offset) for p, offset in zip(wanted, offsets, strict=True)}
        self._progress = progress
        self._done = 0
        self._total = sum(parameter.numel for parameter in wanted) * dtype.itemsize

    def has(self, name: str) -> bool:
        return name in self._wanted

    def parts(self, name: str) -> list[Tensor] | list[QuantizedWeight]:
        parameter, offset = self._wanted[name]
        forms = self._forms.get(name, ())
        if not forms or None in forms:
            return self._dense(name)
        self._count(parameter)
        rows = parameter.parts if len(forms) > 1 else (parameter.shape[0],)
        columns, parts = parameter.shape[1], []
        for form, count in zip(forms, rows, strict=True):
            assert form is not None
            codes = self._repeated(self._bytes, offset, count * columns).view(count, columns)
            parts.append(_random_weight(form, codes))
            offset = (offset + count * columns) % _POOL
        return parts

    def _count(self, parameter: Parameter) -> None:
        self._done += parameter.numel * self._pool.itemsize
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _dense(self, name: str) -> list[Tensor]:
        parameter, offset = self._wanted[name]
        self._count(parameter)
        if parameter.kind == "bias":
            return [self._pool.new_zeros(parameter.shape)]
        if parameter.kind == "norm":
            return [self._pool.new_ones(parameter.shape)]
        return self._views(parameter, offset)

    def tensor(self, name: str) -> Tensor:
        return torch.cat(self._dense(name))

    def _repeated(self, pool: Tensor, offset: int, count: int) -> Tensor:
        """`count` entries of the pool repeated for ever, from `offset` on."""
        out = torch.empty(count, dtype=pool.dtype)
        for begin in range(0, count, _POOL):
            some = min(_POOL, count - begin)
            out[begin : begin + some] = pool[offset : offset + some]
        return out

    def _views(self, parameter: Parameter, offset: int) -> list[Tensor]:
        """Rows of the pool's numbers repeated for ever, from `offset` on."""
        rows, columns = parameter.shape
        most = _POOL // columns
        views = []
        for row in range(0, rows, most):
            start, count = (offset + row * columns) % _POOL, min(most, rows - row)
            views.append(self._pool[start : start + count * columns].view(count, columns))
        return views


def _random_weight(form: Form, codes: Tensor) -> QuantizedWeight:
    """A weight of random bytes [N, K], which are written to."""
    n, k = codes.shape
    book = torch.tensor(CODEBOOKS[form.codebook]) if form.codebook else None
    values = _codes(form, codes)
    spread = values.flatten()[:_POOL].to(torch.float32) if book is None else book
    groups = (n, -(-k // form.group))
    scale = torch.full(groups, _STD / float(spread.std()))
    middle = torch.full(groups, float(1 << (form.bits - 1)))
    mean = ((1 << form.bits) - 1) / 2
    return QuantizedWeight(
        values,
        form.bits,
        scale,
        form.group,
        zero={"middle": middle, "zero": middle + torch.arange(groups[1]) % 3 - 1}.get(form.second),
        offset=-mean * scale if form.second == "offset" else None,
        codebook=book,
        # Groups of columns that are far apart: neighbours belong to different ones.
        permutation=torch.arange(k).view(form.group, -1).t().flatten()
        if form.permuted and k % form.group == 0
        else None,
        float_activations=form.float_activations,
    )


def _codes(form: Form, raw: Tensor) -> Tensor:
    if form.codes == "uint8":
        return raw.bitwise_and_((1 << form.bits) - 1)
    if form.codes == "int8":
        return raw.view(torch.int8).clamp_(-((1 << (form.bits - 1)) - 1))
    # Of 8-bit floats those below 2: neither infinite nor no number.
    return raw.bitwise_and_(0xBF).view(getattr(torch, form.codes))
