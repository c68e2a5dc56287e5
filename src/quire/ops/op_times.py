"""What each operation of a model takes, counted or traced, natively or called from Python.

Whoever runs ops is an `OpMeter`: a plan, whose native ops count themselves in C++, or a `TimedOps`,
a table whose ops are timed as they are called. Off, neither costs anything, but for
`TimedOps.timing`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.core.op_profile import OpTime
from quire.ops.array import Array
from quire.ops.interface import SAMPLING_OPS, Ops
from quire.ops.metadata import AttentionMetadata, AttentionRules, Heads, KVCache

NATIVE = "native "
"""What the source of a native op begins with."""

KIND_TYPES = {
    "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "s8": "int8", "u8": "int8", "s8_a16": "int8_w8a16", "f8_e4m3": "fp8", "f8_e5m2": "fp8",
    **dict.fromkeys(("u2", "u3", "u4", "u4_book", "u5", "u6"), "int4"),
}  # fmt: skip
"""The kind of a packed weight → its product type (`core.cost.SIMILAR`)."""


class OpLabel(NamedTuple):
    """An op in its place in the model; see `OpTime`."""

    name: str
    module: str
    isa: str
    dtype: str


class OpRuns(NamedTuple):
    """Ops one by one.

    Attributes:
        runs: int64 [N, 6]: index into `labels`, begin (nanoseconds of the monotonic clock),
            nanoseconds, rows, bytes, flops. Ordered by their begin.
    """

    labels: list[OpLabel]
    runs: NDArray[np.int64]


class OpMeter(Protocol):
    """Something that runs ops and can tell what they take."""

    def count_ops(self, on: bool) -> None:
        """Count from now on, from zero; off forgets."""

    def op_times(self) -> list[OpTime]:
        """Return the counts in the order in which the ops run."""

    def trace_ops(self, max_runs: int) -> None:
        """Note each run from now on, the first `max_runs`; 0 ends that and forgets them."""

    def op_runs(self) -> OpRuns:
        """Return the recorded runs."""


class Labels:
    """Finds out which module an op belongs to, by the weight or the cache that it is given.

    Args:
        modules: id of a weight or of a layer's cache → module.
    """

    def __init__(self, modules: Mapping[int, str]) -> None:
        self._modules = modules
        self._last = ""

    def of(self, name: str, source: str, args: tuple[Any, ...], result: Any) -> OpLabel:
        """Return the op's label; without a weight of its own it belongs to the previous op's
        module.
        """
        known = (self._modules[id(arg)] for arg in args if id(arg) in self._modules)
        # A tied embedding and the output projection have one weight.
        self._last = "lm_head" if name == "logits" else next(known, self._last)
        isa = source.removeprefix(NATIVE) if source.startswith(NATIVE) else "torch"
        return OpLabel(name, self._last, isa, _dtype(args, result))


class TimedOps:
    """A table of ops, each timed where it is called.

    Attributes:
        timing: these ops; they cost a call of Python more while nothing is counted or traced.
    """

    def __init__(self, ops: Ops, modules: Mapping[int, str]) -> None:
        self._modules = Labels(modules)
        self._counts: dict[OpLabel, NDArray[np.int64]] | None = None  # [5] each, as native ones
        self._labels: dict[OpLabel, int] = {}
        self._runs: list[tuple[int, ...]] = []
        self._max_runs = 0
        self._sources = ops.sources
        self._finish = ops.device.finish  # else a GPU's ops take as long as it takes to queue them
        self._plain = ops
        self.timing = ops.wrapped(self._timed)

    @property
    def active(self) -> bool:
        """Return whether ops are counted or traced now."""
        return self._counts is not None or self._max_runs > 0

    @property
    def table(self) -> Ops:
        """Return the ops to call now."""
        return self.timing if self.active else self._plain

    def count_ops(self, on: bool) -> None:
        self._counts = {} if on else None

    def op_times(self) -> list[OpTime]:
        return summed((self._counts or {}).items())

    def trace_ops(self, max_runs: int) -> None:
        self._runs, self._max_runs = [], max_runs

    def op_runs(self) -> OpRuns:
        return OpRuns([*self._labels], np.array(self._runs, np.int64).reshape(-1, 6))

    def _timed(self, name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        if name in SAMPLING_OPS:  # no part of the model's forward pass
            return op

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return op(*args, **kwargs)
            begin = time.monotonic_ns()
            result = op(*args, **kwargs)
            self._finish()
            nanoseconds = time.monotonic_ns() - begin
            given = (*args, *kwargs.values())
            label = self._modules.of(name, self._sources.get(name, ""), given, result)
            self._note(label, begin, nanoseconds, given, result)
            return result

        return call

    def _note(
        self, label: OpLabel, begin: int, nanoseconds: int, args: tuple[Any, ...], result: Any
    ) -> None:
        rows, nbytes, flops = call_cost(label.name, args, result)
        if rows == 0:
            return
        if self._counts is not None:
            total = self._counts.setdefault(label, np.zeros(5, np.int64))
            total += (1, nanoseconds, rows, nbytes, flops)
        if len(self._runs) < self._max_runs:
            index = self._labels.setdefault(label, len(self._labels))
            self._runs.append((index, begin, nanoseconds, rows, nbytes, flops))


def summed(
    counts: Iterable[tuple[OpLabel, Iterable[int]]],
    tallies: Mapping[OpLabel, Sequence[int]] | None = None,
) -> list[OpTime]:
    """Return the times of labels with (calls, nanoseconds, rows, bytes, flops).

    A label that comes twice is one entry, and one that never ran is none.

    Args:
        tallies: of mixtures of experts: rows of each expert, and the experts that had some.
    """
    chosen = tallies or {}
    totals: dict[OpLabel, NDArray[np.int64]] = {}
    for label, count in counts:
        added = np.array(list(count), dtype=np.int64)
        if added[0]:
            totals[label] = totals[label] + added if label in totals else added
    return [
        OpTime(
            label.name,
            label.module,
            calls=calls,
            seconds=nanoseconds / 1e9,
            nbytes=nbytes,
            flops=flops,
            isa=label.isa,
            dtype=label.dtype,
            rows=rows,
            expert_rows=list(chosen.get(label, ())[:-1]),
            experts_used=next(iter(chosen.get(label, ())[-1:]), 0),
        )
        for label, total in totals.items()
        for calls, nanoseconds, rows, nbytes, flops in (total.tolist(),)
    ]


def call_cost(name: str, args: tuple[Any, ...], result: Any) -> tuple[int, int, int]:
    """Return (rows, bytes, flops) of a call, as the native ops count theirs (csrc/ops)."""
    outputs: tuple[Array, ...] = result if isinstance(result, tuple) else (result,)
    first = outputs[0]
    rows = first.shape[0]
    read = [a for a in args if _is_array(a) and len(a.shape) > 1 and a.shape[0] == rows]
    moved = sum(array.nbytes for array in (*read, *outputs))
    if name in ("linear", "logits"):
        n, k = args[1].shape
        return rows, moved + args[1].nbytes, 2 * rows * n * k
    if name in ("paged_attention", "latent_attention"):
        return rows, *_attention_cost(args, first)
    if name == "head_linear":
        n, k = args[1].shape
        return rows, moved + args[1].nbytes, 2 * rows * n * k
    if name == "embedding":
        return rows, 2 * first.nbytes, 0
    if name == "rope_kv_write":
        heads: Heads = args[5]
        turned = 0 if args[2] is None else 3 * (heads.q + heads.kv) * heads.width
        return rows, 2 * args[0].nbytes, rows * turned
    return rows, moved, _FLOPS.get(name, 1) * math.prod(first.shape)


_FLOPS = {"rms_norm": 4, "add_rms_norm": 5, "layer_norm": 7, "add_layer_norm": 8}
"""Of an element of the result; 1 where nothing else is said."""


def _attention_cost(args: tuple[Any, ...], out: Array) -> tuple[int, int]:
    cache: KVCache = next(arg for arg in args if isinstance(arg, KVCache))
    meta: AttentionMetadata = next(arg for arg in args if isinstance(arg, AttentionMetadata))
    window = args[3].window if isinstance(args[3], AttentionRules) else None
    _, heads, width = out.shape
    blocks, _, block_size, _ = cache.k.shape
    token_bytes = sum(part.nbytes for part in cache.tensors) // (blocks * block_size)
    tokens = pairs = 0
    for start, end, length in meta.spans:
        rows = end - start
        seen = np.arange(length - rows + 1, length + 1)
        tokens += length if window is None else min(length, window + rows)
        pairs += int((seen if window is None else np.minimum(seen, window)).sum())
    return tokens * token_bytes + 2 * out.nbytes, 2 * pairs * heads * (cache.head_dim + width)


def _dtype(args: tuple[Any, ...], result: Any) -> str:
    for arg in args:
        if (kind := getattr(arg, "kind", None)) in KIND_TYPES:
            return KIND_TYPES[kind]
        weight = getattr(arg, "weight", None)
        if weight is not None and _is_array(weight):  # as the checkpoint has it
            return _name(weight)
    first = result[0] if isinstance(result, tuple) and result else result
    return _name(first) if _is_array(first) else "float32"


def _is_array(value: object) -> bool:
    return hasattr(value, "itemsize") and hasattr(value, "shape")


def _name(array: Array) -> str:
    return str(array.dtype).removeprefix("torch.")
