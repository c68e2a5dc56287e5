"""Tiny configurations of models with experts, or with latent attention."""

from __future__ import annotations

from typing import Any

from tests.golden.tiny_dense import TinyModel, rope

_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "moe_intermediate_size": 32,
}

_YOUTU = ("num_key_value_heads", *(name for name in _LATENT if "rank" in name or "head" in name))

EXPERT_MODELS: dict[str, TinyModel] = {
    "qwen3-moe": TinyModel(
        "qwen3_moe",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe-some-dense": TinyModel(
        "qwen3_moe",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "mlp_only_layers": [3],
            "decoder_sparse_step": 2,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
        },
    ),
    "qwen2-moe": TinyModel(
        "qwen2_moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 64,
        },
    ),
    "mixtral": TinyModel("mixtral", {"num_local_experts": 4, "sliding_window": 24}),
    "olmoe": TinyModel("olmoe", {"num_experts": 8, "num_experts_per_tok": 4}),
    "glm4-moe": TinyModel(
        "glm4_moe",
        {
            "head_dim": 16,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
    "ernie4_5-moe": TinyModel(
        "ernie4_5_moe",
        {
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
        },
    ),
    "gpt-oss": TinyModel(
        "gpt_oss",
        {
            "head_dim": 16,
            "intermediate_size": 96,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "sliding_window": 24,
            **rope(
                rope_type="yarn", factor=8.0, original_max_position_embeddings=64, truncate=False
            ),
        },
    ),
    # Chunks and positions that the golden sequence passes more than once.
    "llama4": TinyModel(
        "llama4_text",
        {
            "head_dim": 16,
            "intermediate_size": 48,
            "intermediate_size_mlp": 80,
            "num_local_experts": 6,
            "interleave_moe_layer_step": 2,
            "num_hidden_layers": 3,
            "no_rope_layer_interval": 3,
            "attention_chunk_size": 24,
            "floor_scale": 20,
        },
    ),
    # What GGUF files can say: the published models' layers.
    "llama4-published": TinyModel(
        "llama4_text",
        {
            "head_dim": 16,
            "intermediate_size": 48,
            "intermediate_size_mlp": 80,
            "num_local_experts": 6,
            "interleave_moe_layer_step": 2,
            "num_hidden_layers": 4,
            "attention_chunk_size": 8192,
            "floor_scale": 8192,
        },
    ),
    "llama4-chosen-layers": TinyModel(
        "llama4_text",
        {
            "head_dim": 16,
            "intermediate_size": 48,
            "intermediate_size_mlp": 80,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "moe_layers": [0],
            "no_rope_layers": [1, 0],
            "layer_types": ["full_attention", "chunked_attention"],
            "attention_chunk_size": 32,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "attention_bias": True,
            **rope(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        },
    ),
    "phimoe": TinyModel(
        "phimoe",
        {
            "num_local_experts": 6,
            "attention_bias": True,
            "lm_head_bias": True,
            "sliding_window": 24,
            "router_jitter_noise": 0.1,
        },
    ),
    "phimoe-longrope": TinyModel(
        "phimoe",
        {
            "attention_bias": True,
            "lm_head_bias": True,
            "original_max_position_embeddings": 512,
            **rope(
                rope_type="longrope",
                short_factor=[1.0 + i / 3 for i in range(8)],
                long_factor=[9.0] * 8,
                short_mscale=1.2,
                long_mscale=1.2,
                original_max_position_embeddings=512,
            ),
        },
    ),
    "granitemoe": TinyModel(
        "granitemoe",
        {
            "num_local_experts": 6,
            "embedding_multiplier": 3.3,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.19,
            "logits_scaling": 1.7,
        },
    ),
    "deepseek-v2": TinyModel(
        "deepseek_v2",
        _LATENT
        | {
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "num_experts_per_tok": 3,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            **rope(
                rope_type="yarn",
                factor=8.0,
                original_max_position_embeddings=64,
                mscale=0.707,
                mscale_all_dim=0.707,
            ),
        },
    ),
    # Widths that are no multiples of vectors.
    "deepseek-v3": TinyModel(
        "deepseek_v3",
        _LATENT
        | {
            "kv_lora_rank": 44,
            "qk_nope_head_dim": 12,
            "v_head_dim": 20,
            "first_k_dense_replace": 1,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            **rope(
                rope_type="yarn",
                factor=8.0,
                original_max_position_embeddings=64,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        },
    ),
    "deepseek-v3-biased": TinyModel(
        "deepseek_v3",
        _LATENT
        | {
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "num_experts_per_tok": 3,
            "n_group": 2,
            "topk_group": 1,
        },
    ),
    "glm4-moe-lite": TinyModel("glm4_moe_lite", _LATENT | {"num_experts_per_tok": 3}),
    "minicpm3": TinyModel("minicpm3", _LATENT | {"scale_depth": 1.4}),
    # Transformers sets the embedding of a padding token to 0 when it loads the weights.
    "youtu": TinyModel(
        "youtu", {k: v for k, v in _LATENT.items() if k in _YOUTU} | {"pad_token_id": None}
    ),
    "dots1": TinyModel(
        "dots1",
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.5,
            "sliding_window": 20,
            "max_window_layers": 1,
            "norm_topk_prob": True,
        },
    ),
    "minimax-m2": TinyModel(
        "minimax_m2",
        {
            "head_dim": 24,
            "rotary_dim": 12,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "eos_token_id": 0,
        },
    ),
    "exaone-moe": TinyModel(
        "exaone_moe",
        {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "num_shared_experts": 2,
            "sliding_window": 20,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "solar-open": TinyModel(
        "solar_open",
        {
            "head_dim": 16,
            "attention_bias": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.5,
        },
    ),
    "granitemoe-swa": TinyModel(
        "granitemoe_swa",
        {
            "num_hidden_layers": 3,
            "sliding_window": 20,
            "num_local_experts": 6,
            "shared_intermediate_size": 40,
            "attention_multiplier": 0.19,
        },
    ),
    "afmoe": TinyModel(
        "afmoe",
        {
            "num_hidden_layers": 4,
            "head_dim": 24,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_shared_experts": 2,
            "moe_intermediate_size": 32,
            "route_scale": 1.5,
            "mup_enabled": True,
            "sliding_window": 20,
        },
    ),
    "mellum": TinyModel(
        "mellum",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "sliding_window": 20,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "flex-olmo": TinyModel("flex_olmo", {"num_experts": 6, "num_experts_per_tok": 3}),
    "hunyuan-moe": TinyModel(
        "hunyuan_v1_moe",
        {
            "head_dim": 16,
            "num_experts": 6,
            "moe_topk": 3,
            "tie_word_embeddings": True,
            **rope(rope_type="dynamic", factor=1.0, alpha=50.0),
        },
    ),
    "hy-v3": TinyModel(
        "hy_v3",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "num_shared_experts": 2,
        },
    ),
    # Queries grow from position 32 on.
    "mistral4": TinyModel(
        "mistral4",
        _LATENT
        | {
            "first_k_dense_replace": 1,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            **rope(
                rope_type="yarn",
                factor=8.0,
                original_max_position_embeddings=32,
                llama_4_scaling_beta=0.4,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        },
    ),
    "granitemoeshared": TinyModel(
        "granitemoeshared",
        {
            "num_local_experts": 6,
            "shared_intermediate_size": 40,
            "embedding_multiplier": 3.3,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.19,
            "logits_scaling": 1.7,
        },
    ),
}
