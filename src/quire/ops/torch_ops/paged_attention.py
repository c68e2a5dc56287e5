"""Attention over the paged cache, in plain torch.

A sequence is computed by itself, its rows in tiles of `QUERY_ROWS`, against its keys in tiles of
`KEY_COLUMNS` with a running softmax (Milakov and Gimelshein 2018; FlashAttention, Dao et al.
2022), so that memory does not grow with the square of the prompt:

```
             keys  0 … 127 │ 128 … 255 │ …            tiles begin at multiples of KEY_COLUMNS
rows  p … p+15   ─────────→ running maximum m, sum l, weighted values acc
```

A tile in which a row may attend to nothing leaves that row's m, l and acc as they were, to the
bit, and every product has one fixed shape a model. So a row's result is the same in every
batch, chunking and block size (see `reference`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache, Span
from quire.ops.torch_ops import int4

QUERY_ROWS = 16
"""Half as many save a decode step 6 % and cost a prompt 70 % (8 heads of 128, one thread)."""
KEY_COLUMNS = 128
"""A multiple of every block size."""


def paged_attention(
    q: Tensor,
    cache: KVCache[Tensor],
    meta: AttentionMetadata[Tensor],
    rules: AttentionRules[Tensor],
) -> Tensor:
    """Return the attention of each new token over its sequence's cached tokens, itself included.

    Args:
        q: [T, num_heads, head_dim]; head h reads kv head h // (num_heads / num_kv_heads).
        cache: holds the keys and values of this step's tokens too.

    Returns:
        [T, num_heads, head_dim] of q's dtype; scores, softmax and sums are float32.
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for number, (span, table) in enumerate(zip(meta.spans, meta.block_tables, strict=False)):
        sees_ahead = rules.whole and meta.whole is not None and bool(meta.whole[number])
        one_sequence(q, out, cache, span, table, rules, sees_ahead=sees_ahead)
    return out


class _Sight(NamedTuple):
    """Which tokens a row sees.

    Attributes:
        window: of earlier tokens, or the size of chunks; None is all.
        no_later: it sees no later token.
        ahead: the window of later tokens; None is all.
    """

    window: int | None
    chunked: bool
    no_later: bool
    ahead: int | None

    def first(self, position: Any) -> Any:
        """Return the first token that the one at `position` sees, perhaps below 0."""
        if self.window is None:
            return position * 0
        return position - (position % self.window if self.chunked else self.window - 1)


def one_sequence(
    q: Tensor,
    out: Tensor,
    cache: KVCache[Tensor],
    span: Span,
    table: Tensor,
    rules: AttentionRules[Tensor],
    *,
    sees_ahead: bool = False,
) -> None:
    """Fill rows [span.start, span.end) of `out`, whose heads are as wide as values.

    Args:
        sees_ahead: rows see all later tokens of the sequence, also in a causal model.
    """
    no_later = rules.causal and not sees_ahead
    sight = _Sight(rules.window, rules.chunked, no_later, None if sees_ahead else rules.window)
    sinks = rules.sinks
    first = span.seq_len - (span.end - span.start)
    keys = _KeyTiles(cache, table, out.shape[2])
    if sinks is not None:
        kv_heads = cache.k.shape[1]
        sinks = sinks.float().view(kv_heads, -1, 1).repeat_interleave(QUERY_ROWS, dim=1)
    for row in range(span.start, span.end, QUERY_ROWS):
        rows = min(QUERY_ROWS, span.end - row)
        position = first + row - span.start
        queries = q[row : row + rows]
        if cache.packed:
            queries = int4.rotate(queries)
        tile = _query_tile(queries, cache.k.shape[1], rules.scale)
        ahead = 0 if no_later else (sight.ahead or span.seq_len + 1) - 1
        end = min(position + rows + ahead, span.seq_len)
        attended = _rows_of(_attend(tile, keys, position, end, sight, rules.softcap, sinks), rows)
        out[row : row + rows] = int4.rotate(attended) if cache.packed else attended


