"""Operations know their module, and cost the same whoever counts them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from quire.core.op_profile import OpTime
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.op_times import TimedOps
from quire.ops.plan import record
from quire.ops.providers import load_ops

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 64, 4, 2, 16
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
BLOCK = 16


@pytest.fixture(autouse=True)
def _inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Layer:
    """One of each kind of operation."""

    def __init__(self, ops: Ops, window: int | None) -> None:
        self.window = window
        self.embed = torch.randn(50, HIDDEN)
        self.norm = torch.ones(HIDDEN)
        self.bias = torch.zeros(HIDDEN)
        self.qkv = ops.pack_linear(torch.randn(QKV, HIDDEN))
        self.out = ops.pack_linear(torch.randn(HIDDEN, HEADS * HEAD_DIM))
        shape = (8, KV_HEADS, BLOCK, HEAD_DIM)
        self.cache = KVCache(torch.zeros(shape), torch.zeros(shape))
        self.cos_sin = torch.randn(128, HEAD_DIM)

    @property
    def modules(self) -> dict[int, str]:
        return {
            id(self.embed): "embed", id(self.norm): "norm", id(self.qkv): "attn.qkv",
            id(self.out): "attn.out", id(self.cache): "attn",
        }  # fmt: skip

    def forward(
        self, ops: Ops, ids: torch.Tensor, positions: torch.Tensor, meta: AttentionMetadata
    ) -> torch.Tensor:
        residual = ops.embedding(ids, self.embed)
        x = ops.rms_norm(residual, self.norm, 1e-6)
        q = ops.rope_kv_write(
            ops.linear(x, self.qkv), positions, self.cos_sin, None, None, 1e-6,
            self.cache, meta.slot_mapping, HEADS, KV_HEADS, HEAD_DIM,
        )  # fmt: skip
        x = ops.paged_attention(q, self.cache, meta, 0.25, self.window).flatten(1)
        x, residual = ops.add_layer_norm(
            ops.linear(x, self.out), residual, self.norm, self.bias, 1e-6
        )
        return ops.activation(ops.add(x, residual), "gelu")


def batch(spans: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
    """Ids, positions and metadata of sequences with (new tokens, tokens in all)."""
    new = torch.tensor([rows for rows, _ in spans])
    positions = torch.cat([torch.arange(total - rows, total) for rows, total in spans])
    blocks = torch.arange(3 * len(spans), dtype=torch.int32).view(len(spans), 3) % 8
    meta = AttentionMetadata(
        query_start_loc=torch.cat([torch.zeros(1), new.cumsum(0)]).to(torch.int32),
        seq_lens=torch.tensor([total for _, total in spans], dtype=torch.int32),
        block_tables=blocks,
        slot_mapping=torch.arange(len(positions)),
        num_seqs=len(spans),
        block_size=BLOCK,
    )
    return torch.arange(len(positions)) % 50, positions, meta


@pytest.mark.parametrize("window", [None, 10])
def test_a_plan_and_calls_count_the_same(window: int | None) -> None:
    ops = load_ops("cpu", num_threads=1)
    layer = Layer(ops, window)
    one, spans = batch([(1, 1)]), [(5, 5), (1, 30), (4, 12), (20, 40)]
    plan = record(ops, lambda table: layer.forward(table, *one), one, 64, layer.modules)
    plan.meter.count_ops(True)
    timed = TimedOps(ops, layer.modules)
    timed.count_ops(True)
    plan.run(batch(spans))
    layer.forward(timed.table, *batch(spans))

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
    ops = load_ops("reference")
    layer = Layer(ops, None)
    timed = TimedOps(ops, layer.modules)
    timed.count_ops(True)
    timed.trace_ops(4)
    layer.forward(timed.table, *batch([(3, 3)]))
    times = timed.op_times()
    assert {op.isa for op in times} == {"torch"}
    linear = times[2]
    assert linear.nbytes == 4 * (QKV * HIDDEN + 3 * (HIDDEN + QKV))
    labels, runs = timed.op_runs()
    assert [labels[i].name for i in runs[:, 0]] == [op.name for op in times[:4]]


def test_a_tied_weight_is_two_modules() -> None:
    ops = load_ops("cpu", num_threads=1)
    head = ops.pack_linear(torch.randn(50, HIDDEN))
    timed = TimedOps(ops, {id(head): "embed"})
    timed.count_ops(True)
    timed.table.logits(timed.table.embedding(torch.tensor([1, 2]), head), head)
    assert [op.module for op in timed.op_times()] == ["embed", "lm_head"]
