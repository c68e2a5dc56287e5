"""GGUF files of Gemma 4, written with gguf-py as llama.cpp's converter does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from quire.ops.providers import load_ops
from tests.golden.harness import PagedModel, load_decoder
from tests.golden.test_architectures import LOGIT_TOLERANCE
from tests.golden.tiny_models import MAX_POSITIONS
from tests.golden.transformers_oracle import NUM_TOKENS, Golden

ARCH = gguf.MODEL_ARCH.GEMMA4


def write_gguf_gemma4(folder: Path, path: Path) -> Path:
    """The model in `folder`."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[ARCH])
    _write_keys(writer, config)
    names = gguf.get_tensor_name_map(ARCH, config["num_hidden_layers"])
    for name, values in load_file(folder / "model.safetensors").items():
        stem, _, kind = name.rpartition(".")
        if name.endswith(("router.scale", "router.per_expert_scale")):
            block = name.split(".")[2]
            part = "ffn_gate_inp" if name.endswith("router.scale") else "ffn_down_exps"
            whole = f"blk.{block}.{part}.scale"
        elif kind in ("weight", "bias"):
            whole = f"{names.get_name(stem)}.{kind}"
        else:
            whole = f"{names.get_name(name)}.weight"
        writer.add_tensor(whole, np.ascontiguousarray(values.astype(np.float32)))
    full = config["rope_parameters"]["full_attention"]
    width = _full(config)[1] // 2
    turned = int(width * full["partial_rotary_factor"])
    factors = np.array([1.0] * turned + [1e30] * (width - turned), np.float32)
    writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _full(c: dict[str, Any]) -> tuple[int, int]:
    """Return heads of keys and their width where a layer attends to all."""
    own = next(iter(c["per_layer_config"].values())) if c.get("per_layer_config") else {}
    kv_heads = own.get("num_key_value_heads") or c["num_key_value_heads"]
    return kv_heads, own.get("head_dim") or c["head_dim"]


def _write_keys(w: gguf.GGUFWriter, c: dict[str, Any]) -> None:
    layers, shared = c["num_hidden_layers"], c["num_kv_shared_layers"]
    slides = [kind == "sliding_attention" for kind in c["layer_types"]]
    kv_heads, width = _full(c)
    wide = [c["use_double_wide_mlp"] and i >= layers - shared for i in range(layers)]
    w.add_block_count(layers)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv([c["num_key_value_heads"] if s else kv_heads for s in slides])
    w.add_feed_forward_length([c["intermediate_size"] * (1 + double) for double in wide])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_shared_kv_layers(shared)
    w.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"] or 0)
    w.add_sliding_window_pattern(slides)
    w.add_sliding_window(c["sliding_window"])
    w.add_key_length(width)
    w.add_value_length(width)
    w.add_key_length_swa(c["head_dim"])
    w.add_value_length_swa(c["head_dim"])
    w.add_rope_dimension_count(width)
    w.add_rope_dimension_count_swa(c["head_dim"])
    w.add_rope_freq_base(c["rope_parameters"]["full_attention"]["rope_theta"])
    w.add_rope_freq_base_swa(c["rope_parameters"]["sliding_attention"]["rope_theta"])
    if c.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if c["enable_moe_block"]:
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["top_k_experts"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])


@pytest.mark.parametrize("name", ["gemma4", "gemma4-values-of-keys", "gemma4-experts"])
def test_equals_transformers(
    name: str, tmp_path: Path, find: Callable[[str], tuple[str, Path, Golden]]
) -> None:
    _, folder, expected = find(name)
    path = write_gguf_gemma4(folder, tmp_path / "model.gguf")
    ops = load_ops("cpu")
    decoder = load_decoder(path, MAX_POSITIONS, ops)
    paged = PagedModel(decoder, ops, block_size=16, num_blocks=40)
    (sequence,) = paged.generate([expected.prompt], NUM_TOKENS)
    assert sequence.tokens == expected.tokens
    torch.testing.assert_close(
        torch.cat(sequence.logits), expected.logits, rtol=0.0, atol=LOGIT_TOLERANCE
    )
