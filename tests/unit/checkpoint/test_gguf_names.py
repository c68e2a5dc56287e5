"""gguf_names.py and gguf_config.py: GGUF's terms in Hugging Face's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf_config import generation_config, hf_config
from quire.checkpoint.gguf_names import NAMES
from quire.checkpoint.source import resolve
from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.models.weights.checkpoint import open_weights
from quire.models.weights.gguf_names import tensor_names, translate, translation_of
from tests.unit.checkpoint.make_files import (
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    VOCABULARY,
    llama_tensors,
    write_gguf,
)


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """Row order of q and k in a GGUF file, by the pairs that its RoPE rotates."""
    rows = weights.shape[0] // heads
    order = [
        head * rows + half * rows // 2 + pair
        for head in range(heads)
        for pair in range(rows // 2)
        for half in range(2)
    ]
    return weights[order]


def test_llama_names_shapes_and_row_order(tmp_path: Path) -> None:
    plain = llama_tensors()
    stored = dict(plain)
    for layer in range(LAYERS):
        for part, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS)):
            name = f"blk.{layer}.{part}.weight"
            stored[name] = permuted(plain[name], heads)
    weights = open_weights(resolve(str(write_gguf(tmp_path / "m.gguf", stored))))
    expected = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.1.self_attn.q_proj.weight": "blk.1.attn_q.weight",
        "model.layers.1.self_attn.k_proj.weight": "blk.1.attn_k.weight",
        "model.layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
        "model.layers.1.self_attn.o_proj.weight": "blk.1.attn_output.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
        "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    }
    assert len(weights.tensors) == len(plain)
    for name, origin in expected.items():
        assert weights.tensors[name].shape == plain[origin].shape
        assert np.array_equal(weights.read(name), plain[origin]), name


def test_gpt2_linear_layers_are_transposed(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tensors = {
        "token_embd.weight": random.standard_normal((VOCABULARY, HIDDEN), dtype=np.float32),
        "blk.0.attn_qkv.weight": random.standard_normal((3 * HIDDEN, HIDDEN), dtype=np.float32),
        "blk.0.attn_qkv.bias": random.standard_normal(3 * HIDDEN, dtype=np.float32),
    }
    source = resolve(str(write_gguf(tmp_path / "m.gguf", tensors, architecture="gpt2")))
    assert source.config["model_type"] == "gpt2"
    assert source.config["n_inner"] == INTERMEDIATE
    weights = open_weights(source)
    name = "transformer.h.0.attn.c_attn.weight"
    assert weights.tensors[name].shape == (HIDDEN, 3 * HIDDEN)
    assert np.array_equal(weights.read(name), tensors["blk.0.attn_qkv.weight"].T)
    assert np.array_equal(
        weights.read("transformer.h.0.attn.c_attn.bias"), tensors["blk.0.attn_qkv.bias"]
    )


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_stored_types(tmp_path: Path, name: str) -> None:
    type_ = gguf.GGMLQuantizationType[name]
    source = resolve(str(write_gguf(tmp_path / "m.gguf", type_=type_)))
    assert source.config["torch_dtype"] == ("float16" if name == "F16" else "bfloat16")
    weights = open_weights(source)
    key = "model.layers.0.self_attn.v_proj.weight"
    expected = gguf.quantize(llama_tensors()["blk.0.attn_v.weight"], type_)
    assert weights.tensors[key].dtype == name
    if name.startswith("Q"):
        expected = gguf.dequantize(expected, type_)
    assert weights.read(key).tobytes() == expected.tobytes()
    quantized = weights.quantized(key)
    assert (quantized is None) == (not name.startswith("Q"))
    assert quantized is None or quantized.dequantize().tobytes() == expected.tobytes()


def test_codes_of_q_and_k_are_in_hugging_face_s_order(tmp_path: Path) -> None:
    type_ = gguf.GGMLQuantizationType.Q8_0
    weights = open_weights(resolve(str(write_gguf(tmp_path / "m.gguf", type_=type_))))
    name = "model.layers.0.self_attn.q_proj.weight"
    codes = weights.quantized(name)
    stored = gguf.quantize(llama_tensors()["blk.0.attn_q.weight"], type_)
    values = codes.dequantize()
    assert values.tobytes() == weights.read(name).tobytes()
    assert permuted(values, HEADS).tobytes() == gguf.dequantize(stored, type_).tobytes()


def test_codes_of_a_transposed_layer_are_not_transposed(tmp_path: Path) -> None:
    type_ = gguf.GGMLQuantizationType.Q8_0
    matrix = np.random.default_rng(0).standard_normal((3 * HIDDEN, HIDDEN), dtype=np.float32)
    tensors = {"token_embd.weight": matrix, "blk.0.attn_qkv.weight": matrix}
    path = write_gguf(tmp_path / "m.gguf", tensors, architecture="gpt2", type_=type_)
    weights = open_weights(resolve(str(path)))
    codes = weights.quantized("transformer.h.0.attn.c_attn.weight")
    values = codes.dequantize()
    assert values.tobytes() == gguf.dequantize(gguf.quantize(matrix, type_), type_).tobytes()
    assert np.array_equal(weights.read("transformer.h.0.attn.c_attn.weight"), values.T)


def test_an_unreadable_type_names_the_tensor(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", llama_tensors() | {"output.weight": np.zeros(1, np.int8)}
    )
    source = resolve(str(path))  # the configuration can be read all the same
    with pytest.raises(UnsupportedModelError, match=r"'output.weight' has the type I8"):
        open_weights(source)


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    tensors = llama_tensors() | {"blk.0.attn_sinks.weight": np.zeros(4, dtype=np.float32)}
    with pytest.raises(UnsupportedModelError, match=r"'blk.0.attn_sinks.weight' is not known"):
        open_weights(resolve(str(write_gguf(tmp_path / "m.gguf", tensors))))


def config(tmp_path: Path, **options: Any) -> dict[str, Any]:
    return hf_config(GGUFFile(write_gguf(tmp_path / "m.gguf", **options)))


def test_llama_config(tmp_path: Path) -> None:
    found = config(
        tmp_path,
        llama__rope__freq_base=500000.0,
        tokenizer__ggml__bos_token_id=1,
        tokenizer__ggml__eos_token_id=2,
        tokenizer__ggml__eot_token_id=5,
    )
    assert found | {"rms_norm_eps": 0} == {
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": [2, 5],
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": 256,
        "mlp_bias": False,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 0,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": VOCABULARY,
    }
    assert np.float32(found["rms_norm_eps"]) == np.float32(1e-5)
    assert generation_config(found, {}) == {"bos_token_id": 1, "eos_token_id": [2, 5]}


def test_control_tokens_that_end_a_turn_by_their_names() -> None:
    def ends(tokens: Any, types: Any, eos: Any = 0) -> Any:
        vocabulary = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
        roles = {"bos_token_id": None, "eos_token_id": eos}
        return generation_config(roles, vocabulary).get("eos_token_id")

    tokens = ["</s>", "<|im_end|>", "<|end|>", "<|start|>", "<end_of_turn>"]
    assert ends(tokens, [3, 3, 3, 3, 1]) == [0, 1, 2]
    for name in ("<|return|>", "<|flush|>"):  # behind which <|end|> ends a part only
        assert ends([*tokens, name], [3, 3, 3, 3, 3, 3]) == [0, 1, 4, 5]
    assert ends(tokens, [3]) == [0]
    assert ends(tokens, [1] * 5, None) is None
    assert ends(7, "x", [2, 1]) == [2, 1]


def test_a_sliding_window_makes_llama_a_mistral(tmp_path: Path) -> None:
    found = config(tmp_path, llama__attention__sliding_window=64)
    assert found["model_type"] == "mistral"
    assert found["sliding_window"] == 64


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling(tmp_path: Path, kind: str) -> None:
    found = config(
        tmp_path,
        llama__rope__scaling__type=kind,
        llama__rope__scaling__factor=4.0,
        llama__rope__scaling__original_context_length=64,
    )
    assert found["rope_scaling"] == {
        "rope_type": kind,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }


GEMMA3 = {f"gemma3__attention__{key}": value for key, value in (
    ("sliding_window", 32), ("key_length", 24), ("value_length", 24), ("head_count", HEADS),
    ("head_count_kv", KV_HEADS), ("layer_norm_rms_epsilon", 1e-6),
)}  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ({}, {"sliding_window_pattern": 6}),
        ({"gemma3__attention__sliding_window_pattern": 2}, {"sliding_window_pattern": 2}),
        (
            {"gemma3__attention__sliding_window_pattern": [True, False]},
            {"layer_types": ["sliding_attention", "full_attention"]},
        ),
    ],
)
def test_gemma3_config(tmp_path: Path, pattern: dict[str, Any], found: dict[str, Any]) -> None:
    tensors = {"token_embd.weight": llama_tensors()["token_embd.weight"]}
    read = config(tmp_path, tensors=tensors, architecture="gemma3", **(GEMMA3 | pattern))
    assert found.items() <= read.items()
    assert ("layer_types" in read) != ("sliding_window_pattern" in read)
    assert read["model_type"] == "gemma3_text"
    assert (read["head_dim"], read["query_pre_attn_scalar"], read["sliding_window"]) == (24, 24, 32)
    assert (read["rope_theta"], read["rope_local_base_freq"]) == (1e6, 1e4)


def llama3_factors(factor: float, theta: float, head_dim: int) -> np.ndarray:
    """What llama.cpp's converter writes for Llama 3's scaling, term by term."""
    factors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / head_dim)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192 / 1:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def test_llama3_scaling_is_recovered(tmp_path: Path) -> None:
    factors = llama3_factors(32.0, 500000.0, HIDDEN // HEADS)
    tensors = llama_tensors() | {"rope_freqs.weight": factors}
    path = write_gguf(tmp_path / "m.gguf", tensors, llama__rope__freq_base=500000.0)
    source = resolve(str(path))
    assert source.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert not any("rope" in name for name in open_weights(source).tensors)


def test_other_frequency_factors_are_taken_as_they_are(tmp_path: Path) -> None:
    factors = np.linspace(1, 9, HIDDEN // HEADS // 2, dtype=np.float32)
    found = config(tmp_path, tensors=llama_tensors() | {"rope_freqs.weight": factors})
    assert found["rope_scaling"] == {
        "rope_type": "longrope",
        "short_factor": factors.tolist(),
        "long_factor": factors.tolist(),
        "attention_factor": 1.0,
        "original_max_position_embeddings": 256,
    }
    with pytest.raises(UnsupportedModelError, match=r"'rope_freqs.weight' is not F32 \[8\]"):
        config(tmp_path, tensors=llama_tensors() | {"rope_freqs.weight": factors[1:]})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"architecture": "mamba"}, "'mamba' is not supported"),
        ({"architecture": "bitnet"}, "no bitnet.hidden_activation: its gates may be SiLU or"),
        ({"architecture": "bitnet", "bitnet__hidden_activation": 1}, "is 1, not a string"),
        ({"architecture": "qwen3moe"}, "'qwen3moe', and has 0 experts"),
        ({"architecture": "qwen2", "qwen2__expert_count": 8}, "'qwen2', and has 8 experts"),
        ({"llama__expert_count": 8}, "expert_used_count is missing"),
        ({"llama__rope__scaling__type": "longrope"}, "'longrope' is not supported"),
        ({"llama__rope__dimension_count": 8}, "8 of 16 elements of a head"),
        ({"llama__attention__key_length": "x"}, "is 'x', not a whole number"),
        ({"llama__attention__key_length": 0}, "or empty"),
        ({"llama__attention__value_length": 8}, "not as wide as those of keys"),
        ({"llama__attention__key_length": [8, 16]}, "differs between layers"),
        ({"tensors": {"output.weight": np.zeros((4, 4), dtype=np.float32)}}, "token_embd.weight"),
    ],
)
def test_configs_that_quire_does_not_have(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        config(tmp_path, **options)


@pytest.mark.parametrize("name", sorted({"mixtral", *NAMES} - {"mistral"}))
def test_names_are_those_of_gguf_py(name: str) -> None:
    """llama.cpp's converter uses its tables; it splits some tensors that they do not know."""
    stored = "llama" if name == "mixtral" else name
    [architecture] = (key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == stored)
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[architecture]}
    table = gguf.get_tensor_name_map(architecture, 2)
    names = tensor_names(stored, name if name == "mixtral" else NAMES[name].model_type)
    for part, theirs in names.block.items():
        stem, found = part, theirs
        if part.endswith(".scale"):  # the converter names these itself
            continue
        if part.endswith((".weight", ".bias")):
            stem, found = part.rpartition(".")[0], theirs.removesuffix("_bias")
        elif stem in ("attn_k_b", "attn_v_b"):
            found = theirs.replace("kv_b", stem.removeprefix("attn_"))
        merged = stem == "ffn_gate_up_exps"  # by an option of the converter
        assert merged or f"blk.{{bid}}.{stem}" in gguf.TENSOR_NAMES.values()
        if not merged and f"blk.{{bid}}.{stem}" not in known:
            continue  # other architectures have it
        got = table.get_name(f"{names.layers}.1.{found}", try_suffixes=(".weight", ".bias"))
        assert got in (f"blk.1.{stem}", f"blk.1.{stem}_shexp", None), part
    for part, theirs in names.top.items():
        if part not in known:
            continue
        assert table.get_name(theirs, try_suffixes=(".weight", ".bias")) in (part, None)


