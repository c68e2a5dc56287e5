"""Compile every launch for real cards, without one: python -m tests.triton.compiling TARGET

The launches are those of the ops on small arrays; `fake_card` says what of them is real. TARGET is
the capability of an NVIDIA card, such as 90, or the name of an AMD card, such as gfx942.
"""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from quire.core.sampling_params import SamplingParams
from quire.ops.metadata import AttentionRules, GatedNorm, Heads, KVCache
from quire.ops.reported import ReportedRow
from quire.ops.sample_row import LogitEdits, SampleRow
from quire.ops.torch_ops.reference import DenseWeight
from quire.ops.triton import attention, experts, latent, linear, lora, recurrent, rows, sampling
from quire.ops.triton.last_tokens import TritonLastTokens
from quire.ops.triton.weights import coded
from tests.arrays import array, numpy_dtype
from tests.kernels.recurrent_common import Case, one
from tests.kernels.test_route import SPECS
from tests.triton.fake_card import FakeCard
from tests.triton.test_attention import CACHES, empty_cache, metadata
from tests.triton.test_products import quantized


def rows_of(capability: int) -> list[torch.dtype]:
    """Return the 8-bit types of rows that a card multiplies."""
    return [torch.int8, torch.float8_e4m3fn] if capability >= 89 else [torch.int8]


def launch_everything(dtype: torch.dtype, capability: int) -> None:
    """Call each op that launches kernels, with each form of weight and cache."""
    x = torch.randn(3, 96).to(dtype)
    gain = torch.ones(96, dtype=dtype)
    rows.add_rms_norm(x, x, gain, 1e-6)
    rows.layer_norm(x, gain, gain, 1e-6)
    for kind in rows_of(capability):
        rows.coded_norms(kind)["add_rms_norm"](x, x, gain, 1e-6)
        rows.coded_norms(kind)["layer_norm"](x, gain, gain, 1e-6)
    for kind in ("silu_mul", "gelu_tanh_mul", "gelu", "relu2", "swigluoai_mul"):
        rows.activation(x, kind)
    rows.argmax(torch.randn(2, 5000))
    forms: list[Any] = [DenseWeight(torch.randn(70, 96).to(dtype), gain[:70], "none")]
    for name in (
        "int8",
        "codes",
        "float8",
        "float8_a16",
        "zeros",
        "paired",
        "e2m1",
        "paired_e2m1",
        "nvfp4",
        "offsets",
        "book",
        "ordered",
    ):
        parts = [quantized(name, 70, 96, seed=1)]
        if name[:6] != "float8" or capability >= 89:  # plain torch dequantizes it there
            forms.append(coded(parts, None, "none", 1, dtype))
    wide = torch.randn(70, 1024).to(dtype)  # part of which is prefetched
    linear.linear(wide[:1], DenseWeight(wide, None, "none"))
    linear.segment = lambda columns, width: 128
    attention.SEGMENT = 128
    for programs in (0, 1000):
        linear.processors = lambda device, n=programs: n
        attention.processors = lambda device, n=programs: n
        for weight in forms:
            linear.linear(x, weight)
        meta = metadata([300, 9], [3, 1], 16)
        for kind in CACHES:
            if CACHES[kind] != dtype and (CACHES[kind].itemsize > 1 or dtype != torch.bfloat16):
                continue
            if kind == "fp8" and capability < 89:  # plain torch reads it there
                continue
            cache: KVCache[Any] = empty_cache(kind, 2, 16, 80)
            qkv = torch.randn(4, 8 * 80).to(dtype)
            q = attention.rope_kv_write(
                qkv, torch.arange(4), torch.randn(9, 32), cache, meta.slot_mapping,
                Heads(4, 2, 80, gain[:80], gain[:80], eps=1e-6),
            )  # fmt: skip
            attention.paged_attention(q, cache, meta, AttentionRules(0.1, window=512))
            rules = AttentionRules(0.1, softcap=3.0, sinks=torch.ones(4))
            attention.paged_attention(q, cache, meta, rules)
    stacked = DenseWeight(torch.randn(4 * 64, 96).to(dtype), None, "silu_mul", 4)
    down = DenseWeight(torch.randn(4 * 96, 32).to(dtype), None, "none", 4)
    chosen = torch.tensor([[0, 2], [1, 3], [0, 1]])
    experts.moe(x, chosen, torch.rand(3, 2), stacked, down)
    linear.head_linear(torch.randn(3, 4, 96).to(dtype), stacked)
    for count, spec, biased in SPECS.values():
        bias = torch.ones(count) if biased else None
        experts.route(torch.randn(2, count), bias, spec, None if biased else torch.ones(count))
    launch_latents(dtype)
    launch_recurrent(dtype)
    launch_sampling()
    table = lora.PointerTable(96, (70, 30), 2, numpy_dtype(dtype), torch.device("cpu"))
    table.set(1, 0, array(x[:2].contiguous()), array(torch.ones(2, 70).to(dtype)), 1.0)
    lora.lora_add(torch.tensor([0, -1, 1]), torch.ones(3, 100).to(dtype), x, table)


