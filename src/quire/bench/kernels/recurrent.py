"""Cases of recurrent layers, at the shapes of three models: whatever model is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from quire.bench.kernels.case import Case, copies
from quire.bench.kernels.cases import Cases, Setting
from quire.core.dtypes import FLOAT32, HostArray
from quire.core.layers import DeltaConfig, Mamba2Config, ShortConvConfig
from quire.core.model_config import ModelConfig
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import (
    AttentionMetadata,
    Convolution,
    DeltaRules,
    ScanRules,
    StateSlots,
    conv_state_shape,
    matrix_state_shape,
)

Call = Callable[[Ops, Array, AttentionMetadata], object]
"""Calls an op on a state and a step."""
_LEAST_PREFILL = 16


class Op(NamedTuple):
    """An op of one model: its shapes, and its arguments for some rows.

    Attributes:
        columns: of the rows that it reads and writes.
        flops: per row.
    """

    name: str
    model: str
    state: tuple[int, ...]
    columns: int
    flops: int
    bind: Callable[[Setting, int], Call]


def recurrent(s: Setting, ops: Sequence[Op] | None = None) -> Cases:
    """Yield decode (one token per sequence, `rows` sequences) and prefill (`rows` tokens)."""
    for op in _OPS if ops is None else ops:
        yield [_case(s, op, "decode", r, 1) for r in s.rows if r <= s.max_num_seqs]
        yield [_case(s, op, "prefill", 1, r) for r in s.rows if r >= _LEAST_PREFILL]


def _case(s: Setting, op: Op, name: str, sequences: int, new: int) -> Case:
    """Return a case of `sequences` with `new` tokens each, whose states are changed in place."""
    rows = sequences * new
    state_bytes = 4 * int(np.prod(op.state)) * sequences
    count = copies(state_bytes)
    state = s.noise(FLOAT32, count * sequences, *op.state)
    steps = [_step(s, i, sequences, new) for i in range(count)]
    call = op.bind(s, rows)
    return s.case(
        "recurrent", f"{op.name} {name}", f"{op.model} {'x'.join(map(str, op.state))}", rows,
        lambda i: call(s.ops, state, steps[i % count]), None,
        moved_bytes=2 * state_bytes + rows * op.columns * s.variant.numpy_dtype.itemsize,
        rotated_bytes=count * state_bytes, flops=rows * op.flops,
    )  # fmt: skip


def _step(s: Setting, turn: int, sequences: int, new: int) -> AttentionMetadata:
    slots = np.arange(turn * sequences, (turn + 1) * sequences)
    targets = np.full((sequences, new), -1, np.int64)
    targets[:, -1] = slots
    no_tokens: HostArray = np.zeros(0, np.int64)
    return AttentionMetadata(
        query_start_loc=np.arange(0, (sequences + 1) * new, new, dtype=np.int32),
        seq_lens=np.full(sequences, new, np.int32),
        block_tables=s.ops.array(np.zeros((sequences, 1), np.int32)),
        slot_mapping=s.ops.array(no_tokens),
        num_seqs=sequences,
        block_size=s.block_size,
        states=StateSlots(slots.astype(np.int32), targets.reshape(-1)),
    )


def _convolution(model: str, channels: int, width: int, kind: Literal["silu", "gated"]) -> Op:
    parts = 3 if kind == "gated" else 1

    def bind(s: Setting, rows: int) -> Call:
        x = s.noise(s.variant.numpy_dtype, rows, parts * channels)
        conv = Convolution(s.noise(FLOAT32, width, channels), None, kind)
        return lambda ops, state, meta: ops.causal_conv1d(x, conv, state, meta)

    state, flops = conv_state_shape(channels, width), 2 * channels * width
    return Op("causal_conv1d", model, state, (parts + 1) * channels, flops, bind)


def _delta_rule(model: str, key_heads: int, heads: int, key_dim: int, value_dim: int) -> Op:
    columns = 2 * key_heads * key_dim + heads * value_dim

    def bind(s: Setting, rows: int) -> Call:
        dtype = s.variant.numpy_dtype
        qkv, gates = s.noise(dtype, rows, columns), s.noise(dtype, rows, 2 * heads)
        rules = DeltaRules(_ones(s, heads), _ones(s, heads), key_heads, heads)
        return lambda ops, state, meta: ops.gated_delta_rule(qkv, gates, gates, rules, state, meta)

    state = matrix_state_shape(heads, key_dim, value_dim)
    flops = 7 * heads * key_dim * value_dim
    return Op("gated_delta_rule", model, state, columns + heads * value_dim, flops, bind)


def _mamba2(model: str, groups: int, heads: int, state_dim: int, head_dim: int) -> Op:
    columns = 2 * groups * state_dim + heads * head_dim

    def bind(s: Setting, rows: int) -> Call:
        dtype = s.variant.numpy_dtype
        xbc, dt, ones = s.noise(dtype, rows, columns), s.noise(dtype, rows, heads), _ones(s, heads)
        rules = ScanRules(ones, ones, ones, groups)
        return lambda ops, state, meta: ops.mamba2_scan(xbc, dt, rules, state, meta)

    state = matrix_state_shape(heads, state_dim, head_dim)
    flops = 5 * heads * state_dim * head_dim
    return Op("mamba2_scan", model, state, columns + heads * head_dim, flops, bind)


def of_model(model: ModelConfig) -> list[Op]:
    """Return the ops of a model's own recurrent layers."""
    found, name = model.recurrent, model.architecture
    if isinstance(found, ShortConvConfig):
        return [_convolution(name, found.channels, found.width, "gated")]
    if isinstance(found, DeltaConfig):
        heads = found.key_heads, found.value_heads, found.key_dim, found.value_dim
        conv = _convolution(name, found.channels, found.width, "silu")
        return [conv, _delta_rule(name, *heads)]
    if isinstance(found, Mamba2Config):
        sizes = found.groups, found.heads, found.state_dim, found.head_dim
        return [_convolution(name, found.channels, found.width, "silu"), _mamba2(name, *sizes)]
    return []


def _ones(s: Setting, count: int) -> Any:
    return s.ops.array(np.ones(count, np.float32))


_OPS = [
    _convolution("qwen3-next", 8192, 4, "silu"),
    _convolution("lfm2-1.2b", 2048, 3, "gated"),
    _convolution("nemotron-h-8b", 10240, 4, "silu"),
    _delta_rule("qwen3-next", 16, 32, 128, 128),
    _mamba2("nemotron-h-8b", 8, 128, 128, 64),
]
