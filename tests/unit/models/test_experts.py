"""Experts in checkpoints: one by one, or all of a layer in one tensor; and what does not fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from quire.checkpoint.tensor_info import TensorInfo
from quire.core.dtypes import BFLOAT16, FLOAT32
from quire.core.errors import CheckpointError
from quire.core.model_config import ModelConfig
from quire.core.quantized import QuantizedWeight, dense
from quire.models.adapters import lora_targets
from quire.models.forms import stored_forms
from quire.models.layout import parameters
from quire.models.registry import architecture, model_config
from quire.models.weights.shares import shared_model
from quire.models.weights.sources import match
from quire.models.weights.stacks import Stacked, stacks
from quire.models.weights.stored import StoredParameters
from tests.unit.models.test_loader import MemoryWeights

EXPERTS, HIDDEN, WIDTH = 4, 32, 6
Arrays = dict[str, npt.NDArray[Any]]
CONFIG: dict[str, Any] = {
    "model_type": "qwen2_moe",
    "vocab_size": 11,
    "hidden_size": HIDDEN,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "mlp_only_layers": [0],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": WIDTH,
    "shared_expert_intermediate_size": 10,
}
BLOCK = "model.layers.1.mlp.experts"
UP, DOWN = "layers.1.mlp.experts.gate_up.weight", "layers.1.mlp.experts.down.weight"


@pytest.fixture
def model() -> ModelConfig:
    return model_config(CONFIG)


@pytest.fixture
def arrays(model: ModelConfig) -> Arrays:
    """Random tensors, each expert's apart."""
    names, draw = architecture(model.architecture).names, np.random.default_rng(0)
    return {
        source: draw.standard_normal((rows, *parameter.shape[1:])).astype(np.float32)
        for parameter in parameters(model)
        for source, rows in names.stored(parameter)
    }


def each(arrays: Arrays, part: str) -> npt.NDArray[np.float32]:
    """One projection of all experts, [experts, out, in]."""
    return np.stack([arrays[f"{BLOCK}.{e}.{part}_proj.weight"] for e in range(EXPERTS)])


def without_experts(arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if not name.startswith(BLOCK)}


def fused(arrays: Arrays) -> Arrays:
    gate_up = np.concatenate([each(arrays, "gate"), each(arrays, "up")], axis=1)
    own = {f"{BLOCK}.gate_up_proj": gate_up, f"{BLOCK}.down_proj": each(arrays, "down")}
    return without_experts(arrays) | own


def ggufs(arrays: Arrays) -> Arrays:
    own = {f"{BLOCK}.{part}_proj.weight": each(arrays, part) for part in ("gate", "up", "down")}
    return without_experts(arrays) | own


def read(arrays: Arrays, model: ModelConfig, name: str) -> npt.NDArray[Any]:
    parts = StoredParameters(MemoryWeights(arrays), model, FLOAT32).parts(name)
    return np.concatenate([dense(part, FLOAT32) for part in parts])


@pytest.mark.parametrize("store", [dict, fused, ggufs])
def test_an_experts_rows_follow_each_other(store: Any, arrays: Arrays, model: ModelConfig) -> None:
    gate, up, down = (each(arrays, part) for part in ("gate", "up", "down"))
    kept = store(arrays)
    expected = np.concatenate([gate, up], axis=1).reshape(-1, HIDDEN)
    assert np.array_equal(read(kept, model, UP), expected)
    assert np.array_equal(read(kept, model, DOWN), down.reshape(-1, WIDTH))


def test_progress_ends_at_the_whole(arrays: Arrays, model: ModelConfig) -> None:
    """Also where many pieces are of one tensor."""
    seen: list[tuple[int, int]] = []
    weights = MemoryWeights(fused(arrays))
    source = StoredParameters(weights, model, FLOAT32, lambda *at: seen.append(at))
    for parameter in parameters(model):
        source.parts(parameter.name)
    assert seen[-1] == (weights.nbytes, weights.nbytes)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_cuts(interleaved: bool, transposed: bool) -> None:
    stored = np.arange(2 * 6 * 5).reshape(2, 6, 5)  # [experts, rows, columns]
    for part, cut in enumerate(Stacked("x", transposed, interleaved).cuts((3, 3))):
        of = stored.swapaxes(1, 2) if transposed else stored
        found = cut.of(of, 3, transposed=transposed)
        rows = slice(part, 6, 2) if interleaved else slice(3 * part, 3 * part + 3)
        assert np.array_equal(found.T if transposed else found, stored[0, rows])


