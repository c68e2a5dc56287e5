"""A tower's layers in pieces, so that a step can compute a part of an image.

A row's result depends on no other row of its op, so the pieces give the same bits as the whole. Of
each layer all rows first store their keys and values; then each part attends to all of them.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quire.core.dtypes import HostArray
from quire.core.images import VisionConfig
from quire.layers.attention import Attention
from quire.layers.layer import Layer, Tokens
from quire.models.decoder import Decoder
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.system.records import dataclass

PIECE_FLOPS = 5e8
"""Of a piece: some milliseconds of two cores. Smaller ones read the weights too often."""
BLOCK = 32
"""Patches in a block of keys and values, which are those of one image."""


@dataclass(slots=True)
class Part:
    """Rows that are computed together: what enters the next layer, and what they attend to."""

    x: Array
    residual: Array
    tokens: Tokens


def rows_at_once(vision: VisionConfig, count: int) -> int:
    """Return the rows of an image of `count` patches that a layer computes in a piece."""
    gated = vision.activation.endswith("_mul")
    weights = vision.hidden_size * (4 * vision.hidden_size + (2 + gated) * vision.intermediate_size)
    row = 2 * weights + 4 * count * vision.hidden_size
    return max(16, int(PIECE_FLOPS / row) // 16 * 16)


def bounds_of(count: int, size: int, windows: list[int]) -> list[int]:
    """Return where parts of about `size` rows begin and end; none ends inside a window."""
    ends = np.cumsum(windows).tolist() if windows else range(size, count, size)
    bounds = [0]
    for end in ends:
        if end - bounds[-1] >= size and end < count:
            bounds.append(end)
    return [*bounds, count]


def layers_in_pieces(
    ops: Ops,
    decoder: Decoder,
    rows: HostArray,
    bounds: list[int],
    windows: list[int],
    rotations: Array | None,
    deep_layers: tuple[int, ...],
    modules: dict[int, str],
) -> Generator[None, None, tuple[HostArray, list[HostArray]]]:
    """Compute a tower's layers; yield after each piece.

    Args:
        rows: what enters the first layer [T, hidden].
        bounds: of the parts, see `bounds_of`.
        windows: the lengths of all windows; [] without them.
        modules: id of a weight or a cache → the module that profiles name.

    Returns:
        What leaves the last layer [T, hidden], and the residual stream behind each deep layer.
    """
    whole = _metadata(ops, [len(rows)])
    inner = _metadata(ops, windows) if windows else None
    blocks = max(int(ops.numpy(m.block_tables).max()) for m in (whole, inner or whole)) + 1
    config = decoder.config
    shape = (blocks, config.num_key_value_heads, BLOCK, config.head_dim)
    cache = KVCache(ops.empty(shape, decoder.dtype), ops.empty(shape, decoder.dtype))
    parts, deep = list[Part](), list[HostArray]()
    for first, last in pairwise(bounds):
        x, residual = decoder.enter(ops, ops.array(np.ascontiguousarray(rows[first:last])))
        meta = _part(whole, first, last)
        seen = None if inner is None else _part(inner, first, last)
        at = ops.array(np.arange(first, last))
        parts.append(Part(x, residual, Tokens(at, meta, rotations=rotations, windows=seen)))
    try:
        for number, layer in enumerate(decoder.layers):
            modules[id(cache)] = f"tower.layers.{number}.attn"
            yield from _layer(ops, layer, parts, cache)
            if number in deep_layers:
                deep.append(np.concatenate([ops.numpy(part.residual) for part in parts]))
    finally:
        del modules[id(cache)]
    return np.concatenate([ops.numpy(part.x) for part in parts]), deep


def _layer(
    ops: Ops, layer: Layer, parts: list[Part], cache: KVCache
) -> Generator[None, None, None]:
    attention, *others = layer.sublayers
    mixer = attention.mixer
    assert isinstance(mixer, Attention), "a tower's layers begin with attention"
    queries = []
    for part in parts:
        queries.append(mixer.enter(ops, part.x, cache, part.tokens)[0])
        yield
    for part, q in zip(parts, queries, strict=True):
        y = mixer.attend(ops, q, cache, part.tokens)
        part.x, part.residual = attention.finish(ops, y, part.residual)
        for sublayer in others:
            y = sublayer.mixer.mix(ops, part.x, None, part.tokens)
            part.x, part.residual = sublayer.finish(ops, y, part.residual)
        yield


def _metadata(ops: Ops, lengths: list[int]) -> AttentionMetadata:
    """Return the metadata of sequences, each in blocks of its own."""
    counts = [-(-length // BLOCK) for length in lengths]
    tables = np.zeros((len(lengths), max(counts)), np.int32)
    slots, first = [], 0
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        tables[row, :count] = np.arange(first, first + count)
        slots.append(np.arange(first * BLOCK, first * BLOCK + length))
        first += count
    return AttentionMetadata(
        query_start_loc=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        seq_lens=np.array(lengths, np.int32),
        block_tables=ops.array(tables),
        slot_mapping=ops.array(np.concatenate(slots)),
        num_seqs=len(lengths),
        block_size=BLOCK,
        device=ops.device,
    )


def _part(meta: AttentionMetadata, first: int, last: int) -> AttentionMetadata:
    """Return the metadata of rows [first, last): a part of one sequence, or whole ones."""
    starts: NDArray[np.int32] = meta.query_start_loc
    begin = int(np.searchsorted(starts, first, side="right")) - 1
    end = int(np.searchsorted(starts, last))
    return AttentionMetadata(
        query_start_loc=np.clip(starts[begin : end + 1], first, last) - first,
        seq_lens=meta.seq_lens[begin:end],
        block_tables=meta.block_tables[begin:end],
        slot_mapping=meta.slot_mapping[first:last],
        num_seqs=end - begin,
        block_size=BLOCK,
        device=meta.device,
    )
