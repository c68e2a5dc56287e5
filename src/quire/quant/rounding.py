"""Round dense weights to nearest, in the formats of `quant.names`.

Scales are rounded to their stored dtype before codes are chosen. A row's result depends only on the
row itself, except in formats with blocks of rows, and for NVFP4's scale per tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from quire.core.dtypes import FLOAT8_E4M3, Floats, HostArray, dtype_of, finfo
from quire.core.quantization import Form
from quire.core.quantized import QuantizedWeight
from quire.quant.bits import float8
from quire.quant.chunks import for_chunks
from quire.quant.codebooks import CODEBOOKS, buckets

_CHUNK = 1 << 18
"""Weights per chunk, so that its arrays stay in a core's cache."""
_TINY = 1e-30
"""Smaller than any scale; prevents a division by zero in groups of zeros."""

Rounded = tuple[HostArray, Floats, Floats | None]
"""Codes [R, G, group], scales [R, G], and zero points or offsets [R, G]."""


def to_integers(weight: HostArray, form: Form) -> QuantizedWeight:
    """Return codes of `form.bits`: signed and symmetric if it has no `second`, else from 0 on."""
    round_ = _signed if not form.second else _offset if form.second == "offset" else _with_zero
    return _by_rows(weight, form, partial(round_, form))


def to_float8(weight: HostArray, form: Form, block_rows: int) -> QuantizedWeight:
    """Return 8-bit floats; the largest of a group in `block_rows` rows becomes the format's."""
    dtype = dtype_of(form.codes)
    most = float(finfo(dtype).max)

    def round_(x: Floats) -> Rounded:
        blocks = np.maximum.reduceat(_largest(x), np.arange(0, len(x), block_rows)) / most
        scale = np.repeat(blocks, block_rows, axis=0)[: len(x)]
        return float8(np.clip(_ratio(x, scale), -most, most), dtype), scale, None

    return _by_rows(weight, form, round_, block_rows)


def to_codebook(weight: HostArray, form: Form, scale_type: str) -> QuantizedWeight:
    """Return the codebook's entry that is nearest after scaling; `scale_type` as in
    `names.CodebookRounder`."""
    book = np.array(CODEBOOKS[form.codebook], np.float32)
    order = np.argsort(book, kind="stable").astype(np.uint8)
    ascending = book[order].astype(np.float64)
    between = ((ascending[1:] + ascending[:-1]) / 2).astype(np.float32)
    most = float(np.abs(book).max())
    whole = _largest_of(weight) / (most * 448) if scale_type == "e4m3" else 1.0

    def round_(x: Floats) -> Rounded:
        scale = _largest(x)
        if scale_type == "e8m0":
            # Exponent of the largest magnitude minus that of the codebook's (OCP MX 1.0, 6.3).
            exponent = np.clip(np.frexp(scale)[1] - 1 - 2, -127, 127)
            scale = np.ldexp(np.float32(1), exponent)
        elif scale_type == "e4m3":
            scale = np.minimum(scale / (most * max(whole, _TINY)), 448)
            scale = scale.astype(FLOAT8_E4M3).astype(np.float32) * whole
        else:
            scale = scale / most
        return order[buckets(_ratio(x, scale), between)], scale, None

    found = _by_rows(weight, form, round_, codebook=book)
    factor = np.full(len(found.codes), whole, np.float32)
    return replace(found, factor=factor) if scale_type == "e4m3" else found


def _signed(form: Form, x: Floats) -> Rounded:
    most = (1 << (form.bits - 1)) - 1
    scale = _largest(x) / most
    return _whole(_ratio(x, scale), -most, most).astype(np.int8), scale, None


def _offset(form: Form, x: Floats) -> Rounded:
    most, low, high = (1 << form.bits) - 1, x.min(2), x.max(2)
    offset, scale = _half(low), _half((high - low) / most)
    x -= offset[:, :, np.newaxis]
    return _whole(_ratio(x, scale), 0, most).astype(np.uint8), scale, offset


def _with_zero(form: Form, x: Floats) -> Rounded:
    most, low, high = (1 << form.bits) - 1, np.minimum(x.min(2), 0), np.maximum(x.max(2), 0)
    if form.second == "middle":
        scale = _half(2 * np.maximum(high, -low) / most)
        zero = np.full_like(scale, (most + 1) / 2)
    else:
        scale = _half((high - low) / most)
        zero = _whole(-low / np.maximum(scale, _TINY), 0, most)
    codes = np.rint(_ratio(x, scale), out=x)
    codes += zero[:, :, np.newaxis]
    return np.clip(codes, 0, most).astype(np.uint8), scale, zero


def _by_rows(
    weight: HostArray,
    form: Form,
    round_: Callable[[Floats], Rounded],
    block_rows: int = 1,
    codebook: Floats | None = None,
) -> QuantizedWeight:
    """Round chunks of whole row blocks; `round_` may overwrite its argument [R, G, group]."""
    n, k = weight.shape
    codes = np.empty((n, k), dtype_of(form.codes))
    scale = np.empty((n, -(-k // form.group)), np.float32)
    second = np.empty_like(scale) if form.second else None

    def chunk(rows: slice) -> None:
        x = _groups(weight[rows].astype(np.float32), form.group)
        if not np.isfinite(x).all():
            raise ValueError("a weight is not finite and cannot be rounded")
        with np.errstate(all="ignore"):  # float16 may not hold a scale
            found, scale[rows], numbers = round_(x)
        codes[rows] = found.reshape(len(x), -1)[:, :k]
        if second is not None:
            second[rows] = numbers

    for_chunks(n, max(1, _CHUNK // k // block_rows) * block_rows, chunk)
    return QuantizedWeight(
        codes,
        form.bits,
        scale,
        form.group,
        zero=second if form.second in ("zero", "middle") else None,
        offset=second if form.second == "offset" else None,
        codebook=codebook,
        float_activations=form.float_activations,
    )


def _groups(x: Floats, group: int) -> Floats:
    """Return [R, G, group] from [R, K]; the last group is padded with the row's last weight."""
    if missing := -x.shape[1] % group:
        x = np.concatenate([x, np.repeat(x[:, -1:], missing, axis=1)], axis=1)
    return x.reshape(len(x), -1, group)


def _largest(x: Floats) -> Floats:
    """Return the largest magnitudes [R, G] of [R, G, group]."""
    largest: Floats = np.maximum(x.max(2), -x.min(2))
    return largest


def _largest_of(weight: HostArray) -> float:
    """Return the largest magnitude of all weights, some rows at a time."""
    rows = max(1, _CHUNK // weight.shape[1])
    parts = (weight[first : first + rows] for first in range(0, len(weight), rows))
    return max((float(np.abs(part.astype(np.float32)).max()) for part in parts), default=0.0)


def _ratio(x: Floats, scale: Floats) -> Floats:
    """Divide each group by its scale, in place."""
    x /= np.maximum(scale, _TINY)[:, :, np.newaxis]
    return x


def _whole(x: Floats, low: int, high: int) -> Floats:
    """Round to whole numbers in low … high, in place."""
    np.rint(x, out=x)
    np.clip(x, low, high, out=x)
    return x


def _half(x: Floats) -> Floats:
    """Round to float16, in which the formats store it, and back."""
    return x.astype(np.float16).astype(np.float32)
