"""Operations know their module, and cost the same whoever counts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.core.dtypes import HostArray
from quire.core.op_profile import OpTime
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, AttentionRules, Heads, KVCache
from quire.ops.op_times import TimedOps
from quire.ops.plans.recorder import record
from quire.ops.providers import load_ops

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 64, 4, 2, 16
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
BLOCK = 16


def floats(*shape: int) -> HostArray:
    return np.random.default_rng().standard_normal(shape, np.float32)


class Layer:
    """One of each kind of operation."""

    def __init__(self, ops: Ops, window: int | None) -> None:
        self.window = window
        self.embed = ops.array(floats(50, HIDDEN))
        self.norm = ops.array(np.ones(HIDDEN, np.float32))
        self.bias = ops.array(np.zeros(HIDDEN, np.float32))
        self.qkv = ops.pack_linear(floats(QKV, HIDDEN))
        self.out = ops.pack_linear(floats(HIDDEN, HEADS * HEAD_DIM))
        shape = (8, KV_HEADS, BLOCK, HEAD_DIM)
        self.cache = KVCache(*(ops.array(np.zeros(shape, np.float32)) for _ in range(2)))
        self.cos_sin = ops.array(floats(128, HEAD_DIM))

    @property
    def modules(self) -> dict[int, str]:
        return {
            id(self.embed): "embed", id(self.norm): "norm", id(self.qkv): "attn.qkv",
            id(self.out): "attn.out", id(self.cache): "attn",
        }  # fmt: skip

    def forward(self, ops: Ops, ids: Any, positions: Any, meta: AttentionMetadata) -> Any:
        residual = ops.embedding(ids, self.embed)
        x = ops.rms_norm(residual, self.norm, 1e-6)
        q = ops.rope_kv_write(
            ops.linear(x, self.qkv), positions, self.cos_sin, self.cache, meta.slot_mapping,
            Heads(HEADS, KV_HEADS, HEAD_DIM),
        )  # fmt: skip
        x = ops.paged_attention(q, self.cache, meta, AttentionRules(0.25, self.window)).reshape(
            -1, HEADS * HEAD_DIM
        )
        x, residual = ops.add_layer_norm(
            ops.linear(x, self.out), residual, self.norm, self.bias, 1e-6
        )
        return ops.activation(ops.add(x, residual), "gelu")


def batch(ops: Ops, spans: list[tuple[int, int]]) -> tuple[Any, Any, AttentionMetadata]:
    """Ids, positions and metadata of sequences with (new tokens, tokens in all)."""
    new = [rows for rows, _ in spans]
    positions = np.concatenate([np.arange(total - rows, total) for rows, total in spans])
    blocks = np.arange(3 * len(spans), dtype=np.int32).reshape(len(spans), 3) % 8
    meta = AttentionMetadata(
        query_start_loc=ops.array(np.cumsum([0, *new], dtype=np.int32)),
        seq_lens=ops.array(np.array([total for _, total in spans], np.int32)),
        block_tables=ops.array(blocks),
        slot_mapping=ops.array(np.arange(len(positions))),
        num_seqs=len(spans),
        block_size=BLOCK,
    )
    return ops.array(np.arange(len(positions)) % 50), ops.array(positions), meta


@pytest.mark.parametrize("window", [None, 10])
def test_a_plan_and_calls_count_the_same(window: int | None) -> None:
    ops = load_ops("cpu", num_threads=1)
    layer = Layer(ops, window)
    one, spans = batch(ops, [(1, 1)]), [(5, 5), (1, 30), (4, 12), (20, 40)]
    plan = record(ops, layer.forward, one, 64, layer.modules)
    plan.meter.count_ops(True)
    timed = TimedOps(ops, layer.modules)
    timed.count_ops(True)
    plan.run(batch(ops, spans))
    layer.forward(timed.table, *batch(ops, spans))

    native, called = plan.meter.op_times(), timed.op_times()
    assert [(op.module, op.name) for op in native] == [
        ("embed", "embedding"), ("norm", "rms_norm"), ("attn.qkv", "linear"),
        ("attn", "rope_kv_write"), ("attn", "paged_attention"), ("attn.out", "linear"),
        ("norm", "add_layer_norm"), ("norm", "add"), ("norm", "activation"),
    ]  # fmt: skip
    assert [plain(op) for op in native] == [plain(op) for op in called]
    attention = native[4]
    pairs = sum(
        min(window or total, seen)
        for rows, total in spans
        for seen in range(total - rows + 1, total + 1)
    )
    assert attention.flops == 4 * pairs * HEADS * HEAD_DIM
    assert all(op.dtype == "float32" for op in native)


def plain(op: OpTime) -> tuple[object, ...]:
    """All but the time. A packed weight is padded, so that bytes are those of the same packing."""
    return (op.name, op.module, op.calls, op.rows, op.nbytes, op.flops, op.isa, op.dtype)


def test_reference_ops_are_timed_too() -> None:
    pytest.importorskip("torch")
    ops = load_ops("reference")
    layer = Layer(ops, None)
    timed = TimedOps(ops, layer.modules)
    timed.count_ops(True)
    timed.trace_ops(4)
    layer.forward(timed.table, *batch(ops, [(3, 3)]))
    times = timed.op_times()
    assert {op.isa for op in times} == {"torch"}
    linear = times[2]
    assert linear.nbytes == 4 * (QKV * HIDDEN + 3 * (HIDDEN + QKV))
    labels, runs = timed.op_runs()
    assert [labels[i].name for i in runs[:, 0]] == [op.name for op in times[:4]]


def test_a_tied_weight_is_two_modules() -> None:
    ops = load_ops("cpu", num_threads=1)
    head = ops.pack_linear(floats(50, HIDDEN))
    timed = TimedOps(ops, {id(head): "embed"})
    timed.count_ops(True)
    timed.table.logits(timed.table.embedding(np.array([1, 2]), head), head)
    assert [op.module for op in timed.op_times()] == ["embed", "lm_head"]
