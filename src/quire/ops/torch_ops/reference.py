"""Every operation in plain torch: the oracle that other providers are tested against.

Batch invariance. A row's result has to be the same bits whatever else is in the batch, however a
prompt is cut into chunks and whatever the block size. Torch's own functions do not promise
that: its matrix products sum in another order at other numbers of rows, and its fused
activations round the last few elements of a buffer by another formula. So here

- a matrix product always has one of a few fixed shapes: rows go through it in tiles of
  `LINEAR_ROWS` (`linear`) or `QUERY_ROWS` (attention), padded with zeros, and keys in tiles of
  `KEY_COLUMNS` that begin at multiples of it in the sequence;
- activations are composed of functions that round every element alike (`exp`, `tanh`, `erf`)
  and of IEEE arithmetic.

What remains assumed is that a product of a given shape treats its rows alike; tests/unit/ops
measures that, and the other assumptions, on the machine at hand. Results may still differ
between machines and numbers of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.core.dtypes import DType
from quire.core.quantized import QuantizedWeight, Weights, parts_of
from quire.ops.metadata import Heads, KVCache
from quire.ops.torch_ops import int4
from quire.ops.torch_ops.activations import activation
from quire.ops.torch_ops.arrays import tensor, torch_dtype
from quire.ops.weights import Epilogue, LinearWeight

LINEAR_ROWS = 32
"""Fewer make long prompts slow, more make single tokens slow: at 1024 × 3072 in float32, two
threads, 512 rows take twice the time of one call, one row the time of 32."""


def add(x: Tensor, y: Tensor) -> Tensor:
    """Return x + y, rounded to their dtype."""
    return x + y


class DenseWeight(NamedTuple):
    """A linear layer's parameters as the checkpoint has them: [out, in], and [out] or None.

    `experts`: how many have their rows in it, one after the other.
    """

    weight: Tensor
    bias: Tensor | None
    epilogue: Epilogue
    experts: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.weight.shape
        return rows, columns

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


def dense_weight(packed: LinearWeight) -> DenseWeight:
    """Return a weight of this provider. Raises TypeError for another provider's."""
    if not isinstance(packed, DenseWeight):
        raise TypeError(f"torch has no product with a {type(packed).__name__}")
    return packed


def rows_of(table: Tensor | LinearWeight) -> Tensor:
    """Return the rows of an embedding's table, which `pack_linear` may have made."""
    return table if isinstance(table, Tensor) else dense_weight(table).weight


def pack_linear(
    weight: Weights,
    bias: Tensor | None = None,
    *,
    epilogue: Epilogue = "none",
    dtype: torch.dtype = torch.float32,
    experts: int = 1,
    device: torch.device | None = None,
) -> DenseWeight:
    """See `Ops.pack_linear`. Raises ValueError if the experts cannot have as many rows each."""
    tensors = [
        tensor(part.dequantize()).to(dtype).to(device)
        if isinstance(part, QuantizedWeight)
        else tensor(part).to(device)
        for part in parts_of(weight)
    ]
    whole = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    if len(whole) % experts:
        raise ValueError(f"{len(whole)} rows are not those of {experts} experts")
    return DenseWeight(whole, bias, epilogue, experts)


def embedding(ids: Tensor, table: Tensor | LinearWeight) -> Tensor:
    """Return rows `ids` (int64 [T]) of `table` [rows, hidden] as [T, hidden].

    The table may be what `pack_linear` made of it: a tied embedding is stored once, as lm_head.
    """
    return F.embedding(ids, rows_of(table))


