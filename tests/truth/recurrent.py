"""Decoders with recurrent layers: what each key of their config.json may be."""

from __future__ import annotations

from typing import Any

from tests.truth.keys import (
    ABSENT,
    EXPERTS,
    FLAG,
    GATED,
    MLA,
    SMALL_PAD,
    SPARSE,
    Architecture,
    Choices,
)

_GENERATES = ("generate",)
_PLAIN: dict[str, Any] = {"rope": "", "tasks": _GENERATES, "steps": False}
_CONVS = ("conv", "full_attention")
_DELTA = ("linear_attention", "full_attention")
_SILU: Choices = GATED | {"hidden_act": ("silu", ABSENT)}
_LINEAR: Choices = _SILU | {
    "layer_types": ("mixed", "mixed", ABSENT),
    "full_attention_interval": (1, 2, ABSENT),
    "attention_bias": FLAG,
    "linear_num_key_heads": (1, 2),
    "linear_num_value_heads": (2, 4),
    "linear_key_head_dim": (4, 10, 16),
    "linear_value_head_dim": (8, 12),
    "linear_conv_kernel_dim": (2, 4, ABSENT),
}
_SHARED: Choices = EXPERTS | {
    "moe_intermediate_size": (16, 24),
    "shared_expert_intermediate_size": (16, 40),
}
_MAMBA: Choices = _SILU | {
    "mamba_n_heads": (1, 2, 4),
    "mamba_n_groups": (1, 1, 2),
    "mamba_d_state": (4, 12, 16),
    "mamba_d_conv": (2, 4, ABSENT),
    "mamba_d_head": ("auto", ABSENT),
    "mamba_conv_bias": FLAG,
    "mamba_proj_bias": FLAG,
}
_FACTORS = (0.7, 1.0, ABSENT)