def test_keys_and_values_of_other_ranks_are_named(tmp_path: Path) -> None:
    tensors = {
        "token_embd.weight": llama_tensors()["token_embd.weight"],
        "blk.0.attn_k_b.weight": np.zeros(HIDDEN, np.float32),
        "blk.0.attn_v_b.weight": np.zeros((HEADS, 8, 8), np.float32),
    }
    keys = {"expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": 8}
    keys |= {"expert_shared_count": 1, "rope__dimension_count": 8, "attention__kv_lora_rank": 8}
    keys |= {"attention__key_length_mla": 16, "attention__value_length_mla": 8}
    named = {f"deepseek2__{key}": value for key, value in keys.items()}
    path = write_gguf(tmp_path / "m.gguf", tensors, architecture="deepseek2", **named)
    with pytest.raises(CheckpointError, match=r"attn_k_b.weight', 'blk.0.attn_v_b.* \[64\], "):
        open_weights(resolve(str(path)))


def test_layers_behind_the_last_one() -> None:
    """GLM-4.5's are a draft head; Quire has none of DeepSeek's."""
    config = {"num_hidden_layers": 2, "model_type": "glm4_moe"}
    found = translation_of("blk.2.nextn.eh_proj.weight", "glm4moe", config)
    assert found.name == "model.layers.2.eh_proj.weight"
    config["model_type"] = "deepseek_v3"
    assert translation_of("blk.2.nextn.eh_proj.weight", "deepseek2", config) is None


