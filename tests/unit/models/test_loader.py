"""Loading: strict, fused, converted; and random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from quire.checkpoint.tensor_info import TensorInfo
from quire.checkpoint.weights import Weights
from quire.core.config import OpsProvider
from quire.core.dtypes import BFLOAT16, FLOAT32, DType, HostArray, dtype_of
from quire.core.errors import CheckpointError
from quire.core.model_config import ModelConfig
from quire.models.decoder import Decoder
from quire.models.layout import parameters
from quire.models.parameters import ParameterSource
from quire.models.registry import architecture, model_config
from quire.models.weights.dummy import RandomParameters
from quire.models.weights.stored import StoredParameters
from quire.ops.providers import load_ops
from tests.fuzz.engines import BASE, MODELS

VOCAB, HIDDEN, WIDTH, HEAD_DIM = 11, 8, 12, 4

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": VOCAB,
    "n_embd": HIDDEN,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 16,
}


class MemoryWeights(Weights):
    """Tensors that were never in a file."""

    def __init__(self, arrays: dict[str, npt.NDArray[Any]], dtype: str = "F32") -> None:
        self.arrays = arrays
        self.released: list[str] = []
        self.aliases = {}
        self.tensors = {
            name: TensorInfo(name, dtype, array.shape, array.nbytes, Path("memory"))
            for name, array in arrays.items()
        }

    def read(self, name: str) -> npt.NDArray[Any]:
        return self.arrays[name]

    def release(self, name: str) -> None:
        self.released.append(name)


def stored(config: ModelConfig) -> dict[str, npt.NDArray[Any]]:
    """Random tensors under the names and in the shapes that Hugging Face gives them."""
    names, draw, arrays = architecture(config.architecture).names, np.random.default_rng(0), {}
    for parameter in parameters(config):
        sources = names.sources(parameter.name)
        parts = parameter.parts if len(sources) > 1 else (parameter.shape[0],)
        for source, rows in zip(sources, parts, strict=True):
            array = draw.standard_normal((rows, *parameter.shape[1:])).astype(np.float32)
            arrays[source] = array.T.copy() if names.is_transposed(parameter.name) else array
    return arrays


@pytest.fixture
def llama() -> ModelConfig:
    return model_config(LLAMA)


@pytest.fixture
def tied() -> ModelConfig:
    return model_config(LLAMA | {"tie_word_embeddings": True})


def read_all(source: ParameterSource, config: ModelConfig) -> dict[str, HostArray]:
    return {p.name: source.tensor(p.name) for p in parameters(config) if source.has(p.name)}


def load(arrays: dict[str, npt.NDArray[Any]], config: ModelConfig) -> dict[str, HostArray]:
    return read_all(StoredParameters(MemoryWeights(arrays), config, FLOAT32), config)


def test_parts_are_fused_in_order(llama: ModelConfig) -> None:
    arrays = stored(llama)
    tensors = load(arrays, llama)
    assert set(tensors) == {p.name for p in parameters(llama)}
    layer = "model.layers.1."
    qkv = [arrays[f"{layer}self_attn.{part}_proj.weight"] for part in "qkv"]
    assert np.array_equal(tensors["layers.1.attn.qkv.weight"], np.concatenate(qkv))
    gate_up = [arrays[f"{layer}mlp.{part}_proj.weight"] for part in ("gate", "up")]
    assert np.array_equal(tensors["layers.1.mlp.gate_up.weight"], np.concatenate(gate_up))


def test_gpt2_is_transposed() -> None:
    config = model_config(GPT2)
    arrays = stored(config)
    assert arrays["transformer.h.0.attn.c_attn.weight"].shape == (HIDDEN, 3 * HIDDEN)
    tensors = load(arrays, config)
    assert np.array_equal(
        tensors["layers.0.attn.qkv.weight"], arrays["transformer.h.0.attn.c_attn.weight"].T
    )
    assert tensors["layers.0.attn.qkv.weight"].flags.c_contiguous


@pytest.mark.parametrize(("config", "prefix"), [(LLAMA, "model."), (GPT2, "transformer.")])
def test_names_without_the_base_prefix(config: dict[str, Any], prefix: str) -> None:
    model = model_config(config)
    arrays = stored(model)
    bare = {name.removeprefix(prefix): array for name, array in arrays.items()}
    expected, got = load(arrays, model), load(bare, model)
    assert all(np.array_equal(got[name], expected[name]) for name in expected)


def test_buffers_of_old_checkpoints_are_ignored() -> None:
    model = model_config(GPT2)
    load(stored(model) | {"h.0.attn.bias": np.ones((1, 1, 16, 16), np.float32)}, model)
    model = model_config(LLAMA)
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}
    load(stored(model) | buffer, model)


def test_tied_weights_under_either_name(tied: ModelConfig) -> None:
    arrays = stored(tied)
    assert "lm_head.weight" not in arrays
    expected = arrays["model.embed_tokens.weight"]
    assert np.array_equal(load(arrays, tied)["embed.weight"], expected)
    both = arrays | {"lm_head.weight": expected.copy()}
    assert "lm_head.weight" not in load(both, tied)
    del both["model.embed_tokens.weight"]
    assert np.array_equal(load(both, tied)["embed.weight"], expected)


def test_tied_weights_that_differ(tied: ModelConfig) -> None:
    arrays = stored(tied)
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"] + 1
    with pytest.raises(CheckpointError, match=r"lm_head\.weight' differ"):
        load(arrays, tied)
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"].astype(np.float64)
    load(arrays, tied)
    arrays["lm_head.weight"][-1, -1] += 1e-9
    with pytest.raises(CheckpointError, match=r"lm_head\.weight' differ"):
        load(arrays, tied)


def test_aliases_are_followed(llama: ModelConfig) -> None:
    arrays = stored(llama)
    del arrays["lm_head.weight"]
    weights = MemoryWeights(arrays)
    weights.aliases = {"lm_head.weight": "model.embed_tokens.weight"}
    tensors = read_all(StoredParameters(weights, llama, FLOAT32), llama)
    assert np.array_equal(tensors["lm_head.weight"], tensors["embed.weight"])


def test_missing(llama: ModelConfig) -> None:
    arrays = stored(llama)
    del arrays["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(
        CheckpointError, match=r"'model\.layers\.1\.self_attn\.k_proj\.weight' is missing.*\[4, 8\]"
    ):
        load(arrays, llama)


def test_an_untied_head_is_not_made_up(llama: ModelConfig) -> None:
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        arrays = stored(llama)
        del arrays[name]
        with pytest.raises(CheckpointError, match="is missing"):
            load(arrays, llama)


def test_wrong_shape(llama: ModelConfig) -> None:
    arrays = stored(llama)
    arrays["model.embed_tokens.weight"] = np.ones((VOCAB + 1, HIDDEN), np.float32)
    with pytest.raises(
        CheckpointError, match=r"embed_tokens\.weight.*expected \[11, 8\], got \[12, 8\]"
    ):
        load(arrays, llama)


def test_unexpected(llama: ModelConfig) -> None:
    arrays = stored(llama)
    arrays |= {f"model.layers.1.mlp.act{i}.bias": np.ones(8, np.float32) for i in range(7)}
    with pytest.raises(CheckpointError, match=r"Unexpected.*act4\.bias.*and 2 more"):
        load(arrays, llama)


def test_tensors_that_change_no_answer(
    llama: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    name = "model.layers.1.self_attn.o_proj.bias"
    more = {"v_head.summary.weight": np.ones((1, 8), np.float32), name: np.zeros(8, np.float32)}
    load(stored(llama) | more, llama)
    assert "checkpoint's v_head.summary.weight are not read" in caplog.text
    more[name][3] = 1
    with pytest.raises(CheckpointError, match=r"o_proj\.bias' is a bias, .* and not zero"):
        load(stored(llama) | more, llama)


@pytest.mark.parametrize("base", ["model.", ""])
def test_layers_that_the_config_does_not_count(
    llama: ModelConfig, caplog: pytest.LogCaptureFixture, base: str
) -> None:
    """As with --hf-overrides '{"num_hidden_layers": …}', and as in Transformers."""
    arrays = stored(llama)
    last = f"model.layers.{llama.num_hidden_layers - 1}."
    more = {
        name.replace(last, f"model.layers.{layer}."): array + 1
        for name, array in arrays.items()
        for layer in (llama.num_hidden_layers, 11)
        if name.startswith(last)
    }
    expected = load(arrays, llama)
    head = arrays.pop("lm_head.weight")
    both = {name.replace("model.", base, 1): array for name, array in (arrays | more).items()}
    got = load(both | {"lm_head.weight": head}, llama)
    assert all(np.array_equal(got[name], expected[name]) for name in expected)
    count = f"layer {llama.num_hidden_layers} and later, {len(more)} in all"
    assert count in caplog.text


def test_the_head_of_published_gpt_neox_files(llama: ModelConfig) -> None:
    arrays = stored(llama)
    expected = load(dict(arrays), llama)
    arrays["embed_out.weight"] = arrays.pop("lm_head.weight")
    assert np.array_equal(load(arrays, llama)["lm_head.weight"], expected["lm_head.weight"])


def test_duplicate(llama: ModelConfig) -> None:
    arrays = stored(llama)
    arrays["norm.weight"] = arrays["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"'model\.norm\.weight' is stored twice"):
        load(arrays, llama)


def test_not_floating_point(llama: ModelConfig) -> None:
    arrays = stored(llama)
    arrays["model.norm.weight"] = np.ones(HIDDEN, np.int8)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight' has dtype"):
        load(arrays, llama)


def test_bfloat16(llama: ModelConfig) -> None:
    arrays = stored(llama)
    expected = load(arrays, llama)
    halves = {name: array.astype(BFLOAT16) for name, array in arrays.items()}
    for array in halves.values():
        array.flags.writeable = False
    got = read_all(StoredParameters(MemoryWeights(halves, "BF16"), llama, FLOAT32), llama)
    assert all(
        np.array_equal(got[name], expected[name].astype(BFLOAT16).astype(np.float32))
        for name in expected
    )


def test_float16_overflow_is_an_error(llama: ModelConfig) -> None:
    arrays = stored(llama)
    arrays["model.norm.weight"][3] = 1e5
    source = StoredParameters(MemoryWeights(arrays), llama, dtype_of("float16"))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*float16 cannot hold"):
        source.tensor("norm.weight")


def test_progress_reaches_the_total(llama: ModelConfig) -> None:
    weights, seen = MemoryWeights(stored(llama)), list[tuple[int, int]]()
    source = StoredParameters(
        weights, llama, FLOAT32, lambda done, total: seen.append((done, total))
    )
    read_all(source, llama)
    assert seen[-1] == (weights.nbytes, weights.nbytes)
    assert seen == sorted(seen)


def test_a_parameter_is_released_when_the_next_is_read(llama: ModelConfig) -> None:
    weights = MemoryWeights(stored(llama))
    source = StoredParameters(weights, llama, FLOAT32)
    parts = source.parts("layers.0.attn.qkv.weight")
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    for part, name in zip(parts, names, strict=True):
        assert part is weights.arrays[name]  # no copy
    assert weights.released == []
    source.tensor("norm.weight")
    assert weights.released == names


def random_tensors(config: ModelConfig, dtype: DType, seed: int) -> dict[str, HostArray]:
    return read_all(RandomParameters(config, dtype, seed), config)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_random_weights(llama: ModelConfig, dtype: DType) -> None:
    tensors = random_tensors(llama, dtype, seed=3)
    assert set(tensors) == {p.name for p in parameters(llama)}
    assert all(tensors[p.name].shape == p.shape for p in parameters(llama))
    again, other = random_tensors(llama, dtype, seed=3), random_tensors(llama, dtype, seed=4)
    assert all(np.array_equal(tensors[name], again[name]) for name in tensors)
    assert not np.array_equal(tensors["embed.weight"], other["embed.weight"])
    assert not np.array_equal(
        tensors["layers.0.mlp.down.weight"], tensors["layers.1.mlp.down.weight"]
    )
    assert np.array_equal(tensors["norm.weight"], np.ones(HIDDEN, dtype))


def test_random_factors_leave_something_of_results() -> None:
    """Gemma 4's of zeros made all its activations zeros."""
    shape = BASE | MODELS["gemma4-experts"]
    config = model_config(shape)
    source = RandomParameters(config, FLOAT32, seed=0)
    for name in ("layers.0.end.factor", "layers.0.mlp.router.factors"):
        assert bool((source.tensor(name) == 1).all())


def test_random_weights_of_a_large_tensor() -> None:
    """Longer than the pool: repeated, and still of the right spread."""
    config = model_config(LLAMA | {"vocab_size": 300_001, "tie_word_embeddings": True})
    source = RandomParameters(config, FLOAT32, seed=0)
    weight = source.tensor("embed.weight")
    assert float(weight.std()) == pytest.approx(0.02, rel=0.01)
    assert bool((weight[-5:] != 0).all())
    assert not np.array_equal(weight[0], weight[125_000])
    flat = weight.reshape(-1)
    assert np.array_equal(flat[:-1_000_003], flat[1_000_003:])


@pytest.mark.parametrize("provider", ["reference", "auto"])
def test_a_tied_embedding_is_stored_once(tied: ModelConfig, provider: OpsProvider) -> None:
    if provider == "reference":
        pytest.importorskip("torch")
    source = RandomParameters(tied, FLOAT32, seed=0)
    decoder = Decoder(tied, source, 16, load_ops(provider))
    assert decoder.embedding.weight is decoder._lm_head.weight
