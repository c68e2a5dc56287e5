"""Tiny configurations of models whose MLPs are dense."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

VOCAB_SIZE = 256
MAX_POSITIONS = 512

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_GATED: dict[str, Any] = _BASE | {"intermediate_size": 80, "num_key_value_heads": 2}


_UNGATED = ("gpt2", "opt", "gpt_bigcode", "gpt_neo", "gptj", "falcon")


@dataclass(frozen=True)
class TinyModel:
    """A model type of Transformers and its changes to the common small config."""

    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        base = _BASE if self.model_type in _UNGATED else _GATED
        return base | self.changes


def rope(**params: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **params}}


_GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 20,
    "final_logit_softcapping": 30.0,
}

DENSE_MODELS: dict[str, TinyModel] = {
    # The small ones: layers' own embeddings, and two layers that borrow keys and values.
    "gemma4": TinyModel(
        "gemma4_text",
        _GEMMA4
        | {
            "num_hidden_layers": 5,
            "layer_types": ["sliding_attention"] + ["sliding_attention", "full_attention"] * 2,
            "global_head_dim": 32,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB_SIZE,
        },
    ),
    # The large ones: values made of keys.
    "gemma4-values-of-keys": TinyModel(
        "gemma4_text",
        _GEMMA4
        | {
            "global_head_dim": 24,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
        },
    ),
    "gemma4-experts": TinyModel(
        "gemma4_text",
        _GEMMA4
        | {
            "global_head_dim": 24,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 3,
            "moe_intermediate_size": 24,
        },
    ),
    "llama": TinyModel("llama"),
    "llama-mha-tied-biases": TinyModel(
        "llama",
        {
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    # A head size that is no multiple of 8 has a kernel of its own.
    "llama-mqa-head-dim": TinyModel("llama", {"num_key_value_heads": 1, "head_dim": 20}),
    "llama-rope-llama3": TinyModel(
        "llama",
        rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "llama-rope-linear": TinyModel("llama", rope(rope_type="linear", factor=2.0)),
    "llama-rope-yarn": TinyModel(
        "llama", rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64)
    ),
    "qwen2": TinyModel("qwen2"),
    "qwen2-sliding-tied": TinyModel(
        "qwen2",
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 1,
        },
    ),
    "qwen3": TinyModel("qwen3", {"head_dim": 40}),
    "qwen3-mha-tied-biases": TinyModel(
        "qwen3",
        {
            "head_dim": 16,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
    ),
    "mistral": TinyModel("mistral", {"sliding_window": None}),
    "mistral-sliding": TinyModel("mistral", {"sliding_window": 24}),
    "phi3": TinyModel("phi3", {"sliding_window": 30, "head_dim": 24}),
    "phi3-longrope": TinyModel(
        "phi3",
        {"tie_word_embeddings": True, "original_max_position_embeddings": 64}
        | rope(
            rope_type="longrope",
            short_factor=[1.0, 1.1, 1.3, 1.4, 1.6, 1.9, 2.1, 2.2],
            long_factor=[1.0, 1.5, 2.5, 4.0, 6.0, 8.0, 9.0, 9.5],
        ),
    ),
    "gemma": TinyModel("gemma", {"head_dim": 8, "num_key_value_heads": 1}),
    "gemma2": TinyModel(
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": 20,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
        },
    ),
    "gemma2-uncapped": TinyModel(
        "gemma2",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
    ),
    "gemma3": TinyModel(
        "gemma3_text",
        {
            "head_dim": 16,
            "num_hidden_layers": 3,
            "sliding_window": 20,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "olmo2": TinyModel("olmo2", {"rms_norm_eps": 0.01}),
    "olmo2-mha-tied": TinyModel("olmo2", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "starcoder2": TinyModel("starcoder2", {"sliding_window": 20}),
    "starcoder2-no-biases": TinyModel(
        "starcoder2", {"use_bias": False, "tie_word_embeddings": False, "hidden_act": "relu"}
    ),
    "stablelm": TinyModel("stablelm", {"head_dim": 16}),
    "stablelm-biases": TinyModel("stablelm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "smollm3": TinyModel("smollm3", {"num_hidden_layers": 4, "tie_word_embeddings": False}),
    "smollm3-sliding": TinyModel(
        "smollm3",
        {"use_sliding_window": True, "sliding_window": 20, "no_rope_layers": [1, 0]},
    ),
    "granite": TinyModel(
        "granite",
        {
            "embedding_multiplier": 3.3,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.19,
            "logits_scaling": 1.7,
        },
    ),
    "granite4": TinyModel(
        "granitemoehybrid",
        {
            "num_local_experts": 0,
            "shared_intermediate_size": 72,
            "layer_types": ["full_attention"] * 2,
            "position_embedding_type": "rope",
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.19,
        },
    ),
    "granite4-no-positions": TinyModel(
        "granitemoehybrid", {"num_local_experts": 0, "layer_types": ["full_attention"] * 2}
    ),
    "seed_oss": TinyModel("seed_oss", {"head_dim": 24}),
    "olmo3": TinyModel(
        "olmo3",
        {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    # Null would be GLM-4's own end tokens, which are beyond this vocabulary.
    "glm4": TinyModel("glm4", {"head_dim": 16, "eos_token_id": 0}),
    "glm": TinyModel("glm", {"head_dim": 16, "eos_token_id": 0}),
    "exaone4": TinyModel(
        "exaone4",
        {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "exaone4-full": TinyModel(
        "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}
    ),
    "cohere": TinyModel("cohere", {"num_key_value_heads": 2, "logit_scale": 0.7}),
    "cohere2": TinyModel(
        "cohere2", {"num_hidden_layers": 4, "sliding_window": 20, "logit_scale": 0.7}
    ),
    "hunyuan": TinyModel(
        "hunyuan_v1_dense",
        {"head_dim": 16, **rope(rope_type="dynamic", factor=1.0, alpha=50.0)},
    ),
    # Queries grow from position 32 on.
    "ministral3": TinyModel(
        "ministral3",
        {
            "head_dim": 16,
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
    "ministral": TinyModel(
        "ministral",
        {
            "head_dim": 24,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "cwm": TinyModel("cwm", {"head_dim": 24, "sliding_window": 20, "eos_token_id": 0}),
    "phi": TinyModel("phi", {"partial_rotary_factor": 0.4}),
    "gpt-neox": TinyModel(
        "gpt_neox", {"num_key_value_heads": 4, **rope(partial_rotary_factor=0.5)}
    ),
    "gpt-neox-in-turn": TinyModel(
        "gpt_neox",
        {
            "num_key_value_heads": 4,
            "use_parallel_residual": False,
            "attention_bias": False,
            "hidden_act": "relu",
        },
    ),
    "vaultgemma": TinyModel(
        "vaultgemma",
        {
            "head_dim": 16,
            "sliding_window": 20,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
        },
    ),
    "jais2": TinyModel("jais2"),
    "hyperclovax": TinyModel(
        "hyperclovax",
        {
            "embedding_multiplier": 3.3,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.19,
            "logits_scaling": 0.6,
        },
    ),
    "granite-swa": TinyModel(
        "granite_swa",
        {
            "num_hidden_layers": 4,
            "sliding_window": 20,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.19,
            "layer_rope_theta": [0, 3e4, 1e4, 1e4],
            "layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2,
        },
    ),
    "apertus": TinyModel("apertus", {"head_dim": 24, **rope()}),
    "gpt-bigcode": TinyModel("gpt_bigcode"),
    "gpt-bigcode-heads": TinyModel("gpt_bigcode", {"multi_query": False, "n_inner": 96}),
    "gpt-neo": TinyModel(
        "gpt_neo", {"window_size": 20, "attention_types": [[["global", "local"], 1]]}
    ),
    "gptj": TinyModel("gptj", {"rotary_dim": 12}),
    "falcon": TinyModel(
        "falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}
    ),
    "falcon-7b": TinyModel("falcon", {"tie_word_embeddings": False}),
    "falcon-11b": TinyModel(
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 1, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-in-turn": TinyModel(
        "falcon", {"parallel_attn": False, "multi_query": False, "bias": True}
    ),
    "helium": TinyModel("helium", {"head_dim": 16, "attention_bias": True}),
    "olmo": TinyModel("olmo"),
    "nanochat": TinyModel("nanochat", {"final_logit_softcapping": 5.0, "attention_bias": True}),
    "nemotron": TinyModel("nemotron", {"num_key_value_heads": 2}),
    "arcee": TinyModel("arcee", {"num_key_value_heads": 2}),
    "phi4-mini": TinyModel(
        "phi3",
        {
            "sliding_window": None,
            "tie_word_embeddings": True,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_theta": 10000.0,
                "rope_type": "longrope",
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.1, 1.3, 1.4, 1.6, 1.9],
                "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.0],
            },
        },
    ),
    # Phi-4 has Phi-3's layers, and neither window nor scaled RoPE.
    "phi4": TinyModel(
        "phi3", {"num_key_value_heads": 1, "sliding_window": None, **rope(rope_theta=250000.0)}
    ),
    "bitnet": TinyModel("bitnet"),
    "bitnet-tied": TinyModel("bitnet", {"tie_word_embeddings": True}),
    "bitnet-biased-silu": TinyModel(
        "bitnet", {"attention_bias": True, "hidden_act": "silu", "tie_word_embeddings": True}
    ),
    "falcon3": TinyModel("llama", {"head_dim": 32, **rope(rope_theta=1000042.0)}),
    "ernie4_5": TinyModel("ernie4_5", {"head_dim": 16, "use_bias": True}),
    "internlm3": TinyModel("internlm3", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "gpt2": TinyModel("gpt2"),
    "opt": TinyModel("opt", {"ffn_dim": 96}),
    "opt-untied-gelu": TinyModel(
        "opt", {"ffn_dim": 96, "tie_word_embeddings": False, "activation_function": "gelu"}
    ),
}

DYNAMIC_ROPE = TinyModel(
    "llama", {"max_position_embeddings": 48} | rope(rope_type="dynamic", factor=2.0)
)
