"""What an absent or null key of config.json means: the same as in Transformers' config classes.

Each key of each architecture is taken away, and set to null. Quire then reads what Transformers
reads, or refuses the config and names the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from quire.core.errors import QuireError
from quire.core.model_config import ModelConfig
from quire.models.registry import HF_CLASSES, model_config

_SIZES: dict[str, Any] = {
    "vocab_size": 60_000,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
    "max_position_embeddings": 256,
}
_ENDS: dict[str, Any] = {"bos_token_id": 7, "eos_token_id": 9, "tie_word_embeddings": False}
_LLAMA = _SIZES | _ENDS | {
    "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-3, "hidden_act": "silu",
    "rope_theta": 3e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0},
}  # fmt: skip
_WIDE = _LLAMA | {"vocab_size": 300_000}
_BIAS = {"attention_bias": True}
_TYPES = ["full_attention", "sliding_attention"] * 3
_QWEN = _LLAMA | {
    "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2, "layer_types": _TYPES,
}  # fmt: skip
_GEMMA = {k: v for k, v in _LLAMA.items() if k != "hidden_act"} | _BIAS
_GEMMA2 = _GEMMA | {
    "hidden_activation": "gelu", "query_pre_attn_scalar": 16, "sliding_window": 20,
    "layer_types": _TYPES, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 7.0,
}  # fmt: skip
_TWO_ROPES = {
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    },
    "rope_scaling": None,
}
_BERT = _SIZES | {"layer_norm_eps": 1e-3, "hidden_act": "relu", "type_vocab_size": 3,
                  "pad_token_id": 4}  # fmt: skip
_EXPERTS = {"num_experts": 12, "num_experts_per_tok": 3, "norm_topk_prob": True}
_SOME = {"moe_intermediate_size": 80, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
_MLA = _SIZES | _ENDS | _BIAS | {
    "num_key_value_heads": 32, "rms_norm_eps": 1e-3, "hidden_act": "silu", "rope_theta": 3e4,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "q_lora_rank": 20, "kv_lora_rank": 24,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10,
}  # fmt: skip
_ROUTED = {
    "n_routed_experts": 24, "num_experts_per_tok": 3, "moe_intermediate_size": 80, "n_group": 4,
    "topk_group": 2, "n_shared_experts": 3, "routed_scaling_factor": 3.5,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA | _BIAS | {"mlp_bias": True},
    "mistral": _LLAMA | {"sliding_window": 20, "layer_types": _TYPES},
    "qwen2": _QWEN,
    "qwen3": _QWEN | _BIAS,
    "phi3": _LLAMA
    | {"sliding_window": 20, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 64}
    | {"rope_scaling": None},
    "olmo2": _LLAMA | _BIAS,
    "starcoder2": {k: v for k, v in _LLAMA.items() if k not in ("rms_norm_eps", "head_dim")}
    | {"norm_epsilon": 1e-3, "hidden_act": "relu", "use_bias": False, "sliding_window": 20},
    "stablelm": {k: v for k, v in _LLAMA.items() if k not in ("rms_norm_eps", "head_dim")}
    | {"layer_norm_eps": 1e-3, "use_qkv_bias": True, "hidden_size": 512},
    "smollm3": _WIDE
    | {"attention_bias": True, "mlp_bias": True, "no_rope_layers": [1, 0, 1, 1, 0, 1]}
    | {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 20},
    "granite": _WIDE
    | {"attention_bias": True, "mlp_bias": True, "embedding_multiplier": 12.0}
    | {"residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 8.0},
    "granitemoehybrid": _WIDE
    | _BIAS
    | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1}
    | {"logits_scaling": 8.0, "num_local_experts": 0, "shared_intermediate_size": 96}
    | {"position_embedding_type": "rope"}
    | {"layer_types": ["full_attention"] * 6},
    "seed_oss": _WIDE | {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
    "olmo3": {k: v for k, v in _WIDE.items() if k not in ("rope_theta", "rope_scaling")}
    | _BIAS
    | {"sliding_window": 20, "layer_types": _TYPES}
    | _TWO_ROPES,
    "glm4": _WIDE | {"attention_bias": False, "partial_rotary_factor": 1.0},
    "glm": _WIDE | {"attention_bias": False, "partial_rotary_factor": 1.0},
    "exaone4": _WIDE | {"sliding_window": 20, "sliding_window_pattern": 2, "layer_types": _TYPES},
    "cohere": {k: v for k, v in _WIDE.items() if k != "rms_norm_eps"}
    | {"layer_norm_eps": 1e-3, "attention_bias": True, "logit_scale": 0.5},
    "cohere2": {k: v for k, v in _WIDE.items() if k != "rms_norm_eps"}
    | {"layer_norm_eps": 1e-3, "attention_bias": True, "logit_scale": 0.5}
    | {"sliding_window": 20, "sliding_window_pattern": 2, "layer_types": _TYPES},
    "nemotron": {k: v for k, v in _WIDE.items() if k != "rms_norm_eps"}
    | {"norm_eps": 1e-3, "hidden_act": "relu", "attention_bias": True, "mlp_bias": True}
    | {"partial_rotary_factor": 1.0},
    "arcee": _WIDE | {"hidden_act": "relu", "attention_bias": True, "mlp_bias": True},
    "hunyuan_v1_dense": _WIDE | _BIAS,
    "ministral3": {k: v for k, v in _WIDE.items() if not k.startswith("rope_")}
    | {"sliding_window": 20, "rope_parameters": {"rope_theta": 3e4, "rope_type": "default"}},
    "ernie4_5": _WIDE | {"use_bias": True},
    "internlm3": _WIDE | {"attention_bias": False, "mlp_bias": False},
    "gemma": _GEMMA | {"hidden_act": "gelu_pytorch_tanh"},
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2
    | {"attn_logit_softcapping": None, "rope_theta": 5e5, "rope_local_base_freq": 2e4}
    | {"sliding_window_pattern": 3}
    | _TWO_ROPES,
    "gemma4_text": {k: v for k, v in _GEMMA2.items() if not k.startswith("rope_")}
    | {"attn_logit_softcapping": None, "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144}
    | {"global_head_dim": 24}
    | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 2}
    | {"hidden_size_per_layer_input": 8, "query_pre_attn_scalar": None},
    "mixtral": _LLAMA | {"sliding_window": 20, "num_local_experts": 12, "num_experts_per_tok": 3},
    "olmoe": _LLAMA | _BIAS | _EXPERTS,
    "qwen2_moe": _QWEN
    | _EXPERTS
    | _SOME
    | {"shared_expert_intermediate_size": 72, "qkv_bias": False},
    "qwen3_moe": {k: v for k, v in _QWEN.items() if k not in ("max_window_layers", "layer_types")}
    | _BIAS
    | _EXPERTS
    | _SOME,
    "ernie4_5_moe": {k: v for k, v in _LLAMA.items() if k != "head_dim"}
    | {"moe_num_experts": 12, "moe_k": 3, "moe_intermediate_size": 80, "moe_layer_interval": 2}
    | {"moe_num_shared_experts": 3, "moe_layer_start_index": 2, "moe_layer_end_index": 4},
    "granitemoe": {k: v for k, v in _LLAMA.items() if k != "head_dim"}
    | _BIAS
    | {"num_local_experts": 12, "num_experts_per_tok": 3, "attention_multiplier": 0.2},
    "bitnet": _WIDE
    | _BIAS
    | {"hidden_act": "relu2", "num_attention_heads": 20, "hidden_size": 160}
    | {"num_key_value_heads": 4},
    "llama4_text": _WIDE
    | _BIAS
    | {"num_local_experts": 12, "num_experts_per_tok": 3, "intermediate_size_mlp": 80}
    | {"interleave_moe_layer_step": 2, "no_rope_layer_interval": 3, "attention_chunk_size": 20}
    | {"use_qk_norm": False, "attn_temperature_tuning": False},
    "phimoe": _LLAMA
    | _BIAS
    | {"num_local_experts": 12, "num_experts_per_tok": 2, "sliding_window": 20}
    | {"router_jitter_noise": 0.1, "lm_head_bias": True, "rope_scaling": None},
    "gpt_oss": _WIDE
    | _BIAS
    | {"num_local_experts": 12, "num_experts_per_tok": 3, "sliding_window": 20}
    | {"layer_types": _TYPES},
    "glm4_moe": _LLAMA
    | _BIAS
    | {"rope_scaling": None, "n_routed_experts": 24, "num_experts_per_tok": 3, "n_group": 2}
    | {"topk_group": 1, "moe_intermediate_size": 80, "first_k_dense_replace": 2}
    | {"n_shared_experts": 2, "norm_topk_prob": False, "routed_scaling_factor": 2.5}
    | {"use_qk_norm": True},
    "deepseek_v2": _MLA
    | _ROUTED
    | {"topk_method": "group_limited_greedy", "first_k_dense_replace": 2},
    "deepseek_v3": _MLA
    | _ROUTED
    | {"rope_interleave": False, "norm_topk_prob": False, "first_k_dense_replace": 2},
    "glm4_moe_lite": _MLA
    | _ROUTED
    | {"rope_interleave": False, "norm_topk_prob": False}
    | {"mlp_layer_types": ["dense", "sparse"] * 3, "topk_group": 1},
    "gpt_neox": _SIZES
    | _ENDS
    | {"layer_norm_eps": 1e-3, "hidden_act": "relu", "attention_bias": False, "rotary_pct": 0.5}
    | {"rotary_emb_base": 3e4, "use_parallel_residual": False, "hidden_size": 256},
    "phi": {k: v for k, v in _LLAMA.items() if k not in ("rms_norm_eps", "head_dim")}
    | {"layer_norm_eps": 1e-3, "hidden_act": "relu", "partial_rotary_factor": 1.0},
    "ministral": _LLAMA | {"sliding_window": 20, "layer_types": _TYPES},
    "cwm": _WIDE | {"mlp_bias": True, "sliding_window": 20, "layer_types": _TYPES},
    "vaultgemma": _GEMMA2,
    "youtu": _MLA | {"vocab_size": 300_000, "rope_interleave": False},
    "dots1": _LLAMA
    | _BIAS
    | _ROUTED
    | {"norm_topk_prob": True, "first_k_dense_replace": 2, "sliding_window": 20, "topk_group": 1}
    | {"max_window_layers": 2, "layer_types": _TYPES},
    "minimax_m2": _WIDE | {"num_local_experts": 12, "num_experts_per_tok": 3, "rotary_dim": 4},
    "exaone_moe": _LLAMA
    | {k: v for k, v in _ROUTED.items() if k not in ("n_routed_experts", "n_shared_experts")}
    | {"num_experts": 24, "num_shared_experts": 3, "norm_topk_prob": False, "n_group": 2}
    | {"topk_group": 1, "first_k_dense_replace": 2, "sliding_window": 20, "layer_types": _TYPES},
    "solar_open": {k: v for k, v in _WIDE.items() if k != "intermediate_size"}
    | _BIAS
    | _ROUTED
    | {"norm_topk_prob": False, "n_group": 2, "topk_group": 1},
    "granitemoeshared": {k: v for k, v in _LLAMA.items() if k != "head_dim"}
    | _BIAS
    | {"num_local_experts": 12, "num_experts_per_tok": 3, "shared_intermediate_size": 40}
    | {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2}
    | {"logits_scaling": 1.5},
    "jais2": {k: v for k, v in _WIDE.items() if k != "rms_norm_eps"}
    | {"layer_norm_eps": 1e-3, "hidden_act": "relu", "attention_bias": False, "mlp_bias": False},
    "hyperclovax": _WIDE
    | {"attention_bias": True, "mlp_bias": True, "embedding_multiplier": 12.0}
    | {"residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 8.0}
    | {"use_post_norm": False},
    "granite_swa": _WIDE
    | {"attention_bias": True, "mlp_bias": True, "embedding_multiplier": 12.0}
    | {"residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 8.0}
    | {"sliding_window": 20, "layer_types": _TYPES, "layer_rope_theta": [0, 3e4] * 3},
    "granitemoe_swa": {k: v for k, v in _LLAMA.items() if k != "head_dim"}
    | _BIAS
    | {"num_local_experts": 12, "num_experts_per_tok": 3, "shared_intermediate_size": 40}
    | {"attention_multiplier": 0.2, "sliding_window": 20, "layer_types": _TYPES}
    | {"layer_rope_theta": [0, 3e4] * 3},
    "afmoe": _WIDE
    | _BIAS
    | {"num_experts": 12, "num_experts_per_tok": 3, "num_shared_experts": 3}
    | {"moe_intermediate_size": 80, "num_dense_layers": 2, "route_scale": 1.5}
    | {"mup_enabled": True, "global_attn_every_n_layers": 3, "sliding_window": 20},
    "mellum": {k: v for k, v in _WIDE.items() if not k.startswith("rope_")}
    | _BIAS
    | {k: v for k, v in _TWO_ROPES.items() if k != "rope_scaling"}
    | {"num_local_experts": 12, "num_experts_per_tok": 3, "norm_topk_prob": False}
    | {"moe_intermediate_size": 80, "sliding_window": 20, "layer_types": _TYPES}
    | {"mlp_layer_types": ["dense", "sparse"] * 3},
    "flex_olmo": {k: v for k, v in _WIDE.items() if k != "head_dim"} | _BIAS | _EXPERTS,
    "hunyuan_v1_moe": _WIDE | _BIAS | {"num_experts": 12, "moe_topk": 3},
    "hy_v3": _WIDE
    | _BIAS
    | {"num_experts": 12, "num_experts_per_tok": 3, "num_shared_experts": 3}
    | {"moe_intermediate_size": 80, "router_scaling_factor": 1.5}
    | {"mlp_layer_types": ["dense", "sparse"] * 3},
    "minicpm3": _MLA | {"scale_emb": 3, "scale_depth": 2.0, "dim_model_base": 32},
    "gpt2": _ENDS
    | {"vocab_size": 60_000, "n_embd": 128, "n_inner": 96, "n_layer": 6, "n_head": 32}
    | {"n_positions": 256, "layer_norm_epsilon": 1e-3, "activation_function": "relu"},
    "opt": _SIZES
    | _ENDS
    | {"ffn_dim": 96, "activation_function": "gelu", "enable_bias": False}
    | {"word_embed_proj_dim": 128, "do_layer_norm_before": True},
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": {"vocab_size": 60_000, "dim": 128, "hidden_dim": 96, "n_layers": 6, "n_heads": 32}
    | {"max_position_embeddings": 256, "activation": "relu"},
    "modernbert": {k: v for k, v in _SIZES.items() if k != "intermediate_size"}
    | {"intermediate_size": 96, "norm_eps": 1e-3, "norm_bias": True, "mlp_bias": True}
    | {"attention_bias": True, "hidden_activation": "silu", "local_attention": 8}
    | {"global_attn_every_n_layers": 2, "layer_types": _TYPES, "classifier_bias": True}
    | {"classifier_activation": "relu", "global_rope_theta": 5e5, "local_rope_theta": 2e4}
    | _TWO_ROPES,
}
REQUIRED = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings", "n_embd", "n_layer", "n_head", "n_positions", "ffn_dim", "dim",
    "hidden_dim", "n_layers", "n_heads",
}  # fmt: skip
"""Sizes, for which Transformers has defaults, too: Quire refuses a config without them."""
UNSUPPORTED_DEFAULTS = {
    "qwen2": ["use_sliding_window"],
    "qwen3": ["use_sliding_window"],
    "qwen2_moe": ["use_sliding_window"],
    "qwen3_moe": ["use_sliding_window"],
    "deepseek_v2": ["num_experts_per_tok", "n_group", "topk_group"],
    "gemma4_text": ["layer_types"],
    "hunyuan_v1_moe": ["num_experts"],
}
"""Keys whose default is something that Quire does not compute, or that contradicts others."""
_LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu")
_TANH = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}


def transformers_reads(kind: str, config: Any) -> dict[str, Any]:
    """What Transformers' config says of the fields of a `ModelConfig`."""
    get = lambda *names, default=None: next(  # noqa: E731
        (getattr(config, name) for name in names if hasattr(config, name)), default
    )
    heads = config.num_attention_heads
    activation = get("hidden_activation", "hidden_act", "activation_function", "activation")
    layers = config.num_hidden_layers
    window = get("sliding_window", "attention_chunk_size")
    types = get("layer_types") or ["sliding_attention" if window else "full_attention"] * layers
    found = {
        "num_key_value_heads": get("num_key_value_heads", default=heads),
        "head_dim": get("head_dim", default=None) or config.hidden_size // heads,
        "norm_eps": get(
            "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"
        ),
        "activation": "gelu_tanh" if activation in _TANH else activation,
        "token_types": get("type_vocab_size", default=0),
        "attention_softcap": get("attn_logit_softcapping"),
        "logits_softcap": get("final_logit_softcapping"),
        "windows": [None if kind == "full_attention" else window for kind in types],
        "qkv_bias": get("attention_bias", "enable_bias", "use_bias", "use_qkv_bias"),
        "mlp_bias": get("mlp_bias", "enable_bias", "use_bias"),
        "norm_bias": get("norm_bias"),
        "classifier_bias": get("classifier_bias"),
        "classifier_activation": get("classifier_activation"),
        "attention_scale": get("query_pre_attn_scalar") and config.query_pre_attn_scalar**-0.5,
        "embedding_scale": get("embedding_multiplier"),
        "residual_scale": get("residual_multiplier"),
        "logits_scale": get("logit_scale"),
        "output_bias": get("attention_out_bias"),
    }
    needed = ("num_experts_per_tok", "n_group", "topk_group", "v_head_dim", "route_scale")
    if None in [get(name, default=1) for name in needed]:
        raise ValueError("Transformers cannot compute this")
    if experts := get("num_local_experts", "num_experts"):
        dense, step = get("mlp_only_layers") or (), get("decoder_sparse_step", default=1)
        step = get("moe_layer_interval", "interleave_moe_layer_step", default=step)
        first = get("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", default=0)
        dense = dense or range(get("moe_layer_end_index", default=layers) + 1, layers)
        unit = "unit" if kind == "llama4_text" else "head"
        found["qk_norm"] = unit if get("use_qk_norm") else None
        found["qkv_bias"] = get("attention_bias", "qkv_bias")
        types = get("mlp_layer_types") or ["sparse"] * layers
        found["moe"] = (
            experts,
            config.num_experts_per_tok,
            get("moe_intermediate_size", "intermediate_size"),
            bool(get("norm_topk_prob", default=kind != "llama4_text")),
            get("n_shared_experts", default=0) * config.moe_intermediate_size
            if kind in ("glm4_moe", "dots1", "solar_open", *_LATENT)
            else config.num_shared_experts * config.moe_intermediate_size
            if kind in ("exaone_moe", "afmoe", "hy_v3")
            else get("moe_num_shared_experts") * config.moe_intermediate_size
            if kind == "ernie4_5_moe"
            else config.intermediate_size
            if kind in ("llama4_text", "hunyuan_v1_moe")
            else get("shared_expert_intermediate_size", "shared_intermediate_size", default=0),
            [
                i not in dense and (i + 1) % step == 0 and i >= first and types[i] == "sparse"
                for i in range(layers)
            ],
            [get(name, default=1) for name in ("n_group", "topk_group")]
            + [get("routed_scaling_factor", "route_scale", "router_scaling_factor", default=1)],
        )
    if kind in _LATENT:
        found |= {"num_key_value_heads": 1, "head_dim": None}
        names = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
        found["latent"] = [*(get(name) for name in names), get("v_head_dim")]
        found["interleaved"] = get("rope_interleave", default=kind != "minicpm3")
        if get("topk_method") == "greedy":
            found["moe"][-1][:2] = [1, 1]
    if kind == "minicpm3":
        found["embedding_scale"] = float(config.scale_emb)
        found["residual_scale"] = config.scale_depth / layers**0.5
        found["logits_scale"] = config.dim_model_base / config.hidden_size
    if kind.startswith("granite"):
        found["attention_scale"] = config.attention_multiplier
        found["logits_scale"] = 1 / config.logits_scaling
    if kind == "hyperclovax":
        found["attention_scale"] = config.attention_multiplier
        found["logits_scale"] = config.logits_scaling
    if kind == "gpt_oss":
        found["activation"] = "swigluoai"
    if kind == "smollm3":
        found["rotated_layers"] = tuple(number == 1 for number in config.no_rope_layers)
    if kind in ("distilbert", "opt"):
        found["norm_eps"] = None
    if kind in ("roberta", "xlm-roberta"):
        found["learned_positions_offset"] = config.pad_token_id + 1
    if kind not in ("bert", "roberta", "xlm-roberta", "distilbert", "modernbert"):
        eos = config.eos_token_id
        found |= {"tie_word_embeddings": config.tie_word_embeddings}
        found |= {"bos_token_id": config.bos_token_id}
        ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
        found |= {"eos_token_ids": tuple(ends)}
    rope = get("rope_parameters")
    if rope:
        nested = "full_attention" in rope
        found["rope"] = (rope["full_attention"] if nested else rope)["rope_theta"]
        if nested:
            found["local_rope"] = rope["sliding_attention"]["rope_theta"]
    return {name: value for name, value in found.items() if value is not None}


