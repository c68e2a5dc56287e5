"""`quire bench kernels`: the cases compute what they say, and rows hold what was measured."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest
import torch

from quire.bench.flags import KERNEL_FAMILIES
from quire.bench.kernels import attention, case, cases, command, rates, timing
from quire.bench.kernels.case import Case, Variant
from quire.bench.kernels.cases import Setting
from quire.bench.kernels.rounded import load_rounded
from quire.bench.peers.torch_calls import TorchCalls
from quire.core.errors import ConfigError
from quire.core.model_config import ModelConfig, RopeConfig
from quire.ops.native.kernels import available_isas
from quire.ops.op_times import KIND_TYPES
from quire.ops.providers import load_ops
from tests.arrays import tensor
from tests.unit.bench.parsed import bench_args

SHAPE: dict[str, Any] = {
    "architecture": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
GATED = ModelConfig(**SHAPE, rope=RopeConfig(theta=1e4, rotary_dim=8), qk_norm="head")
PLAIN = ModelConfig(**SHAPE, norm="layer_norm", activation="relu", sliding_window=20)


@pytest.fixture(autouse=True)
def _small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose caches a few copies outgrow."""
    for module in (case, command):
        monkeypatch.setattr(module, "cache_bytes", lambda: 4096)


def setting(model: ModelConfig, provider: Any = "cpu", **changes: Any) -> Setting:
    fields: dict[str, Any] = {
        "model": model,
        "ops": load_ops(provider),
        "variant": Variant(0, "float32", available_isas()[-1]),
        "rows": [1, 18],
        "contexts": [33],
        "block_size": 8,
        "max_num_seqs": 4,
        "torch": TorchCalls(1),
    }
    return Setting(**fields | changes)


@pytest.mark.parametrize("model", [GATED, PLAIN], ids=["gated", "plain"])
@pytest.mark.parametrize("family", KERNEL_FAMILIES)
def test_every_case_runs_and_rotates(model: ModelConfig, family: str) -> None:
    build, types = command.FAMILIES[family]
    changes: dict[str, Any] = {}
    if "quantization" in types:
        changes["ops"] = load_ops("cpu", quantization="int8")
        changes["variant"] = Variant(0, "float32", available_isas()[-1], "int8")
    found = [c for group in build(setting(model, **changes)) for c in group]
    if family != "pack":  # whose rows are the weight's
        assert {c.variant.rows for c in found} == {1, 18}
    for each in found:
        assert each.op == family
        assert each.rotated_bytes > 4096
        for turn in (0, 1, 1000):
            each.call(turn)
            if each.torch_call is not None:
                each.torch_call(turn)


@pytest.mark.parametrize("family", ["norm", "gemm", "activation"])
def test_torch_computes_the_same(family: str) -> None:
    """Where both take the same arguments, that is: gemm's weights and epilogues differ."""
    build, _ = command.FAMILIES[family]
    for group in build(setting(PLAIN)):
        for each in group:
            got, plain = each.call(3), each.torch_call(3)  # type: ignore[misc]
            got = got[0] if isinstance(got, tuple) else got
            assert isinstance(got, np.ndarray)
            assert isinstance(plain, torch.Tensor)
            assert got.shape == plain.shape
            if family != "gemm":
                torch.testing.assert_close(tensor(got), plain, rtol=1e-5, atol=1e-5)


def test_int8_caches_move_fewer_bytes() -> None:
    variant = Variant(0, "float32", available_isas()[-1], kv_cache_dtype="int8")
    int8 = setting(GATED, variant=variant)
    [decode, _] = [g[0] for g in attention.attention(int8)]
    # 33 keys of 2 kv heads: 8 bytes and a scale; a query and a result of 4 heads of 8.
    assert decode.moved_bytes == 33 * 2 * 2 * (8 + 2) + 4 * 2 * 4 * 8
    [[one, _]] = attention.rope_kv_write(int8)
    for each in (decode, one):
        assert isinstance(each.call(5), np.ndarray)


def test_only_quantized_products_quantize() -> None:
    assert not any(cases.quantize(setting(GATED)))


def test_products_are_counted() -> None:
    groups = {g[0].name: g for g in cases.gemm(setting(GATED)) if g}
    assert list(groups) == ["qkv", "out", "gate_up", "down", "lm_head"]
    assert [c.variant.rows for c in groups["lm_head"]] == [1]  # 18 sequences are too many
    one = groups["down"][0]
    assert one.flops == 2 * 48 * 32
    assert one.moved_bytes >= 4 * (48 * 32 + 48 + 32)
    assert [c.shape for c in groups["gate_up"]] == ["96x32 silu_mul"] * 2


