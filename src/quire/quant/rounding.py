"""Rounding dense weights to nearest, in the formats that `quant.names` names.

Scales are rounded to what the format stores before codes are chosen with them. A row's result
depends on that row alone, but for blocks and for NVFP4's one scale a tensor.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.core.quantization import Form
from quire.ops.quantized import QuantizedWeight
from quire.quant.codebooks import CODEBOOKS

_CHUNK = 1 << 22
"""Weights rounded at once, so that what is computed on the way stays small."""
_TINY = 1e-30
"""Below any scale; a group of zeros is not divided by zero."""


def to_integers(weight: Tensor, form: Form) -> QuantizedWeight:
    """Codes of `form.bits`: signed and symmetric where it has no `second`, else from 0 on."""
    round_ = _signed if not form.second else _offset if form.second == "offset" else _with_zero
    codes, scales, seconds = [], [], []
    for part in _chunks(weight):
        code, scale, second = round_(_groups(part, form.group), form)
        codes.append(_rows(code, weight.shape[1]))
        scales.append(scale)
        seconds.append(second)
    both = torch.cat(seconds)
    return QuantizedWeight(
        torch.cat(codes),
        form.bits,
        torch.cat(scales),
        form.group,
        zero=both if form.second in ("zero", "middle") else None,
        offset=both if form.second == "offset" else None,
        float_activations=form.float_activations,
    )


Rounded = tuple[Tensor, Tensor, Tensor]
"""Codes [R, G, group], scales [R, G], and zero points or offsets [R, G]."""


def _signed(x: Tensor, form: Form) -> Rounded:
    most = (1 << (form.bits - 1)) - 1
    scale = x.abs().amax(2) / most
    code = _ratio(x, scale).round_().clamp_(-most, most)
    return code.to(torch.int8), scale, scale


def _offset(x: Tensor, form: Form) -> Rounded:
    most, low, high = (1 << form.bits) - 1, x.amin(2), x.amax(2)
    offset, scale = _half(low), _half((high - low) / most)
    code = _ratio(x - offset.unsqueeze(2), scale).round_().clamp_(0, most)
    return code.to(torch.uint8), scale, offset


def _with_zero(x: Tensor, form: Form) -> Rounded:
    most, low, high = (1 << form.bits) - 1, x.amin(2).clamp_(max=0), x.amax(2).clamp_(min=0)
    if form.second == "middle":
        high = torch.maximum(high, -low)
        scale = _half(2 * high / most)
        zero = torch.full_like(scale, (most + 1) / 2)
    else:
        scale = _half((high - low) / most)
        zero = (-low / scale.clamp(min=_TINY)).round_().clamp_(0, most)
    code = (_ratio(x, scale).round_() + zero.unsqueeze(2)).clamp_(0, most)
    return code.to(torch.uint8), scale, zero


def _half(x: Tensor) -> Tensor:
    """Rounded to float16, in which the formats store it."""
    return x.to(torch.float16).to(torch.float32)


def to_float8(weight: Tensor, form: Form, block_rows: int) -> QuantizedWeight:
    """8-bit floats whose largest is the largest of their group, in `block_rows` rows."""
    dtype: torch.dtype = getattr(torch, form.codes)
    most = torch.finfo(dtype).max
    codes, scales = [], []
    for part in _chunks(weight, block_rows):
        x = _groups(part, form.group)
        scale = x.abs().amax(2)
        padded = F.pad(scale, (0, 0, 0, -len(scale) % block_rows))
        blocks = padded.view(-1, block_rows, scale.shape[1]).amax(1) / most
        scale = blocks.repeat_interleave(block_rows, 0)[: len(scale)]
        code = _ratio(x, scale).clamp_(-most, most).to(dtype)
        codes.append(_rows(code.view(torch.uint8), weight.shape[1]))
        scales.append(scale)
    return QuantizedWeight(torch.cat(codes).view(dtype), 8, torch.cat(scales), form.group)


def to_codebook(weight: Tensor, form: Form, scale_type: str) -> QuantizedWeight:
    """The entry of the codebook that is nearest after scaling; `scale_type` as
    `names.CodebookRounder` has it."""
    book = torch.tensor(CODEBOOKS[form.codebook])
    order = book.argsort(stable=True)
    ascending = book[order]
    between = ((ascending[1:].double() + ascending[:-1].double()) / 2).float()
    most = float(book.abs().max())
    whole = _largest(weight) / (most * 448) if scale_type == "e4m3" else 1.0
    codes, scales = [], []
    for part in _chunks(weight):
        x = _groups(part, form.group)
        scale = x.abs().amax(2)
        if scale_type == "e8m0":
            # The exponent of the largest, less that of the codebook's largest (OCP MX 1.0, 6.3).
            exponent = torch.frexp(scale).exponent - 1 - 2
            scale = torch.ldexp(torch.ones_like(scale), exponent.clamp_(-127, 127))
        elif scale_type == "e4m3":
            scale = (scale / (most * max(whole, _TINY))).clamp_(max=448)
            scale = scale.to(torch.float8_e4m3fn).to(torch.float32) * whole
        else:
            scale = scale / most
        code = order[torch.bucketize(_ratio(x, scale), between)].to(torch.uint8)
        codes.append(_rows(code, weight.shape[1]))
        scales.append(scale)
    return QuantizedWeight(torch.cat(codes), 4, torch.cat(scales), form.group, codebook=book)


def _chunks(weight: Tensor, block_rows: int = 1) -> list[Tensor]:
    """Some rows at a time, whole blocks of them, as float32."""
    rows = max(1, _CHUNK // weight.shape[1] // block_rows) * block_rows
    return [_finite(part.to(torch.float32)) for part in weight.split(rows)]


def _finite(x: Tensor) -> Tensor:
    if not bool(torch.isfinite(x).all()):
        raise ValueError("a weight is not finite and cannot be rounded")
    return x


def _largest(weight: Tensor) -> float:
    return max((float(part.abs().max()) for part in _chunks(weight)), default=0.0)


def _groups(x: Tensor, group: int) -> Tensor:
    """[R, K] → [R, G, group], the last group filled up with the row's last weight."""
    missing = -x.shape[1] % group
    if missing:
        x = torch.cat([x, x[:, -1:].expand(-1, missing)], dim=1)
    return x.view(len(x), -1, group)


def _rows(codes: Tensor, columns: int) -> Tensor:
    return codes.reshape(len(codes), -1)[:, :columns].contiguous()


def _ratio(x: Tensor, scale: Tensor) -> Tensor:
    return x / scale.clamp(min=_TINY).unsqueeze(2)
