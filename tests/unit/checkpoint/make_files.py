"""Small checkpoint files, written by the formats' own reference implementations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

HIDDEN, HEADS, KV_HEADS, LAYERS, INTERMEDIATE, VOCABULARY = 64, 4, 2, 2, 96, 128


def llama_config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
    }


def write_safetensors(path: Path, **tensors: np.ndarray) -> Path:
    tensors = tensors or {
        "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b.bias": np.arange(5, dtype=np.float16),
        "c": np.arange(3, dtype=np.int64),
    }
    save_file(tensors, path)
    return path


def write_folder(folder: Path, **tensors: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(llama_config()))
    write_safetensors(folder / "model.safetensors", **tensors)
    return folder


def llama_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights of a tiny Llama, under GGUF's names, [out, in]."""
    random = np.random.default_rng(seed)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        shapes |= {
            f"{block}.attn_norm.weight": (HIDDEN,),
            f"{block}.attn_q.weight": (HIDDEN, HIDDEN),
            f"{block}.attn_k.weight": (kv, HIDDEN),
            f"{block}.attn_v.weight": (kv, HIDDEN),
            f"{block}.attn_output.weight": (HIDDEN, HIDDEN),
            f"{block}.ffn_norm.weight": (HIDDEN,),
            f"{block}.ffn_gate.weight": (INTERMEDIATE, HIDDEN),
            f"{block}.ffn_up.weight": (INTERMEDIATE, HIDDEN),
            f"{block}.ffn_down.weight": (HIDDEN, INTERMEDIATE),
        }
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    tensors: dict[str, np.ndarray] | None = None,
    *,
    architecture: str = "llama",
    type_: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    **metadata: Any,
) -> Path:
    """A tiny model; matrices are stored as `type_`, vectors as F32.

    `metadata` adds keys; "__" in a key stands for ".".
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    for key, value in metadata.items():
        _add(writer, key.replace("__", "."), value)
    for name, values in (llama_tensors() if tensors is None else tensors).items():
        if values.ndim == 1 or type_ == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
