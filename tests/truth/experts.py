"""Decoders with experts or latent attention: what each key of their config.json may be."""

from __future__ import annotations

from tests.truth.keys import (
    ABSENT,
    EXPERTS,
    FACTORS,
    FLAG,
    GATED,
    MLA,
    QWEN,
    SINKS_AND_WINDOWS,
    SMALL_PAD,
    SPARSE,
    WINDOW,
    Architecture,
    Choices,
)

_ROUTED: Choices = {
    "n_routed_experts": (4, 8, 16),
    "num_experts_per_tok": (1, 2, 3),
    "moe_intermediate_size": (16, 24, 40),
    "n_shared_experts": (1, 2, ABSENT),
    "n_group": (1, 2, ABSENT),
    "topk_group": (1, ABSENT),
    "norm_topk_prob": FLAG,
    "routed_scaling_factor": (1.0, 2.5, ABSENT),
}

EXPERTS_OR_LATENT: dict[str, Architecture] = {
    "mixtral": Architecture(
        "Mixtral",
        GATED
        | {
            "sliding_window": WINDOW,
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3, ABSENT),
        },
    ),
    "olmoe": Architecture(
        "Olmoe",
        GATED
        | {
            "attention_bias": FLAG,
            "clip_qkv": (*[ABSENT] * 8, None, 4.0),
            "head_dim": (ABSENT,),  # Transformers' norms have no such key here
            **EXPERTS,
        },
    ),
    "qwen2_moe": Architecture(
        "Qwen2Moe",
        QWEN
        | EXPERTS
        | SPARSE
        | {"qkv_bias": FLAG, "shared_expert_intermediate_size": (24, 32, 100)},
    ),
    "qwen3_moe": Architecture(
        "Qwen3Moe",
        {k: v for k, v in QWEN.items() if k not in ("max_window_layers", "layer_types")}
        | EXPERTS
        | SPARSE
        | {"attention_bias": FLAG},
    ),
    "ernie4_5_moe": Architecture(
        "Ernie4_5_Moe",
        {k: v for k, v in GATED.items() if k != "hidden_act"}
        | {
            "head_dim": (ABSENT,),
            "moe_num_experts": (4, 6, 8),
            "moe_k": (1, 2, 3),
            "moe_intermediate_size": (16, 24, 40),
            "moe_num_shared_experts": (0, 1, 2, ABSENT),
            "moe_layer_start_index": (0, 1, ABSENT),
            "moe_layer_end_index": (-1, 1, ABSENT),
            "moe_layer_interval": (1, 2, ABSENT),
        },
    ),
    "gpt_oss": Architecture(
        "GptOss",
        {k: v for k, v in GATED.items() if k != "hidden_act"}
        | {
            "attention_bias": FLAG,
            "sliding_window": (4, 9, 40, ABSENT),
            "layer_types": ("types", ABSENT, ABSENT, None),
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3, 4, ABSENT),
            "swiglu_limit": (*[ABSENT] * 6, 7.0, 5.0),
        },
    ),
    "bitnet": Architecture(
        "BitNet",
        GATED
        | {
            "hidden_act": ("relu2", "relu2", ABSENT, "silu"),
            "attention_bias": FLAG,
            "head_dim": (ABSENT,),
        },
        tasks=("generate",),
    ),
    "llama4_text": Architecture(
        "Llama4Text",
        {k: v for k, v in GATED.items() if k != "hidden_act"}
        | {
            "attention_bias": FLAG,
            "intermediate_size_mlp": (32, 56),
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, ABSENT),
            "interleave_moe_layer_step": (1, 2, ABSENT),
            "moe_layers": ([0], *[ABSENT] * 3),
            "no_rope_layer_interval": (2, 3, ABSENT),
            "use_qk_norm": FLAG,
            "attention_chunk_size": (4, 9, 40, ABSENT),
            "attn_temperature_tuning": FLAG,
            "floor_scale": (5, 16, ABSENT),
            "attn_scale": (0.1, 0.5, ABSENT),
        },
        tasks=("generate",),
    ),
    "phimoe": Architecture(
        "Phimoe",
        {k: v for k, v in GATED.items() if k != "hidden_act"}
        | {
            "attention_bias": FLAG,
            "lm_head_bias": FLAG,
            "sliding_window": WINDOW,
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (2, 2, ABSENT, 1),
            "router_jitter_noise": (0.01, 0.1, ABSENT),
        },
    ),
    "granitemoe": Architecture(
        "GraniteMoe",
        {k: v for k, v in GATED.items() if k != "hidden_act"}
        | {
            "head_dim": (ABSENT,),
            "attention_bias": FLAG,
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3, ABSENT),
            "embedding_multiplier": (12.0, 1.0, ABSENT),
            "residual_multiplier": (0.22, 1.0, ABSENT),
            "attention_multiplier": (0.2, ABSENT),
            "logits_scaling": (8.0, 1.0, ABSENT),
        },
    ),
    "granitemoe_swa": Architecture(
        "GraniteMoeSWA",
        {k: v for k, v in GATED.items() if k != "hidden_act"}
        | {k: v for k, v in FACTORS.items() if k != "mlp_bias"}
        | SINKS_AND_WINDOWS
        | {
            "head_dim": (ABSENT,),
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3, ABSENT),
            "shared_intermediate_size": (0, 16, 24, ABSENT),
        },
        tasks=("generate",),
    ),
    "afmoe": Architecture(
        "Afmoe",
        GATED
        | {
            "attention_bias": FLAG,
            "num_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3, 4),
            "num_shared_experts": (1, 2, ABSENT),
            "num_dense_layers": (0, 1, 2, ABSENT),
            "moe_intermediate_size": (16, 24, 40),
            "route_scale": (1.0, 2.5, ABSENT),
            "mup_enabled": FLAG,
            "global_attn_every_n_layers": (1, 2, 3, ABSENT),
            "sliding_window": (4, 9, 40, ABSENT),
            "layer_types": ("types", ABSENT, ABSENT, None),
        },
        tasks=("generate",),
    ),
    "mellum": Architecture(
        "Mellum",
        GATED
        | EXPERTS
        | {
            "attention_bias": FLAG,
            "moe_intermediate_size": (16, 24, 40),
            "sliding_window": (4, 9, 40, ABSENT),
            "layer_types": ("types", ABSENT, None),
            "mlp_layer_types": (["dense", "sparse", "sparse"], None, ABSENT),
        },
        rope="nested",
        tasks=("generate",),
    ),
    "flex_olmo": Architecture(
        "FlexOlmo",
        GATED | SMALL_PAD | EXPERTS | {"attention_bias": FLAG, "head_dim": (ABSENT,)},
        tasks=("generate",),
    ),
    "hunyuan_v1_moe": Architecture(
        "HunYuanMoEV1",
        GATED
        | {
            "attention_bias": FLAG,
            "head_dim": (8, 16, 24, 40),
            "num_experts": (1, 4, 6),
            "moe_topk": (1, [1, 1, 1], ABSENT),
        },
    ),
    "hy_v3": Architecture(
        "HYV3",
        GATED
        | {
            "attention_bias": FLAG,
            "num_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3),
            "num_shared_experts": (1, 2, ABSENT),
            "moe_intermediate_size": (16, 24, 40),
            "router_scaling_factor": (1.0, 2.5, ABSENT),
            "enable_moe_fp32_combine": FLAG,
            "mlp_layer_types": (["dense", "sparse", "sparse"], None, ABSENT),
        },
        tasks=("generate",),
    ),
    "mistral4": Architecture(
        "Mistral4",
        MLA | _ROUTED | {"first_k_dense_replace": (0, 1, ABSENT), "rope_interleave": FLAG},
        heads=False,
        tasks=("generate",),
    ),
    "glm4_moe": Architecture(
        "Glm4Moe",
        GATED
        | {
            "attention_bias": FLAG,
            "use_qk_norm": FLAG,
            "n_routed_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3),
            "moe_intermediate_size": (16, 24, 40),
            "n_shared_experts": (1, 2, ABSENT),
            "n_group": (1, 2, ABSENT),
            "topk_group": (1, ABSENT),
            "first_k_dense_replace": (0, 1, ABSENT),
            "norm_topk_prob": FLAG,
            "routed_scaling_factor": (1.0, 2.5, ABSENT),
        },
    ),
    "dots1": Architecture(
        "Dots1",
        GATED
        | _ROUTED
        | {
            "attention_bias": FLAG,
            "n_shared_experts": (1, 2),
            "first_k_dense_replace": (0, 1, ABSENT),
            "sliding_window": WINDOW,
            "max_window_layers": (0, 1, 2, ABSENT),
            "layer_types": ("types", ABSENT, ABSENT, None),
        },
        tasks=("generate",),
    ),
    "solar_open": Architecture(
        "SolarOpen", GATED | _ROUTED | {"attention_bias": FLAG}, tasks=("generate",)
    ),
    "exaone_moe": Architecture(
        "ExaoneMoe",
        GATED
        | {k: v for k, v in _ROUTED.items() if k not in ("n_routed_experts", "n_shared_experts")}
        | {
            "num_experts": (4, 8, 16),
            "num_shared_experts": (1, 2, ABSENT),
            "first_k_dense_replace": (0, 1, ABSENT),
            "sliding_window": (4, 9, 40, ABSENT),
            "layer_types": ("types", ABSENT, ABSENT, None),
        },
        tasks=("generate",),
    ),
    "minimax_m2": Architecture(
        "MiniMaxM2",
        GATED
        | {
            "eos_token_id": (2, [2, 3]),
            "bos_token_id": (1, None),
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3),
            "rotary_dim": (4, *[ABSENT] * 3),
        },
        tasks=("generate",),
    ),
    "granitemoeshared": Architecture(
        "GraniteMoeShared",
        {k: v for k, v in GATED.items() if k != "hidden_act"}
        | {
            "head_dim": (ABSENT,),
            "attention_bias": FLAG,
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3, ABSENT),
            "shared_intermediate_size": (0, 24, 40, ABSENT),
            "residual_multiplier": (0.22, 1.0, ABSENT),
            "attention_multiplier": (0.2, ABSENT),
            "logits_scaling": (8.0, 1.0, ABSENT),
        },
        tasks=("generate",),
    ),
    "youtu": Architecture(
        "Youtu",
        MLA
        | {
            "eos_token_id": (2, [2, 3]),
            "pad_token_id": (None, ABSENT),  # Transformers sets its embedding to 0
            "rope_interleave": (ABSENT, True, False),
        },
        heads=False,
        tasks=("generate",),
    ),
    "deepseek_v2": Architecture(
        "DeepseekV2",
        MLA
        | {
            "n_routed_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3),
            "n_shared_experts": (1, 2, ABSENT),
            "topk_method": ("greedy", ABSENT, "group_limited_greedy", "noaux_tc"),
            "n_group": (1, 2),
            "topk_group": (1, 2),
            "first_k_dense_replace": (0, 1, ABSENT),
            "norm_topk_prob": (*[ABSENT] * 4, False, True),
            "routed_scaling_factor": (1.0, 16.0, ABSENT),
            "moe_intermediate_size": (16, 24, 40),
        },
        heads=False,
    ),
    "deepseek_v3": Architecture(
        "DeepseekV3",
        MLA
        | {
            "n_routed_experts": (8, 16),
            "num_experts_per_tok": (1, 2, 3),
            "n_shared_experts": (1, 2, ABSENT),
            "n_group": (1, 2, 4),
            "topk_group": (1, ABSENT),
            "first_k_dense_replace": (0, 1),
            "norm_topk_prob": FLAG,
            "rope_interleave": (ABSENT, True, False),
            "routed_scaling_factor": (1.0, ABSENT),
            "moe_intermediate_size": (16, 24, 40),
        },
        heads=False,
    ),
    "glm4_moe_lite": Architecture(
        "Glm4MoeLite",
        MLA
        | {
            "n_routed_experts": (8, 16),
            "num_experts_per_tok": (1, 2, 3),
            "n_shared_experts": (1, 2, ABSENT),
            "n_group": (1, 2, ABSENT),
            "topk_group": (1, ABSENT),
            "norm_topk_prob": FLAG,
            "rope_interleave": (ABSENT, True, False),
            "routed_scaling_factor": (1.0, ABSENT),
            "moe_intermediate_size": (16, 24, 40),
        },
        heads=False,
    ),
    "minicpm3": Architecture(
        "MiniCPM3",
        MLA
        | {
            "v_head_dim": (16, ABSENT, None),
            "scale_emb": (12, 1, ABSENT),
            "scale_depth": (1.4, ABSENT, None),
            "dim_model_base": (32, ABSENT, None),
        },
        heads=False,
    ),
}  # fmt: skip
