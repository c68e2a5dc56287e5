"""Kimi Linear's config.json, as published and as Transformers writes it."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import UnsupportedModelError
from quire.models.registry import model_config

_BOTH: dict[str, Any] = {
    "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "vocab_size": 96,
    "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 4, "kv_lora_rank": 16, "moe_intermediate_size": 24, "topk_group": 1,
}  # fmt: skip
PUBLISHED = _BOTH | {
    "model_max_length": 128, "num_experts": 8, "num_experts_per_token": 3, "num_expert_group": 2,
    "moe_renormalize": False, "num_shared_experts": 2, "first_k_dense_replace": 2, "head_dim": 72,
    "linear_attn_config": {
        "full_attn_layers": [2, 6], "kda_layers": [1, 3, 4, 5], "head_dim": 8, "num_heads": 4,
        "short_conv_kernel_size": 3,
    },
}  # fmt: skip
WRITTEN = _BOTH | {
    "max_position_embeddings": 128, "num_local_experts": 8, "num_experts_per_tok": 3, "n_group": 2,
    "norm_topk_prob": False, "n_shared_experts": 2, "linear_head_dim": 8, "linear_num_heads": 4,
    "linear_conv_kernel_dim": 3, "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 4,
    "layer_types": [
        f"{kind}_attention" for kind in ("linear", "full", "linear", "linear", "linear", "full")
    ],
}  # fmt: skip


def test_both_spellings_are_one_model() -> None:
    model = model_config(PUBLISHED)
    assert model == model_config(WRITTEN)
    assert model.layers_with("attention") == [1, 5]
    assert model.rope is None
    assert (model.moe.shared_size, model.moe.layers) == (48, (False, False, *[True] * 4))
    assert not model.moe.route.renormalize


def test_layers_without_their_kinds() -> None:
    model = model_config({k: v for k, v in WRITTEN.items() if k != "layer_types"})
    assert model.layers_with("attention") == [4]


def test_positions_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="mla_use_nope"):
        model_config(PUBLISHED | {"mla_use_nope": False})
