"""Decoders without experts: what each key of their config.json may be."""

from __future__ import annotations

from tests.truth.keys import (
    ABSENT,
    EPS,
    FACTORS,
    FLAG,
    GATED,
    GELUS,
    GEMMA,
    GEMMA2,
    GEMMA4_ROPES,
    QWEN,
    SINKS_AND_WINDOWS,
    SMALL_PAD,
    VOCAB_SIZE,
    WINDOW,
    Architecture,
)

DENSE: dict[str, Architecture] = {
    "llama": Architecture("Llama", GATED | {"attention_bias": FLAG, "mlp_bias": FLAG}),
    "mistral": Architecture(
        "Mistral", GATED | {"sliding_window": WINDOW, "layer_types": ("types", ABSENT, None)}
    ),
    "qwen2": Architecture("Qwen2", QWEN),
    "qwen3": Architecture("Qwen3", QWEN | {"attention_bias": FLAG}),
    "olmo2": Architecture("Olmo2", GATED | {"attention_bias": FLAG}),
    "starcoder2": Architecture(
        "Starcoder2",
        {k: v for k, v in GATED.items() if k not in ("rms_norm_eps", "hidden_act")}
        | {
            "norm_epsilon": EPS,
            "hidden_act": ("gelu_pytorch_tanh", "gelu", "relu", ABSENT),
            "use_bias": FLAG,
            "sliding_window": WINDOW,
        },
    ),
    "gpt_neox": Architecture(
        "GPTNeoX",
        {k: v for k, v in GATED.items() if k not in ("rms_norm_eps", "hidden_act")}
        | {
            "layer_norm_eps": EPS,
            "hidden_act": ("gelu", "gelu_new", "relu", ABSENT),
            "attention_bias": FLAG,
            "use_parallel_residual": FLAG,
            "rotary_pct": (0.5, 1.0, ABSENT),
            "rotary_emb_base": (100.0, 1e6, ABSENT),
        },
        rope="",
        heads=False,
        tasks=("generate",),
    ),
    "phi": Architecture(
        "Phi",
        {k: v for k, v in GATED.items() if k not in ("rms_norm_eps", "hidden_act")}
        | {
            "layer_norm_eps": EPS,
            "hidden_act": (*GELUS, "relu"),
            "qk_layernorm": (*[ABSENT] * 8, False, True),
        },
    ),
    "ministral": Architecture(
        "Ministral",
        GATED
        | {
            "head_dim": (8, 16),  # Transformers computes none from hidden_size
            "sliding_window": WINDOW,
            "layer_types": ("types", ABSENT, None),
        },
    ),
    "cwm": Architecture(
        "Cwm",
        {k: v for k, v in GATED.items() if k != "hidden_act"}
        | {
            "bos_token_id": (1, 7),
            "eos_token_id": (2, [2, 3]),
            "mlp_bias": FLAG,
            "sliding_window": (4, 9, 40, ABSENT),
            "layer_types": ("types", ABSENT, ABSENT, None),
        },
        tasks=("generate",),
    ),
    "vaultgemma": Architecture(
        "VaultGemma",
        {k: v for k, v in GEMMA2.items() if k != "use_bidirectional_attention"}
        | {"attn_logit_softcapping": (5.0, None, ABSENT)},
        tasks=("generate",),
    ),
    "jais2": Architecture(
        "Jais2",
        {k: v for k, v in GATED.items() if k != "rms_norm_eps"}
        | {
            "layer_norm_eps": EPS,
            "hidden_act": ("relu2", "relu", "gelu", ABSENT),
            "attention_bias": FLAG,
            "mlp_bias": FLAG,
        },
        tasks=("generate",),
    ),
    "hyperclovax": Architecture(
        "HyperCLOVAX",
        GATED
        | FACTORS
        | {"use_post_norm": FLAG, "attention_multiplier": (0.015625, 0.3, None, ABSENT)},
        tasks=("generate",),
    ),
    "granite_swa": Architecture(
        "GraniteSWA",
        GATED | FACTORS | SINKS_AND_WINDOWS,
        tasks=("generate",),
    ),
    "apertus": Architecture(
        "Apertus",
        GATED | {"hidden_act": (*["xielu"] * 4, ABSENT, "silu"), "attention_bias": FLAG},
        tasks=("generate",),
    ),
    "falcon": Architecture(
        "Falcon",
        {k: v for k, v in GATED.items() if k not in ("rms_norm_eps", "hidden_act")}
        | {
            "layer_norm_epsilon": EPS,
            "activation": ("gelu", "relu", "gelu_new", ABSENT),
            "alibi": (*[False] * 6, ABSENT, True),
            "bias": FLAG,
            "multi_query": FLAG,
            "new_decoder_architecture": FLAG,
            "num_kv_heads": (1, 2, ABSENT),
            "num_ln_in_parallel_attn": (*[ABSENT] * 4, 1, 2, None),
            "parallel_attn": (*[ABSENT] * 3, True, False),
        },
        heads=False,
        sizes={"intermediate_size": "ffn_hidden_size"},
        tasks=("generate",),
    ),
    "helium": Architecture(
        "Helium", GATED | {"attention_bias": FLAG, "mlp_bias": FLAG}
    ),
    "olmo": Architecture(
        "Olmo",
        {k: v for k, v in GATED.items() if k != "rms_norm_eps"}
        | {"attention_bias": FLAG, "clip_qkv": (*[ABSENT] * 8, None, 4.0)},
    ),
    "nanochat": Architecture(
        "NanoChat",
        GATED
        | {
            "hidden_act": ("relu2", "relu", "gelu", ABSENT),
            "attention_bias": FLAG,
            "final_logit_softcapping": (8.0, None, ABSENT),
        },
        tasks=("generate",),
    ),
    "stablelm": Architecture(
        "StableLm",
        {k: v for k, v in GATED.items() if k != "rms_norm_eps"}
        | {
            "layer_norm_eps": EPS,
            "head_dim": (ABSENT,),  # Transformers' attention has no such key here
            "use_qkv_bias": FLAG,
            "qk_layernorm": (*[ABSENT] * 8, False, True),
            "use_parallel_residual": (*[ABSENT] * 8, False, True),
        },
    ),
    "smollm3": Architecture(
        "SmolLM3",
        GATED
        | SMALL_PAD
        | {
            "attention_bias": FLAG,
            "mlp_bias": FLAG,
            "use_sliding_window": (True, False, ABSENT),
            "sliding_window": WINDOW,
            "layer_types": ("types", ABSENT, ABSENT, None),
            "no_rope_layers": ([1, 0, 1], [0, 0, 1], None, ABSENT),
            "no_rope_layer_interval": (2, 3, ABSENT),
        },
    ),
    "granite": Architecture(
        "Granite",
        GATED | FACTORS,
        tasks=("generate",),
    ),
    "seed_oss": Architecture(
        "SeedOss",
        GATED | {"attention_bias": FLAG, "attention_out_bias": FLAG, "mlp_bias": FLAG},
    ),
    "olmo3": Architecture(
        "Olmo3",
        GATED
        | {
            "attention_bias": FLAG,
            "sliding_window": (4, 9, 40, ABSENT),
            "layer_types": ("types", ABSENT, None),
        },
        rope="nested",
    ),
    "glm4": Architecture(
        "Glm4", GATED | SMALL_PAD | {"attention_bias": FLAG, "eos_token_id": (2, [2, 3])}
    ),
    "glm": Architecture(
        "Glm", GATED | SMALL_PAD | {"attention_bias": FLAG, "eos_token_id": (2, [2, 3])}
    ),
    "exaone4": Architecture(
        "Exaone4",
        GATED
        | {
            "sliding_window": WINDOW,
            "sliding_window_pattern": (2, 3, "LLLG", ABSENT),
            "layer_types": ("types", ABSENT, None),
        },
    ),
    "cohere2": Architecture(
        "Cohere2",
        {k: v for k, v in GATED.items() if k != "rms_norm_eps"}
        | {
            "layer_norm_eps": EPS,
            "attention_bias": FLAG,
            "logit_scale": (0.0625, 1.3, ABSENT),
            "sliding_window": (4, 9, 40, ABSENT),
            "sliding_window_pattern": (2, 3, ABSENT),
            "layer_types": ("types", ABSENT, None),
        },
        tasks=("generate",),
    ),
    "cohere": Architecture(
        "Cohere",
        {k: v for k, v in GATED.items() if k != "rms_norm_eps"}
        | {
            "layer_norm_eps": EPS,
            "attention_bias": FLAG,
            "logit_scale": (0.0625, 1.3, ABSENT),
        },
        tasks=("generate",),
    ),
    "hunyuan_v1_dense": Architecture(
        "HunYuanDenseV1", GATED | {"attention_bias": FLAG, "head_dim": (8, 16, 24, 40)}
    ),
    "ministral3": Architecture("Ministral3", GATED | {"sliding_window": WINDOW}),
    "nemotron": Architecture(
        "Nemotron",
        {k: v for k, v in GATED.items() if k != "rms_norm_eps"}
        | {
            "norm_eps": EPS,
            "hidden_act": ("relu2", "relu", "gelu", ABSENT),
            "attention_bias": FLAG,
            "mlp_bias": FLAG,
        },
    ),
    "arcee": Architecture(
        "Arcee",
        GATED
        | {
            "hidden_act": ("relu2", "relu", "gelu", ABSENT),
            "attention_bias": FLAG,
            "mlp_bias": FLAG,
        },
    ),
    "ernie4_5": Architecture("Ernie4_5", GATED | {"use_bias": FLAG}, tasks=("generate",)),
    "internlm3": Architecture(
        "InternLM3",
        GATED | {"attention_bias": (*[ABSENT] * 8, True), "mlp_bias": (False, ABSENT)},
        tasks=("generate",),
    ),
    "phi3": Architecture("Phi3", GATED | {"sliding_window": WINDOW}),
    "gemma": Architecture("Gemma", GEMMA | {"hidden_act": GELUS}),
    "gemma2": Architecture("Gemma2", GEMMA2 | {"attn_logit_softcapping": (8.0, None, ABSENT)}),
    "gemma3_text": Architecture(
        "Gemma3Text", GEMMA2 | {"sliding_window_pattern": (2, 3, ABSENT)}, rope="nested"
    ),
    "gemma4_text": Architecture(
        "Gemma4Text",
        {k: v for k, v in GEMMA2.items() if k != "query_pre_attn_scalar"}
        | {
            "global_head_dim": (8, 24, 40, ABSENT),
            "num_global_key_value_heads": (1, 2, None, ABSENT),
            "attention_k_eq_v": FLAG,
            "num_kv_shared_layers": (0, 0, 1, 2, ABSENT),
            "use_double_wide_mlp": FLAG,
            "hidden_size_per_layer_input": (0, 8, 12),
            "enable_moe_block": (ABSENT, False, True),
            "num_experts": (4, 6),
            "top_k_experts": (1, 3),
            "moe_intermediate_size": (16, 24),
            "vocab_size_per_layer_input": (VOCAB_SIZE,),
            "rope_parameters": (ABSENT, GEMMA4_ROPES),
        },
        rope="",
        tasks=("generate",),
    ),
}  # fmt: skip
