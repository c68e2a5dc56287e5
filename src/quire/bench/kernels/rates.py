"""The rates that kernels reach in a step: products with weights in memory, and decode attention."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.bench.kernels.case import cache_bytes, noise
from quire.core.cost import Overlap
from quire.core.dtypes import BFLOAT16, HostArray, dtype_of
from quire.core.quantized import QuantizedWeight
from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache

if TYPE_CHECKING:
    from quire.ops.interface import Ops

FORMATS: dict[str, tuple[str, str | None]] = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "float16": ("float16", None),
    "int8": ("bfloat16", "int8"),
    "int8_w8a16": ("bfloat16", "int8_w8a16"),
    "int4": ("bfloat16", "int4"),
    "fp8": ("bfloat16", None),
}
"""Product types (`core.cost.SIMILAR`) → the type of x, and the packing."""
ROWS, COLUMNS, FEW, PROMPT = 1024, 1024, (1, 2, 4, 8), 128
"""Of the random numbers that a weight repeats; rows of decode steps, and of a prompt."""
WEIGHT_BYTES = 2**24
"""About as many in each format, so that the time of a call is little of the rate."""
CACHES = 3
"""Bytes of all weights of a format, relative to the largest cache."""
MOST_BYTES = 2**28
HEADS, KEY_HEADS, HEAD_DIM, BLOCK = 16, 8, 128, 16
"""Of the attention that is measured: a layer of a small model."""
QUERIES, CONTEXT, STREAMS = 128, 512, 8
"""The last tokens of a prompt, all of it, and the sequences of a decode step."""


class Products:
    """Times products with a format's weights, which no cache can hold."""

    def __init__(self, ops: Ops[Any], product: str) -> None:
        random, dtype = np.random.default_rng(0), dtype_of(FORMATS[product][0])

        def pack(count: int) -> Any:
            """Return a weight of `count` times the random numbers."""
            matrix = np.tile(numbers, (count, 1))
            weight = _float8(matrix) if product == "fp8" else matrix
            return ops.pack_linear(weight, dtype=dtype)

        numbers = noise(random, (ROWS, COLUMNS), dtype)
        count = max(1, WEIGHT_BYTES // pack(1).nbytes)
        first = pack(count)
        self.nbytes, self.kind = first.nbytes, getattr(first, "kind", "")
        self.flops = 2 * count * ROWS * COLUMNS * PROMPT
        self._ops = ops
        self._weights = [first] + [pack(count) for _ in range(_beyond_caches(self.nbytes) - 1)]
        self._x = {
            rows: ops.array(noise(random, (rows, COLUMNS), dtype)) for rows in (*FEW, PROMPT)
        }
        self.seconds: dict[int, list[float]] = {rows: [] for rows in self._x}
        """Of a product with so many rows."""

    def measure(self) -> None:
        """Multiply a few rows by all weights, and a prompt by one."""
        self._seconds(1)  # else one row would find less of the weights in caches than two
        for rows, seconds in self.seconds.items():
            seconds.append(self._seconds(rows))

    def _seconds(self, rows: int) -> float:
        weights = self._weights[:1] if rows == PROMPT else self._weights
        start = time.perf_counter()
        for weight in weights:
            self._ops.linear(self._x[rows], weight)
        return (time.perf_counter() - start) / len(weights)

    def medians(self) -> dict[int, float]:
        """Return the median seconds; the first turn only warmed up."""
        return {rows: median(seconds[1:]) for rows, seconds in self.seconds.items()}


def overlap_of(seconds: dict[int, float]) -> Overlap:
    """Return how reading and multiplying overlap, from the seconds of products by their rows."""
    one, prompt = seconds[1], seconds[PROMPT]
    return tuple((prompt * n / PROMPT / one, both / one) for n, both in seconds.items())


def _float8(matrix: HostArray) -> QuantizedWeight:
    """Return a weight of 8-bit floats below 2 with one scale per row."""
    codes = np.ascontiguousarray(matrix).view(np.uint8)[:, :COLUMNS] & 0xBF
    scale = np.full((len(matrix), 1), 0.02, np.float32)
    return QuantizedWeight(codes.view(dtype_of("float8_e4m3fn")), 8, scale, COLUMNS)


def _beyond_caches(nbytes: int) -> int:
    """Return how many arrays of so many bytes no cache holds."""
    return max(4, min(CACHES * cache_bytes(), MOST_BYTES) // nbytes)


class Attention:
    """Times attention of one layer: the end of a prompt, and decoding of some streams."""

    def __init__(self, ops: Ops[Any]) -> None:
        random, blocks = np.random.default_rng(0), STREAMS * CONTEXT // BLOCK
        shape = blocks, KEY_HEADS, BLOCK, HEAD_DIM
        k, v = (noise(random, shape, BFLOAT16) for _ in range(2))
        self.nbytes = k.nbytes + v.nbytes
        count = _beyond_caches(self.nbytes)
        self._caches = [KVCache(ops.array(k.copy()), ops.array(v.copy())) for _ in range(count)]
        self._ops = ops
        self._prompt = _step(ops, [QUERIES])
        self.decode = _step(ops, [1] * STREAMS)
        self._queries = {
            rows: ops.array(noise(random, (rows, HEADS, HEAD_DIM), BFLOAT16))
            for rows in (QUERIES, STREAMS)
        }
        self.rates: list[float] = []
        """Operations/s in a prompt."""
        self.keys: list[float] = []
        """Bytes/s of keys and values, without the time of their products."""

    def measure(self) -> None:
        """Compute a layer of a prompt, and all layers of a decode step."""
        each = 4 * HEADS * HEAD_DIM
        pairs = sum(range(CONTEXT - QUERIES + 1, CONTEXT + 1))
        rate = each * pairs / self._seconds(QUERIES, self._prompt, self._caches[:1])
        self.rates.append(rate)
        seconds = self._seconds(STREAMS, self.decode, self._caches) / len(self._caches)
        products = each * STREAMS * CONTEXT / rate
        self.keys.append(self.nbytes / max(seconds / 2, seconds - products))

    def _seconds(self, rows: int, meta: AttentionMetadata, caches: list[KVCache]) -> float:
        start = time.perf_counter()
        for cache in caches:
            self._ops.paged_attention(
                self._queries[rows], cache, meta, AttentionRules(HEAD_DIM**-0.5)
            )
        return time.perf_counter() - start


def _step(ops: Ops[Any], rows: list[int]) -> AttentionMetadata:
    """Return a step in which each sequence computes its last rows."""
    count = len(rows)
    blocks = np.arange(count * CONTEXT // BLOCK, dtype=np.int32).reshape(count, -1)
    slots = [np.arange((n + 1) * CONTEXT - own, (n + 1) * CONTEXT) for n, own in enumerate(rows)]
    return AttentionMetadata(
        query_start_loc=np.cumsum([0, *rows]).astype(np.int32),
        seq_lens=np.full(count, CONTEXT, np.int32),
        block_tables=ops.array(blocks),
        slot_mapping=ops.array(np.concatenate(slots)),
        num_seqs=count,
        block_size=BLOCK,
    )
