"""What each rank has of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from quire.checkpoint.presets import preset_config
from quire.core.config import RankShare
from quire.core.dtypes import FLOAT32, HostArray
from quire.core.errors import CheckpointError, ConfigError
from quire.core.model_config import ModelConfig
from quire.core.quantization import Form
from quire.core.quantized import QuantizedWeight, dense
from quire.lora.peft import Delta
from quire.models import adapters
from quire.models.adapters import lora_targets, own_deltas, shared_delta
from quire.models.layout import parameters
from quire.models.parameters import Parameter
from quire.models.registry import model_config
from quire.models.weights.row_order import packed_rows, packed_runs
from quire.models.weights.sharded import SharedParameters
from quire.models.weights.shares import column_run, row_runs, shared_config, shared_model
from quire.ops.providers import load_ops
from quire.quant.names import NAMES, RANDOM_ONLY, rounding
from tests.unit.executor.configs import TINY, config

MODEL = replace(
    TINY,
    hidden_size=64,
    intermediate_size=512,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=64,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
)
PREFIX = "layers.1."


class Random:
    """The parameters of a model, with biases, linear ones rounded if `rounded` says."""

    dtype = FLOAT32

    def __init__(self, model: ModelConfig, rounded: str | None = None, pieces: int = 1) -> None:
        draw = np.random.default_rng(3)
        self.all = {p.name: draw.standard_normal(p.shape, np.float32) for p in parameters(model)}
        self._rounder = rounding(rounded).layers if rounded else None
        self._pieces = pieces

    def has(self, name: str) -> bool:
        return name in self.all

    def parts(self, name: str) -> list[HostArray] | list[QuantizedWeight]:
        pieces = np.array_split(self.all[name], self._pieces)
        if self._rounder is None:
            return pieces
        return [self._rounder.quantize(piece) for piece in pieces]

    def tensor(self, name: str) -> HostArray:
        return self.all[name]


def shares(source: Random, ranks: int) -> list[SharedParameters]:
    return [SharedParameters(source, RankShare(r, ranks, MODEL, {})) for r in range(ranks)]


def whole(parts: list[HostArray] | list[QuantizedWeight]) -> HostArray:
    return np.concatenate([dense(part, FLOAT32) for part in parts])


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_shares_fit_their_model(ranks: int) -> None:
    for rank, share in enumerate(shares(Random(MODEL, pieces=5), ranks)):
        wanted = {p.name: p.shape for p in parameters(shared_model(MODEL, rank, ranks))}
        for name, shape in wanted.items():
            if rank and name.endswith((".attn.out.bias", ".mlp.down.bias")):
                assert not share.has(name)
                continue
            assert share.has(name)
            assert share.tensor(name).shape == whole(share.parts(name)).shape == shape
            assert np.array_equal(share.tensor(name), whole(share.parts(name)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_have_whole_heads(ranks: int) -> None:
    """Where there are fewer key-value heads than ranks, neighbours have the same one."""
    source = Random(MODEL)
    q, k, v = np.split(source.tensor(f"{PREFIX}attn.qkv.weight"), (512, 640))
    for rank, share in enumerate(shares(source, ranks)):
        heads, first = 8 // ranks, rank * 2 // ranks
        rows = slice(64 * heads * rank, 64 * heads * (rank + 1))
        kv = slice(64 * first, 64 * (first + 1))
        assert np.array_equal(
            share.tensor(f"{PREFIX}attn.qkv.weight"), np.concatenate([q[rows], k[kv], v[kv]])
        )


def test_ranks_have_runs_of_the_vocabulary() -> None:
    """Which need not be divisible."""
    model = replace(MODEL, vocab_size=70)
    source = Random(model)
    for name in ("embed.weight", "lm_head.weight"):
        parts = [
            SharedParameters(source, RankShare(rank, 4, model, {})).tensor(name)
            for rank in range(4)
        ]
        assert [len(part) for part in parts] == [17, 18, 17, 18]
        assert np.array_equal(np.concatenate(parts), source.tensor(name))
    assert [shared_model(model, rank, 4).vocab_run for rank in range(2)] == [(0, 17), (17, 18)]


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("preset", ["llama-3.2-1b", "gpt2", "opt-125m", "phi-3-mini"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_adapters_are_cut_as_their_layers(preset: str, ranks: int) -> None:
    """What a rank adds to its part of a weight is the part of what one process adds."""
    hf = preset_config(preset)
    assert hf is not None
    small = {"num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 512}
    model = replace(model_config(hf), **small)
    random = np.random.default_rng(1)

    def normal(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return random.standard_normal((rows, columns), dtype=np.float32)

    weights = {p.name.removesuffix(".weight"): p for p in parameters(model)}
    layers: dict[str, list[Delta]] = {}
    for module, target in lora_targets(model).items():
        delta = Delta(module, target, normal(2, target.columns), normal(2, target.rows), 1.0)
        layers.setdefault(target.stem, []).append(delta)
    for stem, deltas in layers.items():
        product = np.concatenate([delta.b.T @ delta.a for delta in deltas])
        for rank in range(ranks):
            share = RankShare(rank, ranks, model, {})
            cut = [shared_delta(share, delta) for delta in deltas]
            runs = row_runs(weights[stem], share) or [(0, len(product))]
            first, count = column_run(weights[stem], share) or (0, product.shape[1])
            rows = np.concatenate([product[at : at + count] for at, count in runs])
            np.testing.assert_allclose(
                np.concatenate([delta.b.T @ delta.a for delta in cut]),
                rows[:, first : first + count],
                rtol=1e-5,
                atol=1e-5,
            )


def test_a_change_of_one_layer_looks_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter changes all layers, so the time to load it would grow with their square."""
    lora_targets(MODEL)
    asked = []

    def counted(parameter: Parameter, rows: Sequence[int]) -> list[tuple[int, int, int]]:
        asked.append(parameter.stem)
        return packed_runs(parameter, rows)

    monkeypatch.setattr(adapters, "packed_runs", counted)
    module, target = next(reversed(lora_targets(MODEL).items()))
    a, b = (np.zeros((2, n), np.float32) for n in (target.columns, target.rows))
    assert len(own_deltas(config(model=MODEL), Delta(module, target, a, b, 1.0))) == 1
    assert asked == [target.stem]


