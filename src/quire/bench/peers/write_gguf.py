"""Write a preset of a Qwen3, Qwen3.5 or OLMoE model as GGUF with random weights, for llama.cpp.

The types are those of llama.cpp's own `llama-quantize`: BF16; Q8_0; Q4_0 with the output
projection, which may also be the embedding, in Q6_K. Norms and routers are float32. There is no
vocabulary, only its size.
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

ARCHITECTURES = {
    "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "qwen3_5_text": "qwen35", "olmoe": "olmoe",
}  # fmt: skip
"""Model type → GGUF's architecture."""
_TYPES = {
    "none": (Type.BF16, Type.BF16),
    "int8": (Type.Q8_0, Type.Q8_0),
    "int4": (Type.Q4_0, Type.Q6_K),
}
"""Quantization → type of the layers' weights, type of the output projection."""
Tensor = tuple[str, tuple[int, ...], Type]
"""Name, shape and type."""


def write(preset: str, quantization: str, path: Path) -> None:
    """Write the file tensor by tensor, under another name until it is whole."""
    config = config_of(preset)
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, ARCHITECTURES[config["model_type"]])
    _describe(writer, config)
    tensors = list(_tensors(config, *_TYPES[quantization]))
    for name, shape, kind in tensors:
        size = int(np.prod(gguf.quant_shape_to_byte_shape(shape, kind)))
        writer.add_tensor_info(name, shape, np.dtype(np.float32), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    for name, shape, kind in tensors:
        decays = name.endswith("ssm_a")  # negative rates
        writer.write_tensor_data(
            -_random(rng, shape, kind) if decays else _random(rng, shape, kind)
        )
    writer.close()
    partial.rename(path)


def _describe(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(_head_dim(config))
    writer.add_value_length(_head_dim(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(_expert_size(config))
    if "linear_num_value_heads" in config:
        heads, width = config["linear_num_value_heads"], config["linear_value_head_dim"]
        writer.add_full_attention_interval(config["full_attention_interval"])
        writer.add_rope_dimension_count(int(_head_dim(config) * config["partial_rotary_factor"]))
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_inner_size(heads * width)
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_time_step_rank(heads)
        writer.add_ssm_group_count(config["linear_num_key_heads"])


def _tensors(config: dict[str, Any], layer: Type, output: Type) -> Iterator[Tensor]:
    """Yield the tensors under llama.cpp's names."""
    vocab, hidden, head = config["vocab_size"], config["hidden_size"], _head_dim(config)
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    tied = config.get("tie_word_embeddings", False)
    yield "token_embd.weight", (vocab, hidden), output if tied else layer
    yield "output_norm.weight", (hidden,), Type.F32
    if not tied:
        yield "output.weight", (vocab, hidden), output
    whole = config["model_type"] == "olmoe"  # its queries and keys are normed over all heads
    hybrid = "linear_num_value_heads" in config  # its queries have a gate
    for i in range(config["num_hidden_layers"]):
        block = f"blk.{i}."
        yield f"{block}attn_norm.weight", (hidden,), Type.F32
        yield f"{block}{'post_attention' if hybrid else 'ffn'}_norm.weight", (hidden,), Type.F32
        if hybrid and (i + 1) % config["full_attention_interval"]:
            yield from _delta_rule(config, block, layer)
        else:
            for name, width in (("q", q if whole else head), ("k", kv if whole else head)):
                yield f"{block}attn_{name}_norm.weight", (width,), Type.F32
            for name, rows in (("q", q * (1 + hybrid)), ("k", kv), ("v", kv)):
                yield f"{block}attn_{name}.weight", (rows, hidden), layer
            yield f"{block}attn_output.weight", (hidden, q), layer
        yield from _mlp(config, block, layer)


def _delta_rule(config: dict[str, Any], block: str, layer: Type) -> Iterator[Tensor]:
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    values = heads * config["linear_value_head_dim"]
    mixed = values + 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    for name, rows in (("attn_qkv", mixed), ("attn_gate", values), ("ssm_beta", heads),
                       ("ssm_alpha", heads)):  # fmt: skip
        yield f"{block}{name}.weight", (rows, hidden), layer
    yield f"{block}ssm_conv1d.weight", (mixed, config["linear_conv_kernel_dim"]), Type.F32
    yield f"{block}ssm_dt.bias", (heads,), Type.F32
    yield f"{block}ssm_a", (heads,), Type.F32
    yield f"{block}ssm_norm.weight", (config["linear_value_head_dim"],), Type.F32
    yield f"{block}ssm_out.weight", (hidden, values), layer


def _mlp(config: dict[str, Any], block: str, kind: Type) -> Iterator[Tensor]:
    hidden, inner, suffix = config["hidden_size"], config["intermediate_size"], ""
    experts: tuple[int, ...] = ()
    if "num_experts" in config:
        experts, suffix, inner = (config["num_experts"],), "_exps", _expert_size(config)
        yield f"{block}ffn_gate_inp.weight", (*experts, hidden), Type.F32
    for name, shape in (
        *(("ffn_gate", (inner, hidden)), ("ffn_up", (inner, hidden))),
        ("ffn_down", (hidden, inner)),
    ):
        yield f"{block}{name}{suffix}.weight", (*experts, *shape), kind


def _head_dim(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _expert_size(config: dict[str, Any]) -> int:
    return int(config.get("moe_intermediate_size") or config["intermediate_size"])


def _random(rng: np.random.Generator, shape: tuple[int, ...], kind: Type) -> npt.NDArray[Any]:
    """Return values of about 0.02, or ones for a norm, in the bytes of `kind`.

    Quantized blocks have random codes and equal scales, so that gigabytes take seconds.
    """
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    if kind in (Type.F32, Type.BF16):
        values = rng.standard_normal(shape, np.float32) * np.float32(0.02)
        return values if kind == Type.F32 else gguf.quants.quantize(values, kind)
    width, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // width, size), np.uint8)
    if kind == Type.Q6_K:  # 4 low bits, 2 high bits, 16 scales, and their scale
        blocks[:, 192:208] = rng.integers(16, 64, (len(blocks), 16), np.uint8)
        blocks[:, 208:] = np.float16(2e-5).reshape(1).view(np.uint8)
    else:  # Q4_0 and Q8_0 begin with the scale
        blocks[:, :2] = np.float16(4e-3 if kind == Type.Q4_0 else 3e-4).reshape(1).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)
