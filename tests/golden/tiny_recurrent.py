"""Tiny configurations of models with recurrent layers."""

from __future__ import annotations

from typing import Any

from tests.golden.tiny_dense import TinyModel

_DELTA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}

_MAMBA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
}

RECURRENT_MODELS: dict[str, TinyModel] = {
    "lfm2": TinyModel(
        "lfm2",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "lfm2-biases": TinyModel(
        "lfm2",
        {
            "num_hidden_layers": 3,
            "full_attn_idxs": [2],
            "conv_bias": True,
            "conv_L_cache": 4,
            "block_multiple_of": 16,
        },
    ),
    "lfm3": TinyModel(
        "lfm3",
        {
            "num_hidden_layers": 5,
            "head_dim": 24,
            "sliding_window": 20,
            "attention_bias": True,
        },
    ),
    "qwen3-next": TinyModel(
        "qwen3_next",
        _DELTA
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3_5": TinyModel("qwen3_5_text", _DELTA | {"tie_word_embeddings": True}),
    "lfm2-moe": TinyModel(
        "lfm2_moe",
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.3,
        },
    ),
    "qwen3_5-moe": TinyModel(
        "qwen3_5_moe_text",
        _DELTA
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
        },
    ),
    "kimi-linear": TinyModel(
        "kimi_linear",
        {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_head_dim": 16,
            "linear_num_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 32,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 24,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "granite4-hybrid": TinyModel(
        "granitemoehybrid",
        _MAMBA
        | {
            "layer_types": ["mamba", "attention", "mamba"],
            "shared_intermediate_size": 96,
            "num_local_experts": 0,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.1,
            "logits_scaling": 2.0,
        },
    ),
    "granite4-experts": TinyModel(
        "granitemoehybrid",
        _MAMBA
        | {
            "layer_types": ["attention", "mamba", "mamba"],
            "shared_intermediate_size": 96,
            "num_local_experts": 6,
            "intermediate_size": 32,
            "position_embedding_type": "rope",
            "mamba_proj_bias": True,
        },
    ),
    "bamba": TinyModel(
        "bamba",
        _MAMBA
        | {
            "attn_layer_indices": [1],
            "mamba_n_groups": 2,
            "mamba_conv_bias": False,
        },
    ),
    "falcon-h1": TinyModel(
        "falcon_h1",
        _MAMBA
        | {
            "num_hidden_layers": 2,
            "mamba_d_ssm": 128,
            "mamba_n_groups": 2,
            "mamba_rms_norm": True,
            "embedding_multiplier": 3.0,
            "lm_head_multiplier": 0.7,
            "key_multiplier": 0.6,
            "attention_in_multiplier": 1.2,
            "attention_out_multiplier": 0.8,
            "ssm_in_multiplier": 1.25,
            "ssm_out_multiplier": 0.6,
            "ssm_multipliers": [0.9, 0.7, 0.6, 1.3, 0.8],
            "mlp_multipliers": [0.85, 0.6],
        },
    ),
    "falcon-h1-biases": TinyModel(
        "falcon_h1",
        _MAMBA
        | {
            "num_hidden_layers": 2,
            "mamba_d_ssm": None,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "key_multiplier": 0.6,
            "ssm_multipliers": [0.9, 0.7, 0.6, 1.3, 0.8],
            "mlp_multipliers": [0.85, 0.6],
        },
    ),
    "nemotron-h": TinyModel(
        "nemotron_h",
        {
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"] * 2,
            "head_dim": 24,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 24,
            "time_step_min": 0.2,
            "n_routed_experts": 8,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 1.5,
        },
    ),
    "mamba2": TinyModel(
        "mamba2",
        {
            "num_hidden_layers": 3,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 24,
            "n_groups": 2,
            "time_step_limit": [0.1, 0.9],
        },
    ),
}
"""Models with recurrent layers, which `test_recurrent` tests."""