class CodedWeights(MemoryWeights):
    """Q8_0 experts, as a GGUF file has them."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        for name, info in self.tensors.items():
            if name.startswith((f"{BLOCK}.gate", f"{BLOCK}.up")):
                self.tensors[name] = TensorInfo(name, "Q8_0", info.shape, info.nbytes, info.file)
        self.reads = 0

    def quantized(self, name: str) -> QuantizedWeight:
        self.reads += 1
        codes = self.arrays[name].reshape(-1, HIDDEN).astype(np.int8)
        return QuantizedWeight(codes, 8, np.ones((len(codes), 1), np.float32), 32)


def test_codes_of_all_experts_are_read_once(arrays: Arrays, model: ModelConfig) -> None:
    kept = {name: np.round(9 * array) for name, array in ggufs(arrays).items()}
    weights = CodedWeights(kept)
    parts = StoredParameters(weights, model, FLOAT32).parts(UP)
    assert weights.reads == 2  # gate and up
    assert len(parts) == 2 * EXPERTS
    for expert in range(EXPERTS):
        for part, name in zip(parts[2 * expert : 2 * expert + 2], ("gate", "up"), strict=True):
            expected = kept[f"{BLOCK}.{name}_proj.weight"][expert]
            assert np.array_equal(dense(part, FLOAT32), expected)
    assert len(stored_forms(weights, model, None)[UP]) == 2  # of one expert: all are alike


def test_a_missing_expert_is_named(arrays: Arrays, model: ModelConfig) -> None:
    names = architecture(model.architecture).names
    del arrays[f"{BLOCK}.2.up_proj.weight"]
    with pytest.raises(CheckpointError, match=re.escape(f"{BLOCK}.2.up_proj.weight' is missing")):
        match(MemoryWeights(arrays), parameters(model), names)


@pytest.mark.parametrize("count", [3, 5])
def test_another_number_of_experts(count: int, arrays: Arrays) -> None:
    model, names = model_config(CONFIG | {"num_experts": count}), architecture("qwen2_moe").names
    for store in (dict, fused):
        with pytest.raises(
            CheckpointError, match=rf"mlp.gate.weight' .*: expected \[{count}, 32\]"
        ):
            match(MemoryWeights(store(arrays)), parameters(model), names)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["gate", "shared_expert_gate"])
def test_a_router_that_is_not_finite(
    name: str, value: float, arrays: Arrays, model: ModelConfig
) -> None:
    parameter = f"layers.1.mlp.{'router' if name == 'gate' else 'shared_gate'}.weight"
    read(arrays, model, parameter)
    arrays[f"model.layers.1.mlp.{name}.weight"][0, 5] = value
    with pytest.raises(CheckpointError, match=rf"mlp\.{name}\.weight', the router of layer 1, has"):
        read(arrays, model, parameter)


def test_groups_that_do_not_divide() -> None:
    config = {"model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 2}
    with pytest.raises(CheckpointError, match="8 experts do not form 3 equal groups"):
        model_config(CONFIG | config | {"n_group": 3})


def test_more_choices_than_experts() -> None:
    with pytest.raises(CheckpointError, match=r"top_k is 2, for 1 experts") as error:
        model_config(CONFIG | {"num_experts": 1})
    assert error.value.param == "num_experts_per_tok"


def test_only_experts_are_stacked(model: ModelConfig) -> None:
    names = architecture(model.architecture).names
    found = {p.name for p in parameters(model) if stacks(names, p, _Everything())}
    assert found == {UP, DOWN}


class _Everything:
    def __contains__(self, name: object) -> bool:
        return True


def test_a_rank_has_a_part_of_every_expert(model: ModelConfig) -> None:
    share = shared_model(model, 0, 2).moe
    assert (share.intermediate_size, share.shared_size) == (WIDTH // 2, 5)
    assert (share.num_experts, share.route) == (EXPERTS, model.moe.route)


def test_adapters_change_no_expert(model: ModelConfig) -> None:
    targets = lora_targets(model)
    assert "model.layers.0.mlp.down_proj" in targets
    assert not any(name.startswith("model.layers.1.mlp") for name in targets)


def test_routers_are_no_linear_layers_to_quantize(model: ModelConfig) -> None:
    kinds = {p.name: p.kind for p in parameters(model)}
    assert kinds["layers.1.mlp.router.weight"] == "router"
    assert kinds["layers.1.mlp.shared_gate.weight"] == "router"
    assert kinds["layers.1.mlp.shared.gate_up.weight"] == kinds[UP] == "linear"


def test_weights_come_in_the_models_dtype(arrays: Arrays, model: ModelConfig) -> None:
    source = StoredParameters(MemoryWeights(fused(arrays)), model, BFLOAT16)
    assert {part.dtype for part in source.parts(UP) if isinstance(part, np.ndarray)} == {BFLOAT16}
