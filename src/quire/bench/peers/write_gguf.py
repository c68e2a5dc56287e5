"""Write a preset of the Qwen3 family as a GGUF file of random weights, for llama.cpp.

The types are those of llama.cpp's own `llama-quantize`: BF16; Q8_0; Q4_0 with the embedding, which
is also the output projection, in Q6_K. Norms are float32. There is no vocabulary, only its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from quire.bench.peers.driver import config_of

_TYPES = {
    "none": (Type.BF16, Type.BF16),
    "int8": (Type.Q8_0, Type.Q8_0),
    "int4": (Type.Q4_0, Type.Q6_K),
}
"""Quantization → type of the layers' weights, type of the embedding."""
_Q6_K_VALUES = 256


def write(preset: str, quantization: str, path: Path) -> None:
    """Write the file, under another name until it is whole."""
    config = config_of(preset)
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, config["model_type"])
    _describe(writer, config)
    rng = np.random.default_rng(0)
    for name, shape, kind in _tensors(config, *_TYPES[quantization]):
        writer.add_tensor(name, _random(rng, shape, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)


def _describe(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def _tensors(
    config: dict[str, Any], layer: Type, embedding: Type
) -> Iterator[tuple[str, tuple[int, ...], Type]]:
    """Name, shape and type of each, in llama.cpp's names."""
    hidden, head = config["hidden_size"], config["head_dim"]
    inner = config["intermediate_size"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "token_embd.weight", (config["vocab_size"], hidden), embedding
    yield "output_norm.weight", (hidden,), Type.F32
    for i in range(config["num_hidden_layers"]):
        for name, width in (
            *(("attn_norm", hidden), ("ffn_norm", hidden)),
            *(("attn_q_norm", head), ("attn_k_norm", head)),
        ):
            yield f"blk.{i}.{name}.weight", (width,), Type.F32
        for name, shape in (
            *(("attn_q", (q, hidden)), ("attn_k", (kv, hidden)), ("attn_v", (kv, hidden))),
            ("attn_output", (hidden, q)),
            *(("ffn_gate", (inner, hidden)), ("ffn_up", (inner, hidden))),
            ("ffn_down", (hidden, inner)),
        ):
            yield f"blk.{i}.{name}.weight", shape, layer


def _random(rng: np.random.Generator, shape: tuple[int, ...], kind: Type) -> npt.NDArray[Any]:
    """Normal values of deviation 0.02, or ones for a norm, in the bytes of `kind`."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    if kind != Type.Q6_K:
        values = rng.standard_normal(shape, np.float32) * np.float32(0.02)
        return gguf.quants.quantize(values, kind)
    # gguf writes no Q6_K: random blocks of 4 low bits, 2 high bits, 16 scales and one more scale.
    blocks = (shape[0], shape[1] // _Q6_K_VALUES)
    bits = rng.integers(0, 256, (*blocks, 192), np.uint8)
    scales = rng.integers(16, 64, (*blocks, 16), np.uint8)
    scale = np.full((*blocks, 1), 2e-5, np.float16).view(np.uint8)
    return np.concatenate([bits, scales, scale], axis=-1).reshape(shape[0], -1)