def test_attention_is_counted() -> None:
    [decode, prefill] = [g[0] for g in attention.attention(setting(GATED))]
    assert (decode.name, prefill.name) == ("decode", "prefill")
    # 33 keys of 2 kv heads of 8, read once; a query and a result of 4 heads of 8.
    assert decode.moved_bytes == 4 * (33 * 2 * 2 * 8 + 2 * 4 * 8)
    assert decode.flops == 4 * 33 * 4 * 8
    assert prefill.flops == 4 * (18 * 19 // 2) * 4 * 8
    [slides, _] = [g[0] for g in attention.attention(setting(PLAIN))]
    assert slides.flops == 4 * 20 * 4 * 8


def clocked(*samples: float) -> timing.Timed:
    variant = Variant(1, "float32", "avx2")
    nothing = Case("op", "name", "1x1", variant, lambda _: None, 10, 0, 10)
    return timing.Timed(nothing, list(samples), None)


def test_one_outlier_does_not_make_a_row_unstable() -> None:
    steady = clocked(1.0, 1.01, 0.99, 1.0, 1.02, 1.0, 0.98, 1.0, 5.0)
    assert steady.median == 1.0
    assert steady.spread < timing.STABLE_SPREAD
    assert clocked(1.0, 1.2, 0.8, 1.1, 0.9).spread > timing.STABLE_SPREAD


def test_cases_take_turns() -> None:
    log: list[str] = []
    variant = Variant(1, "float32", "avx2")

    def record(name: str) -> Case:
        return Case("op", name, "", variant, lambda _: log.append(name), 1, 0, 1)

    found = timing.interleave([record("a"), record("b")], 3, 0.0, lambda: log.append("-"))
    assert [len(t.samples) for t in found] == [3, 3]
    assert "".join(log).endswith("-ab-ab-ab")


def test_arguments_go_on_rotating() -> None:
    turns: list[int] = []
    clock = timing.Clock(turns.append, 0.0)
    clock.repeat()
    assert turns == list(range(len(turns)))
    assert len(turns) == 3


def parsed(*argv: str) -> argparse.Namespace:
    return bench_args("kernels", *argv)


TINY = ("--model", "embedded-draft", "--rows", "1", "20", "--context", "24", "--seconds", "0.0001")


def test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Reader", lambda threads: argparse.Namespace(read=lambda: 2.0))
    # Portable kernels, and torch's of bfloat16, would take most of the time.
    isas = available_isas()[-1:]
    rows = command.run(
        parsed(*TINY, "--dtype", "float32", "--op", "norm", "gemm",
               "--quantization", "none", "int8", "--isa", *isas,
               "--repetitions", "3", "--num-threads", "1", "--torch")
    )  # fmt: skip
    # 2 norms and 5 products, at 2 numbers of rows, on each ISA; products in 2 types.
    assert len(rows) == len(isas) * 2 * (2 + 5 * 2)
    for row in rows:
        assert row["bandwidth_gb_s"] == 2.0
        assert row["min"]["time_us"] <= row["time_us"] <= row["max"]["time_us"]
        assert row["unstable"] == (row["spread"] > timing.STABLE_SPREAD)
        assert row["times_torch"] > 0
        assert row["share"] is None or row["share"] > 0
        assert (row["gflop_s"] is None) == (row["op"] == "norm")
    assert {row["quantization"] for row in rows if row["op"] == "gemm"} == {None, "int8"}


def test_what_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Reader", lambda threads: argparse.Namespace(read=lambda: 2.0))
    with pytest.raises(ConfigError, match="pentium"):
        command.run(parsed(*TINY, "--isa", "pentium"))


@pytest.mark.parametrize("quantization", ["int4_g32", "q4_k", "gptq", "mxfp4"])
def test_products_are_of_what_the_name_stands_for(quantization: str) -> None:
    ops = load_rounded(available_isas()[-1], 1, quantization)
    weight = torch.randn(32, 256).numpy()
    packed = ops.pack_linear(weight)
    assert packed.kind == ("u4_book" if quantization == "mxfp4" else "u4")
    np.testing.assert_allclose(ops.numpy(packed.unpack()), weight, rtol=0, atol=1.0)
    assert ops.pack_linear(weight, head=True).kind != packed.kind


@pytest.mark.parametrize("product", rates.FORMATS)
def test_a_format_is_timed_with_its_own_packing(
    product: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "MOST_BYTES", 2**16)
    monkeypatch.setattr(rates, "WEIGHT_BYTES", 2**15)
    monkeypatch.setattr(rates, "ROWS", 64)
    monkeypatch.setattr(rates, "COLUMNS", 128)
    timed = rates.Products(load_ops("cpu", None, 1, rates.FORMATS[product][1]), product)
    assert KIND_TYPES[timed.kind] == product
    assert 2**14 < timed.nbytes <= 2**15
    for _ in range(2):  # the first turn only warms up
        timed.measure()
    seconds = timed.medians()
    assert list(seconds) == [*rates.FEW, rates.PROMPT]
    assert min(seconds.values()) > 0.0


def test_a_decode_step_is_timed_over_all_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_BYTES", 2**16)
    monkeypatch.setattr(rates, "CONTEXT", 128)
    ops = load_ops("cpu", None, 1)
    timed = rates.Attention(ops)
    assert timed.nbytes == 2 * 2 * rates.STREAMS * 128 * rates.KEY_HEADS * rates.HEAD_DIM
    assert timed.decode.seq_lens.tolist() == [128] * rates.STREAMS
    timed.measure()
    assert timed.rates[0] > 0.0
    assert timed.keys[0] > 0.0