HYBRID = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
HYBRID |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
HYBRID |= {"max_position_embeddings": 64}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
DELTA |= {"linear_value_head_dim": 12, "layer_types": ["linear_attention"]}
BOTH = {"layer_types": ["linear_attention", "full_attention"]}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}


@pytest.mark.parametrize(
    ("changes", "divided"),
    [
        ({"model_type": "lfm2", "layer_types": ["conv"]}, True),
        ({"model_type": "qwen3_5_text", "num_hidden_layers": 2} | DELTA | BOTH, True),
        (
            {"model_type": "qwen3_next", "shared_expert_intermediate_size": 32} | DELTA | EXPERTS,
            True,
        ),
        (
            {"model_type": "kimi_linear", "num_key_value_heads": 4, "linear_num_heads": 4}
            | {"linear_head_dim": 8, "kv_lora_rank": 16, "mlp_layer_types": ["dense"]},
            True,
        ),
        ({"model_type": "mamba2", "num_heads": 8, "head_dim": 16, "n_groups": 2}, True),
        ({"model_type": "mamba2", "num_heads": 8, "head_dim": 16, "n_groups": 1}, False),
    ],
)
def test_recurrent_layers_are_cut_or_whole(changes: dict[str, Any], divided: bool) -> None:
    """Adapters too, in the order in which the rank's own rows are packed."""
    model = model_config(HYBRID | changes)
    random = np.random.default_rng(1)
    deltas: dict[str, list[Delta]] = {}
    for module, target in lora_targets(model).items():
        a, b = (random.standard_normal((2, n), np.float32) for n in (target.columns, target.rows))
        deltas.setdefault(target.stem, []).append(Delta(module, target, a, b, 1.0))
    source = Random(model)
    for stem, each in deltas.items():
        source.all[f"{stem}.weight"] = np.concatenate([delta.b.T @ delta.a for delta in each])
    for rank in range(2):
        mine = shared_config(config(model=model, tensor_parallel_size=2), rank)
        assert mine.share is not None
        share = SharedParameters(source, mine.share)
        own = {p.name: p for p in parameters(mine.model)}
        for name, parameter in own.items():
            assert whole(share.parts(name)).size == parameter.numel
        for stem, each in deltas.items():
            packed = whole(packed_rows(own[f"{stem}.weight"], share.parts(f"{stem}.weight")))
            parts = [part for delta in each for part in own_deltas(mine, delta)]
            parts.sort(key=lambda part: part.target.part)
            added = np.concatenate([part.b.T @ part.a for part in parts])
            np.testing.assert_allclose(added, packed, rtol=1e-5, atol=1e-5)
        assert model.recurrent is not None
        assert mine.model.recurrent is not None
        sizes = [config.state[0][1] for config in (model.recurrent, mine.model.recurrent)]
        assert sizes[0] == sizes[1] * (1 + divided)