def _query_tile(q: Tensor, kv_heads: int, scale: float) -> Tensor:
    """Return up to QUERY_ROWS rows, padded and scaled: [kv_heads, group · QUERY_ROWS, D]."""
    rows, heads, width = q.shape
    tile = torch.zeros(kv_heads, heads // kv_heads, QUERY_ROWS, width, device=q.device)
    tile[:, :, :rows] = q.view(rows, kv_heads, -1, width).permute(1, 2, 0, 3)
    return (tile * scale).view(kv_heads, -1, width)


def _rows_of(tile: Tensor, rows: int) -> Tensor:
    """Return [rows, heads, D] of `_query_tile`'s layout."""
    return tile.view(-1, QUERY_ROWS, tile.shape[-1])[:, :rows].transpose(0, 1)


def _attend(
    q: Tensor,
    keys: _KeyTiles,
    position: int,
    end: int,
    sight: _Sight,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Softmax-weighted values of a query tile whose first row is token `position`, over keys before
    `end`; `sinks` are those of its rows."""
    begin = max(0, sight.first(position))
    top = q.new_full((*q.shape[:2], 1), -torch.inf)
    total = torch.zeros_like(top)
    acc = q.new_zeros(*q.shape[:2], keys.value_width)
    for start in range(begin // KEY_COLUMNS * KEY_COLUMNS, end, KEY_COLUMNS):
        k, v = keys.read(start, begin, end)
        scores = torch.bmm(q, k.transpose(1, 2))
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        last = position + 1 if sight.no_later else end  # keys before it are seen by all
        if start + KEY_COLUMNS > last or sight.window is not None:
            hidden = _hidden(start, position, end, sight, q.device)
            scores.view(q.shape[0], -1, QUERY_ROWS, KEY_COLUMNS).masked_fill_(hidden, -torch.inf)
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        # Of a row that has seen nothing yet, exp(-inf - 0) is 0 where -inf - -inf were NaN.
        pivot = new_top.masked_fill(new_top == -torch.inf, 0.0)
        weight = torch.exp(scores - pivot)
        keep = torch.exp(top - pivot)
        total = total * keep + weight.sum(-1, keepdim=True)
        acc = acc * keep + torch.bmm(weight, v)
        top = new_top
    return acc / (total if sinks is None else total + torch.exp(sinks - top))


def _hidden(start: int, position: int, end: int, sight: _Sight, device: torch.device) -> Tensor:
    """Return which keys from `start` on the rows from `position` on may not attend to:
    bool [QUERY_ROWS, KEY_COLUMNS]."""
    row = torch.arange(position, position + QUERY_ROWS, device=device).unsqueeze(1)
    column = torch.arange(start, start + KEY_COLUMNS, device=device)
    hidden = (column >= end).expand(QUERY_ROWS, -1)
    if sight.no_later:
        hidden = hidden | (column > row)
    elif sight.ahead is not None:
        hidden = hidden | (column >= row + sight.ahead)
    behind: Tensor = column < sight.first(row)
    return hidden | behind


class _KeyTiles:
    """Reads tiles of one sequence's keys and values out of the blocks they lie in."""

    def __init__(self, cache: KVCache[Tensor], table: Tensor, value_width: int) -> None:
        self.value_width = value_width
        self._cache = cache
        self._table = table
        self._block_size = cache.k.shape[2]

    def read(self, start: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Return tokens [start, start + KEY_COLUMNS) as float32 [kv_heads, KEY_COLUMNS, D].

        Without v in the cache, values are the last elements of keys.

        Of tokens outside [begin, end) the keys may be anything, and are hidden by the caller;
        the values are zeros. Their blocks may be another sequence's by now, or never have
        been written, and a weight of zero times infinity would be NaN.
        """
        blocks = self._table.new_zeros(KEY_COLUMNS // self._block_size)
        # Entries of the table outside the sequence or the window may hold anything: block 0
        # stands for them.
        first = max(start, begin) // self._block_size
        last = -(-min(start + KEY_COLUMNS, end) // self._block_size)
        skipped = first - start // self._block_size
        blocks[skipped : skipped + last - first] = self._table[first:last]
        k, v = _gather(self._cache, blocks)
        if v is None:
            v = k[..., -self.value_width :]
        if begin > start:
            v[:, : begin - start] = 0.0
        if end < start + KEY_COLUMNS:
            v[:, end - start :] = 0.0
        return k, v


def _gather(cache: KVCache[Tensor], blocks: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the keys and values of `blocks` (int32 [n]): float32 [kv_heads, n · block_size, D]."""
    if cache.packed:
        k, v = (
            int4.unpack(heads.of(blocks)).transpose(0, 1).flatten(1, 2)
            for heads in int4.parts(cache)
        )
        return k, v
    k = _gather_part(cache.k, cache.k_scale, cache.k_unit, blocks)
    return k, None if cache.v is None else _gather_part(
        cache.v, cache.v_scale, cache.v_unit, blocks
    )


def _gather_part(cached: Tensor, scale: Tensor | None, unit: float, blocks: Tensor) -> Tensor:
    if cached.is_floating_point() and cached.itemsize == 1:  # torch indexes these only as bytes
        tokens = cached.view(torch.uint8)[blocks].view(cached.dtype).float()
    else:
        tokens = cached[blocks].float()
    if scale is not None:
        tokens *= scale[blocks].unsqueeze(-1)
    elif unit != 1.0:
        tokens *= unit
    return tokens.transpose(0, 1).flatten(1, 2)