@pytest.mark.parametrize("name", ["blk.0.ffn_norm.weight", "token_embd_norm.weight"])
def test_a_second_name_of_a_tensor_is_refused(name: str, tmp_path: Path) -> None:
    tensors = {
        "token_embd.weight": llama_tensors()["token_embd.weight"],
        "output_norm.weight": np.zeros(HIDDEN, np.float32),
        "blk.0.post_attention_norm.weight": np.zeros(HIDDEN, np.float32),
        name: np.zeros(HIDDEN, np.float32),
    }
    path = write_gguf(tmp_path / "m.gguf", tensors, architecture="seed_oss")
    with pytest.raises(UnsupportedModelError, match=rf"tensor '{name}' is not known"):
        open_weights(resolve(str(path)))


def test_keys_and_values_are_stored_once(tmp_path: Path) -> None:
    """Some files of DeepSeek have them together, too."""
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 1}

    def names(*parts: str) -> int:
        tensors = {f"blk.0.attn_{part}.weight": np.zeros((2, 4, 8), np.float32) for part in parts}
        path = write_gguf(tmp_path / "m.gguf", tensors, architecture="deepseek2")
        return len(translate(GGUFFile(path), config))

    assert names("k_b", "v_b") == 2
    for parts in (("kv_b", "k_b", "v_b"), ("k_b", "v_b", "kv_b"), ("k_b", "kv_b", "v_b")):
        with pytest.raises(UnsupportedModelError, match=r"'blk\.0\.attn_\w+\.weight' is not known"):
            names(*parts)