@pytest.mark.parametrize("name", sorted(NAMES.keys() - RANDOM_ONLY))
def test_quantized_weights_are_cut_as_they_are(name: str) -> None:
    """Two ranks have the codes of one, and their products add up to the one's."""
    source = Random(MODEL, name)
    ops = load_ops("cpu")
    both = shares(source, 2)
    down, up = f"{PREFIX}mlp.down.weight", f"{PREFIX}mlp.gate_up.weight"
    expected = whole(source.parts(down))
    assert np.array_equal(np.hstack([whole(share.parts(down)) for share in both]), expected)
    gate, inner = np.split(whole(source.parts(up)), 2)
    for share, gates, inners in zip(both, np.split(gate, 2), np.split(inner, 2), strict=True):
        assert np.array_equal(whole(share.parts(up)), np.concatenate([gates, inners]))
    x = np.random.default_rng(4).standard_normal((3, 512), np.float32)
    sums = np.zeros((3, len(expected)), np.float32)
    for share, part in zip(both, np.hsplit(x, 2), strict=True):
        packed = ops.pack_linear(share.parts(down))
        sums += ops.numpy(ops.linear(ops.array(part.copy()), packed))
    product = x @ expected.T
    error = np.linalg.norm(sums - product) / np.linalg.norm(product)
    assert error < 0.02  # activations are rounded to 8 bits


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "3 attention heads"),
        ({"num_attention_heads": 6, "num_key_value_heads": 3}, "3 key-value heads"),
        ({"intermediate_size": 25}, "inner layer of 25"),
        ({"vocab_size": 1}, "vocabulary has 1 tokens"),
    ],
)
def test_models_that_cannot_be_dealt_out(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        shared_model(replace(TINY, **changes), 0, 2)


def form_of(form: Form, ranks: int = 2) -> Form | None:
    name = f"{PREFIX}mlp.down.weight"
    whole_config = config(model=MODEL, weight_forms={name: [form]}, tensor_parallel_size=ranks)
    return shared_config(whole_config, 0).weight_forms[name][0]


def test_forms_of_shares() -> None:
    rows = Form("int8", 8, 512)
    assert form_of(rows) == replace(rows, group=256)
    groups = Form("uint8", 4, 128)
    assert form_of(groups) == groups
    with pytest.raises(ConfigError, match="act-order"):
        form_of(replace(groups, permuted=True))
    with pytest.raises(ConfigError, match="groups of 128 columns"):
        form_of(groups, ranks=8)


def test_a_file_that_turns_out_to_be_out_of_order() -> None:
    class Permuted(Random):
        def parts(self, name: str) -> list[QuantizedWeight]:
            (part,) = super().parts(name)
            assert isinstance(part, QuantizedWeight)
            return [replace(part, permutation=np.arange(part.shape[1])[::-1].copy())]

    (share, _) = shares(Permuted(MODEL, "gptq"), 2)
    with pytest.raises(CheckpointError, match=r"mlp\.down\.weight cannot be dealt out"):
        share.parts(f"{PREFIX}mlp.down.weight")


def test_memory_and_threads_are_dealt_out() -> None:
    given = config(tensor_parallel_size=2, num_threads=5, kv_cache_memory_bytes=1001)
    share = shared_config(given, 1)
    assert share.num_threads == 2
    assert share.memory_budget_bytes == given.memory_budget_bytes // 2
    assert share.kv_cache_memory_bytes == 500
    assert share.share == RankShare(1, 2, TINY, {})