def linear(x: Tensor, packed: LinearWeight, dtype: DType | None = None) -> Tensor:
    """Return epilogue(x @ weight.T + bias), of `dtype` or x's: [T, in] × [out, in] → [T, out].

    With a gated epilogue the result is [T, out / 2]. The product goes tile by tile (see the
    module). The bits are those of the product followed by the operation that the epilogue names.
    """
    weight = dense_weight(packed)
    product = _product(x, weight.weight, weight.bias)
    y = product if weight.epilogue == "none" else activation(product, weight.epilogue)
    return y if dtype is None else y.to(torch_dtype(dtype))


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.shape[0]
    if rows == 0:
        return x.new_empty(0, weight.shape[0])
    if rows % LINEAR_ROWS:
        padded = x.new_zeros(-(-rows // LINEAR_ROWS) * LINEAR_ROWS, x.shape[1])
        padded[:rows] = x
    else:
        padded = x.contiguous()
    tiles = [F.linear(tile, weight, bias) for tile in padded.split(LINEAR_ROWS)]
    return (tiles[0] if len(tiles) == 1 else torch.cat(tiles))[:rows]


def logits(x: Tensor, packed: LinearWeight) -> Tensor:
    """Return `linear` as float32: [N, hidden] × [vocab, hidden] → [N, vocab]."""
    return linear(x, packed).float()


def all_reduce(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum of all ranks' x, float32 [T, hidden], rounded to `dtype`; here, with one rank,
    x itself."""
    return x.to(dtype)


def vocab_embedding(ids: Tensor, table: Tensor | LinearWeight, first: int, vocab: int) -> Tensor:
    """Return `embedding` from a table of `vocab` rows that is split among ranks.

    This rank's `table` begins with row `first`. Here, with one rank, it has all rows.
    """
    return embedding(ids, table)


def all_gather(x: Tensor, first: int, width: int) -> Tensor:
    """Return [N, width] from the ranks' x, float32 [N, some]: this rank's columns begin at `first`;
    here, with one rank, x itself."""
    return x


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) · weight over the last dimension, in float32.

    Zhang and Sennrich 2019, with the roundings of Hugging Face's Llama: to the weight's dtype, then
    to x's. So with a float32 weight there is one rounding, at the end, as in its Gemma.
    """
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (weight * scaled.to(weight.dtype)).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(x + residual), x + residual); the sum is rounded to the dtype."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the layer norm (Ba et al. 2016) over the last dimension, computed in float32."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return (layer_norm(x + residual), x + residual); the sum is rounded to the dtype."""
    total = x + residual
    return layer_norm(total, weight, bias, eps), total


def rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate q [T, heads, D] and k [T, kv_heads, D] by their positions (RoPE, Su et al. 2021).

    Element i of a head turns together with element i + rotary_dim / 2 (the "NeoX" order);
    elements from rotary_dim on pass through. `cos_sin` is float32 [max_len, rotary_dim]: cosines,
    then sines, each half as wide; `positions` int64 [T] picks its rows. Computed in float32.
    """
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    a, b, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)
    a, b = a.float(), b.float()
    turned = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat([*(t.to(x.dtype) for t in turned), rest], dim=-1)


def write_kv(k: Tensor, v: Tensor | None, cache: KVCache[Tensor], slot_mapping: Tensor) -> None:
    """Store k and v [T, kv_heads, D] of each token in its slot (int64 [T]) of the cache.

    A cache of latents has no v.
    """
    block_size = cache.k.shape[2]
    block, offset = slot_mapping // block_size, slot_mapping % block_size
    if cache.packed and v is not None:
        own = int4.pack(k, keys=True), int4.pack(v, keys=False)
        for to, heads in zip(int4.parts(cache), own, strict=True):
            for stored, part in zip(to, heads, strict=True):
                if stored is not None and part is not None:
                    stored[block, :, offset] = part
        return
    for x, cached, scale, unit in (
        (k, cache.k, cache.k_scale, cache.k_unit),
        (v, cache.v, cache.v_scale, cache.v_unit),
    ):
        if x is None or cached is None:
            continue
        if scale is not None:
            q, s = quantize_heads(x, cached.dtype)
            _bits(cached)[block, :, offset], scale[block, :, offset] = _bits(q), s
        elif cached.dtype in _FLOAT8:
            _bits(cached)[block, :, offset] = _bits(to_float8(x.float() / unit, cached.dtype))
        else:
            cached[block, :, offset] = x.to(cached.dtype)


_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _bits(t: Tensor) -> Tensor:
    """Return 8-bit floats as bytes, because torch indexes only these."""
    return t.view(torch.uint8) if t.dtype in _FLOAT8 else t


def to_float8(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x rounded to nearest even and clamped to the finite range; NaN stays."""
    most = torch.finfo(dtype).max
    return x.clamp(-most, most).to(dtype)


def quantize_heads(x: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """Return heads [..., D] as a cache with scales stores them: q = round(x / scale), ties to even.

    Returns:
        q [..., D] of `dtype` (int8, float8_e4m3fn, float8_e5m2), and the scale bfloat16 [...],
        max|x| over the dtype's largest (127 of integers), so that x ≈ q · scale. It is rounded up,
        so that no q passes that. Where an x is not finite, neither is the scale.
    """
    wide = x.float()
    most = torch.finfo(dtype).max if dtype.is_floating_point else 127.0
    exact = wide.abs().amax(-1, keepdim=True) / wide.new_full((), most)
    scale = exact.bfloat16()
    scale = torch.where(scale < exact, torch.nextafter(scale, scale.new_full((), torch.inf)), scale)
    if dtype != torch.int8:
        divisor = torch.where(scale == 0, 1.0, scale.float())
        return to_float8(wide / divisor, dtype), scale.squeeze(-1)
    q = (wide / scale.float()).round().nan_to_num(0.0, 0.0, 0.0)
    return q.to(torch.int8), scale.squeeze(-1)


def rope_kv_write(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    cache: KVCache[Tensor],
    slot_mapping: Tensor,
    heads: Heads[Tensor],
) -> Tensor:
    """Normalize and rotate q and k, and store k and v; return q for attention.

    Splits qkv [T, (heads.q + 2 · heads.kv) · heads.width] into q, k and v, normalizes them, turns
    q and k by `cos_sin` (see `rotary`) if given, stores k and v, and returns q [T, heads.q,
    heads.width]. May change qkv. A gate as wide as q may follow v.
    """
    q_heads, kv_heads, width, q_norm, k_norm, v_norm, eps = heads
    rows = qkv.view(qkv.shape[0], -1, width)
    rows = rows[:, : q_heads + 2 * kv_heads]  # a gate may follow
    parts: tuple[Tensor, Tensor, Tensor] = rows.split((q_heads, kv_heads, kv_heads), dim=1)
    q, k, v = parts
    if q_norm is not None:
        q = rms_norm(q.reshape(len(q), -1, len(q_norm)), q_norm, eps).view(q.shape)
    if k_norm is not None and kv_heads:
        k = rms_norm(k.reshape(len(k), -1, len(k_norm)), k_norm, eps).view(k.shape)
    if v_norm is not None:
        v = rms_norm(v, v_norm, eps)
    if cos_sin is not None:
        q, k = rotary(q, k, positions, cos_sin)
    if kv_heads:
        write_kv(k, v, cache, slot_mapping)
    return q


def scale(x: Tensor, factor: float) -> Tensor:
    """Return x · factor, rounded once; the factor is float32."""
    return x * factor


def softcap(x: Tensor, cap: float) -> Tensor:
    """Return cap · tanh(x / cap)."""
    return torch.tanh(x / cap) * cap


def xielu(x: Tensor, positive: float, negative: float, linear: float) -> Tensor:
    """Return linear · x + positive · x², or where x < 0 + negative · (exp(x) - 1 - x); in float32,
    rounded once."""
    wide = x.float()
    below = wide.clamp(max=0.0)
    bent = positive * wide.clamp(min=0.0).square() + negative * (torch.expm1(below) - below)
    return (linear * wide + bent).to(x.dtype)
