"""Random weights, to run a model's shape without its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quire.core.dtypes import FLOAT32, DType, HostArray, converted, dtype_of
from quire.core.model_config import ModelConfig
from quire.core.quantization import Form
from quire.core.quantized import QuantizedWeight
from quire.models.layout import parameters
from quire.models.parameters import Parameter, Progress
from quire.quant.codebooks import CODEBOOKS

_STD = 0.02
"""Hugging Face's usual `initializer_range`; norms keep the activations finite."""
_FACTORS = (".factor", ".factors")
"""Ends of names of what results are multiplied by: zeros would leave nothing of them."""
_POOL = 1_000_003
"""How many numbers are drawn. It is a prime, so that rows differ although weights repeat them."""


class RandomParameters:
    """Parameters that are the same for the same seed and dtype: a `ParameterSource`.

    Norms and factors are 1, biases 0, other parameters normal with a deviation of 0.02. Drawing
    billions of normal numbers takes minutes. So a pool of a million is drawn, and weights are views
    of it, as many rows at a time as it holds. No row may be longer than the pool.

    Linear weights that have `forms` (see `models.forms`) are uniformly random codes, with scales
    that give them the same deviation. `wanted` are other parameters than those of the model.
    """

    def __init__(
        self,
        model: ModelConfig,
        dtype: DType,
        seed: int,
        progress: Progress | None = None,
        forms: Mapping[str, Sequence[Form | None]] | None = None,
        wanted: Sequence[Parameter] | None = None,
    ) -> None:
        wanted = parameters(model) if wanted is None else wanted
        self.dtype = dtype
        self._forms = forms or {}
        draw = np.random.default_rng(seed)
        # Twice in a row, so that all of it can be read from any offset.
        numbers = draw.standard_normal(_POOL, np.float32) * np.float32(_STD)
        self._pool = np.tile(converted(numbers, dtype), 2)
        offsets = draw.integers(_POOL, size=len(wanted)).tolist()
        self._bytes = np.tile(draw.integers(256, size=_POOL, dtype=np.uint8), 2)
        self._wanted = {p.name: (p, offset) for p, offset in zip(wanted, offsets, strict=True)}
        self._progress = progress
        self._done = 0
        self._total = sum(parameter.numel for parameter in wanted) * dtype.itemsize

    def has(self, name: str) -> bool:
        return name in self._wanted

    def parts(self, name: str) -> list[HostArray] | list[QuantizedWeight]:
        parameter, offset = self._wanted[name]
        forms = self._forms.get(name, ())
        if not forms or None in forms:
            return self._dense(name)
        self._count(parameter)
        rows = parameter.parts if len(forms) > 1 or parameter.experts else (parameter.shape[0],)
        columns, parts = parameter.shape[1], []
        for form, count in zip([*forms] * (len(rows) // len(forms)), rows, strict=True):
            assert form is not None
            codes = self._random_bytes(offset, count * columns).reshape(count, columns)
            parts.append(_random_weight(form, codes))
            offset = (offset + count * columns) % _POOL
        return parts

    def _count(self, parameter: Parameter) -> None:
        self._done += parameter.numel * self._pool.itemsize
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _dense(self, name: str) -> list[HostArray]:
        parameter, offset = self._wanted[name]
        self._count(parameter)
        if parameter.kind == "exact" and len(parameter.shape) > 1:
            return [converted(view, FLOAT32) for view in self._views(parameter, offset)]
        if parameter.kind in ("bias", "exact"):
            dtype = self.dtype if parameter.kind == "bias" else FLOAT32
            return [np.full(parameter.shape, parameter.name.endswith(_FACTORS), dtype)]
        if parameter.kind == "norm":
            return [np.ones(parameter.shape, self.dtype)]
        return self._views(parameter, offset)

    def tensor(self, name: str) -> HostArray:
        return np.concatenate(self._dense(name))

    def _random_bytes(self, offset: int, count: int) -> HostArray:
        """Return `count` of the pool's bytes, repeated without end, from `offset` on."""
        out = np.empty(count, np.uint8)
        for begin in range(0, count, _POOL):
            some = min(_POOL, count - begin)
            out[begin : begin + some] = self._bytes[offset : offset + some]
        return out

    def _views(self, parameter: Parameter, offset: int) -> list[HostArray]:
        """Return rows of the pool's numbers, repeated without end, from `offset` on."""
        rows, columns = parameter.shape[0], parameter.numel // parameter.shape[0]
        most = _POOL // columns
        views = []
        for row in range(0, rows, most):
            start, count = (offset + row * columns) % _POOL, min(most, rows - row)
            view = self._pool[start : start + count * columns]
            views.append(view.reshape(count, *parameter.shape[1:]))
        return views


def _random_weight(form: Form, codes: HostArray) -> QuantizedWeight:
    """Return a weight of random bytes [N, K], which are written to."""
    n, k = codes.shape
    book = np.array(CODEBOOKS[form.codebook], np.float32) if form.codebook else None
    values = _codes(form, codes)
    spread = converted(values.reshape(-1)[:_POOL], FLOAT32) if book is None else book
    groups = (n, -(-k // form.group))
    scale = np.full(groups, _STD / float(spread.std()), np.float32)
    middle = np.full(groups, 1 << (form.bits - 1), np.float32)
    around = middle + (np.arange(groups[1]) % 3 - 1).astype(np.float32)
    mean = np.float32(((1 << form.bits) - 1) / 2)
    return QuantizedWeight(
        values,
        form.bits,
        scale,
        form.group,
        zero={"middle": middle, "zero": around}.get(form.second),
        offset=-mean * scale if form.second == "offset" else None,
        codebook=book,
        # Groups of columns that are far apart: neighbours belong to different ones.
        permutation=np.arange(k).reshape(form.group, -1).T.flatten()
        if form.permuted and k % form.group == 0
        else None,
        float_activations=form.float_activations,
    )


def _codes(form: Form, raw: HostArray) -> HostArray:
    if form.codes == "uint8":
        return np.bitwise_and(raw, (1 << form.bits) - 1, out=raw)
    if form.codes == "int8":
        codes = raw.view(np.int8)
        return np.maximum(codes, -((1 << (form.bits - 1)) - 1), out=codes)
    # Of 8-bit floats those below 2: neither infinite nor NaN.
    return np.bitwise_and(raw, 0xBF, out=raw).view(dtype_of(form.codes))