def quire_reads(kind: str, model: ModelConfig, names: Any) -> dict[str, Any]:
    others = ("windows", "interleaved")
    own: dict[str, Any] = {name: getattr(model, name) for name in names if name not in others}
    if (latent := model.latent) is not None and model.rope is not None:
        own["latent"] = [latent.q_rank, latent.rank, latent.rope_dim, latent.nope_dim]
        own["latent"].append(latent.value_dim)
        own["interleaved"] = model.rope.interleaved
    for name in ("rope", "local_rope"):
        if own.get(name) is not None:
            own[name] = own[name].theta
    if model.moe is not None:
        own["moe"] = (
            model.moe.num_experts,
            model.moe.route.top_k,
            model.moe.intermediate_size,
            model.moe.route.renormalize,
            model.moe.shared_size,
            [model.moe.in_layer(i) for i in range(model.num_hidden_layers)],
            [model.moe.route.num_groups, model.moe.route.top_groups, model.moe.route.scale],
        )
    for name in ("embedding_scale", "residual_scale", "logits_scale"):
        own[name] = 1.0 if own.get(name) is None else own[name]
    if own.get("attention_scale") is None:
        own["attention_scale"] = model.head_dim**-0.5
    own["activation"] = model.activation.removesuffix("_mul")
    behind = 1 if kind == "modernbert" else 0  # whose window counts one side, without the token
    own["windows"] = [
        None if model.window(i) is None else (model.window(i) or 0) - behind
        for i in range(model.num_hidden_layers)
    ]
    return own


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_missing_key_means_what_it_means_in_transformers(kind: str, tmp_path: Path) -> None:
    prefer = "ForCausalLM" if kind not in ("bert", "roberta", "modernbert") else "Model"
    names = [name for name, architecture in HF_CLASSES.items() if architecture == kind]
    class_name = next((name for name in names if name.endswith(prefer)), names[0])
    if kind in ("roberta", "xlm-roberta"):
        class_name = "RobertaModel" if kind == "roberta" else "XLMRobertaModel"
    config = CONFIGS[kind] | {"model_type": kind, "architectures": [class_name]}
    wrong = [
        f"{key} {how}: {problem}"
        for key in CONFIGS[kind]
        for how in ("absent", "null")
        for problem in _problems(kind, key, how, config, tmp_path)
    ]
    assert not wrong