RECURRENT: dict[str, Architecture] = {
    "lfm2": Architecture(
        "Lfm2",
        {k: v for k, v in GATED.items() if k not in ("hidden_act", "rms_norm_eps")}
        | {
            "norm_eps": (1e-5, 0.05, ABSENT),
            "layer_types": ("mixed", "mixed", ABSENT),
            "conv_L_cache": (2, 3, ABSENT),
            "conv_bias": FLAG,
            "block_auto_adjust_ff_dim": FLAG,
            "block_multiple_of": (8, 16),
            "block_ffn_dim_multiplier": (1.0, 1.3, None, ABSENT),
        },
        mixers=_CONVS,
        **_PLAIN,
    ),
    "lfm3": Architecture(
        "Lfm3",
        {k: v for k, v in GATED.items() if k not in ("hidden_act", "rms_norm_eps")}
        | SMALL_PAD
        | {
            "norm_eps": (1e-5, 0.05, ABSENT),
            "head_dim": (8, 16, 24),
            "layer_types": ("mixed", "mixed", ABSENT),
            "sliding_window": (4, 9, 40, ABSENT),
            "attention_bias": FLAG,
            "conv_L_cache": (2, 3, ABSENT),
            "conv_bias": FLAG,
            "use_sandwich_norm": FLAG,
            "use_attention_gate": FLAG,
        },
        mixers=(*_CONVS, "sliding_attention"),
        **_PLAIN | {"rope": "nested"},
    ),
    "lfm2_moe": Architecture(
        "Lfm2Moe",
        {k: v for k, v in GATED.items() if k not in ("hidden_act", "rms_norm_eps")}
        | EXPERTS
        | {
            "layer_types": ("mixed",),
            "conv_bias": FLAG,
            "num_dense_layers": (0, 1, ABSENT),
            "moe_intermediate_size": (16, 24),
            "use_expert_bias": FLAG,
            "routed_scaling_factor": _FACTORS,
        },
        mixers=_CONVS,
        **_PLAIN,
    ),
    "qwen3_next": Architecture("Qwen3Next", _LINEAR | SPARSE | _SHARED, mixers=_DELTA, **_PLAIN),
    "qwen3_5_text": Architecture("Qwen3_5", _LINEAR, mixers=_DELTA, **_PLAIN),
    "qwen3_5_moe_text": Architecture("Qwen3_5Moe", _LINEAR | _SHARED, mixers=_DELTA, **_PLAIN),
    "kimi_linear": Architecture(
        "KimiLinear",
        MLA
        | {
            "hidden_act": ("silu", ABSENT),
            "tie_word_embeddings": (False, ABSENT),  # Transformers ignores True
            "layer_types": ("mixed", "mixed", ABSENT),
            "linear_head_dim": (4, 10, 16),
            "linear_num_heads": (1, 2, 4),
            "linear_conv_kernel_dim": (2, 4, ABSENT),
            "num_experts": (4, 6, 8),
            "num_experts_per_token": (1, 2, 3),
            "num_expert_group": (1, 2, ABSENT),
            "moe_renormalize": FLAG,
            "moe_intermediate_size": (16, 24),
            "first_k_dense_replace": (0, 1, 2, ABSENT),
            "routed_scaling_factor": _FACTORS,
        },
        mixers=_DELTA,
        **_PLAIN | {"heads": False},
    ),
    "bamba": Architecture(
        "Bamba",
        _MAMBA | {"attn_layer_indices": ([0], [1], [], ABSENT), "attention_bias": FLAG},
        **_PLAIN,
    ),
    "granitemoehybrid": Architecture(
        "GraniteMoeHybrid",
        _MAMBA
        | {
            "attention_bias": FLAG,
            "layer_types": ("full", "mixed", "mixed"),
            "num_local_experts": (0, 4),
            "num_experts_per_tok": (1, 2),
            "shared_intermediate_size": (40, 64),
            "position_embedding_type": ("rope", "rope", None, ABSENT),
            "residual_multiplier": (0.22, 1.7, ABSENT),
            "attention_multiplier": (0.015625, 0.3),
        },
        tasks=_GENERATES,
        mixers=("mamba", "attention"),
        steps=False,
    ),
    "falcon_h1": Architecture(
        "FalconH1",
        _MAMBA
        | {
            "mamba_d_ssm": (None, 64, ABSENT),
            "mamba_rms_norm": FLAG,
            "mamba_norm_before_gate": FLAG,
            "key_multiplier": _FACTORS,
            "embedding_multiplier": _FACTORS,
            "lm_head_multiplier": _FACTORS,
            "ssm_multipliers": ([0.9, 0.7, 0.6, 1.3, 0.8], ABSENT),
            "mlp_multipliers": ([0.85, 0.6], ABSENT),
        },
        **_PLAIN,
    ),
    "nemotron_h": Architecture(
        "NemotronH",
        {k: v for k, v in GATED.items() if k not in ("hidden_act", "rms_norm_eps")}
        | {
            "layers_block_type": ("mixed",),
            "tie_word_embeddings": (False, ABSENT),  # Transformers ignores True
            "mamba_num_heads": (2, 4),
            "mamba_head_dim": (4, 8, 12),
            "n_groups": (1, 2),
            "ssm_state_size": (4, 12),
            "conv_kernel": (2, 4, ABSENT),
            "time_step_min": (0.2, ABSENT),
            "n_routed_experts": (4, 8),
            "num_experts_per_tok": (1, 2),
            "moe_intermediate_size": (16, 24),
            "moe_shared_expert_intermediate_size": (16, 40),
            "norm_topk_prob": FLAG,
        },
        mixers=("linear_attention", "full_attention", "mlp", "moe"),
        **_PLAIN,
    ),
    "mamba2": Architecture(
        "Mamba2",
        {
            "head_dim": ("inner",),
            "state_size": (4, 12),
            "n_groups": (1, 2),
            "expand": (1, 2, ABSENT),
            "conv_kernel": (2, 4, ABSENT),
            "use_bias": FLAG,
            "use_conv_bias": FLAG,
            "layer_norm_epsilon": (1e-5, 0.05, ABSENT),
            "time_step_limit": ([0.1, 0.9], ABSENT),
            "tie_word_embeddings": FLAG,
        },
        sizes={"num_attention_heads": "num_heads"},
        **_PLAIN | {"heads": False},
    ),
}