def launch_latents(dtype: torch.dtype) -> None:
    """Call latent attention at the sizes of DeepSeek V3, whose tiles fill shared memory."""
    meta = metadata([300, 9], [3, 1], 16)
    for kind in (dtype, torch.int8):
        scale = torch.zeros(40, 1, 16, dtype=torch.bfloat16) if kind == torch.int8 else None
        cache: KVCache[Any] = KVCache(torch.zeros(40, 1, 16, 576, dtype=kind), None, scale)
        q = latent.latent_kv_write(
            torch.randn(4, 128 * 192).to(dtype), torch.randn(4, 576).to(dtype), torch.arange(4),
            torch.randn(9, 64), torch.ones(512, dtype=dtype), 1e-6, cache, meta.slot_mapping, 128,
        )  # fmt: skip
        for programs in (0, 1000):
            attention.processors = lambda device, n=programs: n
            latent.latent_attention(torch.randn(4, 128, 512).to(dtype), q, cache, meta, 0.1)


def launch_recurrent(dtype: torch.dtype) -> None:
    """Call the ops of recurrent layers at the sizes of Qwen3-Next, Kimi Linear and Mamba-2."""
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("causal_conv1d", (700, 4, "silu")), ("causal_conv1d", (64, 3, "gated")),
        ("gated_delta_rule", (2, 4, 128, 128)), ("kimi", (2, 2, 128, 128)),
        ("mamba2_scan", (1, 4, 128, 64)),
    ]  # fmt: skip
    for op, shape in cases:
        case = Case(op, 3, shape, dtype)
        getattr(recurrent, case.op)(*case.rows, case.rules, case.state(2), one(3, 1, 0))
    x = torch.randn(2, 96).to(dtype)
    recurrent.gated_norm(x, x, GatedNorm(torch.ones(3, 32), 1e-6, "silu"))
    recurrent.gated_norm(x, x, GatedNorm(None, 1e-6, "sigmoid"))
    recurrent.gated_norm(x, x, GatedNorm(None, 1e-6, "factor"))


def launch_sampling() -> None:
    """Sample with every edit at a vocabulary of several blocks."""
    ids, values = np.arange(3), np.ones(3, np.float32)
    edits = LogitEdits(banned=ids, bias_ids=ids, bias=values, counted=ids, counts=values)
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1)
    table = torch.randn(2, 9000)
    sampling.sample(table, [SampleRow(1, params, 7, edits), SampleRow(0, params, 2**63)])
    sampling.report(table, [ReportedRow(1, 0, 2)], "raw_logprobs")
    device: Any = SimpleNamespace(
        torch=table.device,
        stage=lambda arrays: SimpleNamespace(send=lambda: [*map(torch.from_numpy, arrays)]),
        pinned=lambda nbytes: torch.zeros(nbytes, dtype=torch.uint8),
        record=lambda: None,
    )
    last, slots = TritonLastTokens(device, 4), torch.arange(2)
    last.fill(slots)
    last.choose(table, slots, [])
    last.choose(table, slots, [SampleRow(1, params, 7)])


UNIT = re.compile(r"wgmma\.mma_async\.sync\.aligned\.(m64)n(\d+)(k\S+) [^;]*?, (\S+), 1, 1[^;]*;")
"""Its rows of x, the rest of its shape and its types, and whether it adds: 0 if it does not."""


def check_units(card: FakeCard) -> None:
    """Compare what Hopper's matrix units do for few and many rows of x: all but their number.

    8-bit floats are summed 128 columns at a time: four instructions, of which the first begins with
    zeros.
    """
    dense = DenseWeight(torch.randn(130, 2048).to(torch.bfloat16), None, "none")
    float8 = coded([quantized("float8", 130, 2048, seed=1)], None, "none", 1, torch.bfloat16)
    for weight, kind in ((dense, "k16.f32.bf16.bf16"), (float8, "k32.f32.e4m3.e4m3")):
        assert weight is not None
        for rows_of_x, wanted in ((1, 16), (30, 32), (64, 64), (65, 128), (600, 128)):
            before = len(card.texts)
            linear.linear(torch.randn(rows_of_x, 2048).to(torch.bfloat16), weight)
            found = [UNIT.findall(text) for text in card.texts[before:]]
            (units,) = [each for each in found if each]
            assert {unit[:3] for unit in units} == {("m64", str(wanted), kind)}, units
            if weight is float8:
                begins = [unit[3] == "0" for unit in units]
                assert begins == [True, False, False, False] * (len(units) // 4), units


def check_amd_units(card: FakeCard) -> None:
    """Compare the instructions of tiles of 16, 32, 64 and 128 rows of x."""
    dense = DenseWeight(torch.randn(130, 2048).to(torch.bfloat16), None, "none")
    found = []
    for rows_of_x in (1, 30, 64, 600):
        before = len(card.texts)
        linear.linear(torch.randn(rows_of_x, 2048).to(torch.bfloat16), dense)
        found.append({u for text in card.texts[before:] for u in re.findall(r"v_mfma_\w+", text)})
    assert len(found[0]) == 1, found
    assert found == found[:1] * 4, found


def main() -> None:
    card = FakeCard(sys.argv[1])
    card.insert()
    torch.empty = torch.zeros  # no kernel writes: a token must not be NaN
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        launch_everything(dtype, card.capability)
    if card.capability == 90:
        check_units(card)
    if card.amd:
        check_amd_units(card)
    compiled = sorted({kernel.name for kernel in card.kernels})
    print(len(card.kernels), "kernels compiled:", *compiled)


if __name__ == "__main__":
    main()