def _problems(kind: str, key: str, how: str, config: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yield what Quire reads otherwise than Transformers if a key is absent or null."""
    config = {name: value for name, value in config.items() if name != key}
    if how == "null":
        config[key] = None
    (folder / "config.json").write_text(json.dumps(config))
    try:
        expected = transformers_reads(kind, AutoConfig.from_pretrained(folder))
    except Exception:
        expected = None
    try:
        model = model_config(config)
    except QuireError as error:
        if key not in REQUIRED and key not in str(error):
            yield f"the error does not name it: {error}"
        if not (key in REQUIRED or how == "null" or key in UNSUPPORTED_DEFAULTS.get(kind, ())):
            yield f"refused: {error}"
        return
    if expected is None:
        return
    found = quire_reads(kind, model, expected)
    for name, value in expected.items():
        same = pytest.approx(value) if isinstance(value, float) else value
        if found[name] != same:
            yield f"{name} is {found[name]!r}, in Transformers {value!r}"


_OWN_LISTS = {
    "lfm2": ("full_attn_idxs", "block_ffn_dim_multiplier", "layer_types"),
    "bamba": ("attn_layer_indices",),
    "granitemoehybrid": ("layer_types",),
    "nemotron_h": ("layers_block_type",),
    "gemma4_text": ("per_layer_config",),
    "llama4_text": ("no_rope_layers",),
}
"""Keys that `CONFIGS` leaves out or holds behind a choice."""


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_values_of_a_wrong_type_are_refused_or_read(kind: str) -> None:
    config = CONFIGS[kind] | {"model_type": kind}
    for name in (*config, *_OWN_LISTS.get(kind, ())):
        for value in (True, 3, "x", [[1]], {"a": 1}, float("inf")):
            with suppress(QuireError):
                model_config(config | {name: value})
