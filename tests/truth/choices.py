"""Random config.json files: for each architecture a table of what each key may be.

`ABSENT` leaves a key out. Most values are ones that Transformers computes; a few are mistakes, or
two statements that contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

ABSENT = object()
VOCAB_SIZE = 160
TRAINED = "original_max_position_embeddings"
FULL, SLIDING = "full_attention", "sliding_attention"

Config = dict[str, Any]
Choices = dict[str, tuple[Any, ...]]

_EPS = (1e-6, 1e-5, 1e-3, 0.05, ABSENT)
_FLAG = (True, False, ABSENT)
_WINDOW = (4, 9, 16, 40, 4096, None, ABSENT)
_SLIDES = {"use_sliding_window": True, "sliding_window": 9}
_LENGTHS = (48, 64, 200, 512)
_THETAS = (10000.0, 10000, 500000.0, 1e6, 100.0)
_ENDS: Choices = {
    "bos_token_id": (1, None, ABSENT),
    "eos_token_id": (2, [2, 3], None, ABSENT),
    "pad_token_id": (0, None, ABSENT),
}
_SMALL_PAD: Choices = {"pad_token_id": (0, None)}
"""Of model types whose own padding token is beyond the vocabulary."""
_GATED: Choices = _ENDS | {
    "max_position_embeddings": _LENGTHS,
    "rms_norm_eps": _EPS,
    "hidden_act": ("silu", "silu", "silu", "silu", "swish", ABSENT, ABSENT, "gelu"),
    "tie_word_embeddings": _FLAG,
    "is_causal": (*[ABSENT] * 12, True, False),
    "dtype": ("float32", ABSENT),
    "torch_dtype": ("float32", ABSENT),
}
_QWEN: Choices = _GATED | {
    "use_sliding_window": (True, True, False, ABSENT),
    "sliding_window": _WINDOW,
    "max_window_layers": (0, 1, 2, ABSENT),
    "layer_types": ("types", ABSENT, ABSENT, None),
}
_EXPERTS: Choices = {
    "num_experts": (4, 6, 8),
    "num_experts_per_tok": (1, 2, 3, 4),
    "norm_topk_prob": _FLAG,
}
_SPARSE: Choices = {
    "moe_intermediate_size": (16, 24, 40),
    "decoder_sparse_step": (1, 1, 2, ABSENT),
    "mlp_only_layers": ([], [0], None, ABSENT),
}
_MLA: Choices = _GATED | {
    "attention_bias": _FLAG,
    "q_lora_rank": (16, 24, None),
    "kv_lora_rank": (16, 20, 32),
    "qk_rope_head_dim": (4, 8, 16),
    "qk_nope_head_dim": (8, 12, 16),
    "v_head_dim": (8, 16, 20),
}
_GEMMA: Choices = (
    {k: v for k, v in _GATED.items() if k != "hidden_act"}
    | {"attention_bias": _FLAG, "use_bidirectional_attention": (False, ABSENT, None)}
)  # fmt: skip
_GELUS = ("gelu_pytorch_tanh", "gelu", "gelu_new", ABSENT)
_GEMMA2: Choices = _GEMMA | {
    "hidden_activation": _GELUS,
    "query_pre_attn_scalar": (16, 20, 256, ABSENT),
    "sliding_window": (4, 9, 40, ABSENT),
    "layer_types": ("types", ABSENT, ABSENT, None),
    "final_logit_softcapping": (8.0, None, ABSENT),
}
_ENCODER: Choices = {
    "max_position_embeddings": (64, 96),
    "hidden_act": ("gelu", "relu", "gelu_new", "gelu_pytorch_tanh", ABSENT),
    "layer_norm_eps": (1e-12, 1e-5, 0.05, ABSENT),
    "type_vocab_size": (1, 2, 3, ABSENT),
    "pad_token_id": (0, 1, 4, ABSENT),
}
_HEAD: Choices = {
    "num_labels": (1, 2, 3, 4, ABSENT),
    "problem_type": (
        "regression", "multi_label_classification", None, ABSENT, ABSENT,
        "single_label_classification", "ranking",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """A model type: its class's stem, its keys, and what about it is drawn by code below.

    Attributes:
        rope: "flat" is one table for all layers, "nested" one for each kind, "" none.
        heads: key-value heads and head_dim are keys of the config.
        tasks: what Transformers can compute with it.
    """

    stem: str
    keys: Choices
    rope: str = "flat"
    heads: bool = True
    tasks: tuple[str, ...] = ("generate", "generate", "generate", "classify")
    sizes: dict[str, str] = field(default_factory=dict)


_GPT2_SIZES = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer",
               "num_attention_heads": "n_head", "intermediate_size": "n_inner"}  # fmt: skip
_DISTIL_SIZES = {"hidden_size": "dim", "num_hidden_layers": "n_layers",
                 "num_attention_heads": "n_heads", "intermediate_size": "hidden_dim"}  # fmt: skip
_SCALINGS = {"phi3": "longrope", "ministral3": "yarn", "hunyuan_v1_dense": "dynamic"}
"""Scalings that a model type has in a way of its own."""
_POOLS = ("embed", "classify")
_HEAD_DIMS = {
    "gpt_oss": 64,
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), 256),
} | dict.fromkeys(
    ("qwen3", "seed_oss", "glm4", "ernie4_5", "internlm3", "ministral3", "llama4_text"), 128
)
"""Heads' widths where the config does not say, and they are not hidden_size / heads."""
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("Llama", _GATED | {"attention_bias": _FLAG, "mlp_bias": _FLAG}),
    "mistral": Architecture(
        "Mistral", _GATED | {"sliding_window": _WINDOW, "layer_types": ("types", ABSENT, None)}
    ),
    "qwen2": Architecture("Qwen2", _QWEN),
    "qwen3": Architecture("Qwen3", _QWEN | {"attention_bias": _FLAG}),
    "olmo2": Architecture("Olmo2", _GATED | {"attention_bias": _FLAG}),
    "starcoder2": Architecture(
        "Starcoder2",
        {k: v for k, v in _GATED.items() if k not in ("rms_norm_eps", "hidden_act")}
        | {
            "norm_epsilon": _EPS,
            "hidden_act": ("gelu_pytorch_tanh", "gelu", "relu", ABSENT),
            "use_bias": _FLAG,
            "sliding_window": _WINDOW,
        },
    ),
    "stablelm": Architecture(
        "StableLm",
        {k: v for k, v in _GATED.items() if k != "rms_norm_eps"}
        | {
            "layer_norm_eps": _EPS,
            "head_dim": (ABSENT,),  # Transformers' attention has no such key here
            "use_qkv_bias": _FLAG,
            "qk_layernorm": (*[ABSENT] * 8, False, True),
            "use_parallel_residual": (*[ABSENT] * 8, False, True),
        },
    ),
    "smollm3": Architecture(
        "SmolLM3",
        _GATED
        | _SMALL_PAD
        | {
            "attention_bias": _FLAG,
            "mlp_bias": _FLAG,
            "use_sliding_window": (True, False, ABSENT),
            "sliding_window": _WINDOW,
            "layer_types": ("types", ABSENT, ABSENT, None),
            "no_rope_layers": ([1, 0, 1], [0, 0, 1], None, ABSENT),
            "no_rope_layer_interval": (2, 3, ABSENT),
        },
    ),
    "granite": Architecture(
        "Granite",
        _GATED
        | {
            "attention_bias": _FLAG,
            "mlp_bias": _FLAG,
            "embedding_multiplier": (12.0, 3, 0.3, ABSENT),
            "residual_multiplier": (0.22, 1.7, ABSENT),
            "attention_multiplier": (0.015625, 0.3),
            "logits_scaling": (8.0, 0.7, 3, ABSENT),
        },
        tasks=("generate",),
    ),
    "granitemoehybrid": Architecture(
        "GraniteMoeHybrid",
        _GATED
        | {
            "attention_bias": _FLAG,
            "layer_types": ("full",),  # others have Mamba layers: `tests/golden/test_recurrent`
            "num_local_experts": (0,),
            "shared_intermediate_size": (40, 64),
            "mamba_n_heads": (2,),  # which Transformers checks without Mamba layers too
            "position_embedding_type": ("rope", "rope", None, ABSENT),
            "residual_multiplier": (0.22, 1.7, ABSENT),
            "attention_multiplier": (0.015625, 0.3),
        },
        tasks=("generate",),
    ),
    "seed_oss": Architecture(
        "SeedOss",
        _GATED | {"attention_bias": _FLAG, "attention_out_bias": _FLAG, "mlp_bias": _FLAG},
    ),
    "olmo3": Architecture(
        "Olmo3",
        _GATED
        | {
            "attention_bias": _FLAG,
            "sliding_window": (4, 9, 40, ABSENT),
            "layer_types": ("types", ABSENT, None),
        },
        rope="nested",
    ),
    "glm4": Architecture(
        "Glm4", _GATED | _SMALL_PAD | {"attention_bias": _FLAG, "eos_token_id": (2, [2, 3])}
    ),
    "exaone4": Architecture(
        "Exaone4",
        _GATED
        | {
            "sliding_window": _WINDOW,
            "sliding_window_pattern": (2, 3, "LLLG", ABSENT),
            "layer_types": ("types", ABSENT, None),
        },
    ),
    "cohere2": Architecture(
        "Cohere2",
        {k: v for k, v in _GATED.items() if k != "rms_norm_eps"}
        | {
            "layer_norm_eps": _EPS,
            "attention_bias": _FLAG,
            "logit_scale": (0.0625, 1.3, ABSENT),
            "sliding_window": (4, 9, 40, ABSENT),
            "sliding_window_pattern": (2, 3, ABSENT),
            "layer_types": ("types", ABSENT, None),
        },
        tasks=("generate",),
    ),
    "hunyuan_v1_dense": Architecture(
        "HunYuanDenseV1", _GATED | {"attention_bias": _FLAG, "head_dim": (8, 16, 24, 40)}
    ),
    "ministral3": Architecture("Ministral3", _GATED | {"sliding_window": _WINDOW}),
    "nemotron": Architecture(
        "Nemotron",
        {k: v for k, v in _GATED.items() if k != "rms_norm_eps"}
        | {
            "norm_eps": _EPS,
            "hidden_act": ("relu2", "relu", "gelu", ABSENT),
            "attention_bias": _FLAG,
            "mlp_bias": _FLAG,
        },
    ),
    "ernie4_5": Architecture("Ernie4_5", _GATED | {"use_bias": _FLAG}, tasks=("generate",)),
    "internlm3": Architecture(
        "InternLM3",
        _GATED | {"attention_bias": (*[ABSENT] * 8, True), "mlp_bias": (False, ABSENT)},
        tasks=("generate",),
    ),
    "phi3": Architecture("Phi3", _GATED | {"sliding_window": _WINDOW}),
    "gemma": Architecture("Gemma", _GEMMA | {"hidden_act": _GELUS}),
    "gemma2": Architecture("Gemma2", _GEMMA2 | {"attn_logit_softcapping": (8.0, None, ABSENT)}),
    "gemma3_text": Architecture(
        "Gemma3Text", _GEMMA2 | {"sliding_window_pattern": (2, 3, ABSENT)}, rope="nested"
    ),
    "mixtral": Architecture(
        "Mixtral",
        _GATED
        | {
            "sliding_window": _WINDOW,
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3, ABSENT),
        },
    ),
    "olmoe": Architecture(
        "Olmoe",
        _GATED
        | {
            "attention_bias": _FLAG,
            "clip_qkv": (*[ABSENT] * 8, None, 4.0),
            "head_dim": (ABSENT,),  # Transformers' norms have no such key here
            **_EXPERTS,
        },
    ),
    "qwen2_moe": Architecture(
        "Qwen2Moe",
        _QWEN
        | _EXPERTS
        | _SPARSE
        | {"qkv_bias": _FLAG, "shared_expert_intermediate_size": (24, 32, 100)},
    ),
    "qwen3_moe": Architecture(
        "Qwen3Moe",
        {k: v for k, v in _QWEN.items() if k not in ("max_window_layers", "layer_types")}
        | _EXPERTS
        | _SPARSE
        | {"attention_bias": _FLAG},
    ),
    "ernie4_5_moe": Architecture(
        "Ernie4_5_Moe",
        {k: v for k, v in _GATED.items() if k != "hidden_act"}
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
        {k: v for k, v in _GATED.items() if k != "hidden_act"}
        | {
            "attention_bias": _FLAG,
            "sliding_window": (4, 9, 40, ABSENT),
            "layer_types": ("types", ABSENT, ABSENT, None),
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3, 4, ABSENT),
            "swiglu_limit": (*[ABSENT] * 6, 7.0, 5.0),
        },
    ),
    "bitnet": Architecture(
        "BitNet",
        _GATED
        | {
            "hidden_act": ("relu2", "relu2", ABSENT, "silu"),
            "attention_bias": _FLAG,
            "head_dim": (ABSENT,),
        },
        tasks=("generate",),
    ),
    "llama4_text": Architecture(
        "Llama4Text",
        {k: v for k, v in _GATED.items() if k != "hidden_act"}
        | {
            "attention_bias": _FLAG,
            "intermediate_size_mlp": (32, 56),
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, ABSENT),
            "interleave_moe_layer_step": (1, 2, ABSENT),
            "moe_layers": ([0], *[ABSENT] * 3),
            "no_rope_layer_interval": (2, 3, ABSENT),
            "use_qk_norm": _FLAG,
            "attention_chunk_size": (4, 9, 40, ABSENT),
            "attn_temperature_tuning": _FLAG,
            "floor_scale": (5, 16, ABSENT),
            "attn_scale": (0.1, 0.5, ABSENT),
        },
        tasks=("generate",),
    ),
    "phimoe": Architecture(
        "Phimoe",
        {k: v for k, v in _GATED.items() if k != "hidden_act"}
        | {
            "attention_bias": _FLAG,
            "lm_head_bias": _FLAG,
            "sliding_window": _WINDOW,
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (2, 2, ABSENT, 1),
            "router_jitter_noise": (0.01, 0.1, ABSENT),
        },
    ),
    "granitemoe": Architecture(
        "GraniteMoe",
        {k: v for k, v in _GATED.items() if k != "hidden_act"}
        | {
            "head_dim": (ABSENT,),
            "attention_bias": _FLAG,
            "num_local_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3, ABSENT),
            "embedding_multiplier": (12.0, 1.0, ABSENT),
            "residual_multiplier": (0.22, 1.0, ABSENT),
            "attention_multiplier": (0.2, ABSENT),
            "logits_scaling": (8.0, 1.0, ABSENT),
        },
    ),
    "glm4_moe": Architecture(
        "Glm4Moe",
        _GATED
        | {
            "attention_bias": _FLAG,
            "use_qk_norm": _FLAG,
            "n_routed_experts": (4, 6, 8),
            "num_experts_per_tok": (1, 2, 3),
            "moe_intermediate_size": (16, 24, 40),
            "n_shared_experts": (1, 2, ABSENT),
            "n_group": (1, 2, ABSENT),
            "topk_group": (1, ABSENT),
            "first_k_dense_replace": (0, 1, ABSENT),
            "norm_topk_prob": _FLAG,
            "routed_scaling_factor": (1.0, 2.5, ABSENT),
        },
    ),
    "deepseek_v2": Architecture(
        "DeepseekV2",
        _MLA
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
        _MLA
        | {
            "n_routed_experts": (8, 16),
            "num_experts_per_tok": (1, 2, 3),
            "n_shared_experts": (1, 2, ABSENT),
            "n_group": (1, 2, 4),
            "topk_group": (1, ABSENT),
            "first_k_dense_replace": (0, 1),
            "norm_topk_prob": _FLAG,
            "rope_interleave": (ABSENT, True, False),
            "routed_scaling_factor": (1.0, ABSENT),
            "moe_intermediate_size": (16, 24, 40),
        },
        heads=False,
    ),
    "glm4_moe_lite": Architecture(
        "Glm4MoeLite",
        _MLA
        | {
            "n_routed_experts": (8, 16),
            "num_experts_per_tok": (1, 2, 3),
            "n_shared_experts": (1, 2, ABSENT),
            "n_group": (1, 2, ABSENT),
            "topk_group": (1, ABSENT),
            "norm_topk_prob": _FLAG,
            "rope_interleave": (ABSENT, True, False),
            "routed_scaling_factor": (1.0, ABSENT),
            "moe_intermediate_size": (16, 24, 40),
        },
        heads=False,
    ),
    "minicpm3": Architecture(
        "MiniCPM3",
        _MLA
        | {
            "v_head_dim": (16, ABSENT, None),
            "scale_emb": (12, 1, ABSENT),
            "scale_depth": (1.4, ABSENT, None),
            "dim_model_base": (32, ABSENT, None),
        },
        heads=False,
    ),
    "gpt2": Architecture(
        "GPT2",
        _ENDS
        | {
            "n_positions": (200, 512),
            "n_ctx": (512, ABSENT),
            "layer_norm_epsilon": (1e-5, 0.05, ABSENT),
            "activation_function": ("gelu_new", "gelu", "relu", "silu", ABSENT),
            "tie_word_embeddings": _FLAG,
            "scale_attn_weights": (True, True, True, ABSENT, ABSENT, ABSENT, False),
        },
        rope="",
        heads=False,
        sizes=_GPT2_SIZES,
    ),
    "opt": Architecture(
        "OPT",
        _ENDS
        | {
            "max_position_embeddings": (200, 512),
            "activation_function": ("relu", "gelu", "gelu_new", ABSENT),
            "enable_bias": _FLAG,
            "tie_word_embeddings": _FLAG,
            "do_layer_norm_before": (True, True, True, ABSENT, ABSENT, ABSENT, False),
            "word_embed_proj_dim": (ABSENT, None),
        },
        rope="",
        heads=False,
        sizes={"intermediate_size": "ffn_dim"},
    ),
    "bert": Architecture("Bert", _ENCODER, rope="", heads=False, tasks=_POOLS),
    "roberta": Architecture("Roberta", _ENCODER, rope="", heads=False, tasks=_POOLS),
    "xlm-roberta": Architecture("XLMRoberta", _ENCODER, rope="", heads=False, tasks=_POOLS),
    "distilbert": Architecture(
        "DistilBert",
        {"max_position_embeddings": (64, 96), "activation": ("gelu", "relu", ABSENT)},
        rope="",
        heads=False,
        tasks=_POOLS,
        sizes=_DISTIL_SIZES,
    ),
    "modernbert": Architecture(
        "ModernBert",
        {
            "max_position_embeddings": (64, 200),
            "hidden_activation": ("gelu", "silu", ABSENT),
            "norm_eps": (1e-5, 0.05, ABSENT),
            "norm_bias": _FLAG,
            "attention_bias": _FLAG,
            "mlp_bias": _FLAG,
            "classifier_bias": _FLAG,
            "classifier_pooling": ("cls", "mean", ABSENT),
            "classifier_activation": ("gelu", "relu", ABSENT),
            "local_attention": (4, 8, 9, 128, ABSENT),
            "global_attn_every_n_layers": (1, 2, ABSENT),
            "layer_types": ("types", ABSENT, ABSENT),
            "pad_token_id": (0,), "bos_token_id": (1,), "eos_token_id": (2,),
            "cls_token_id": (1,), "sep_token_id": (2,),
        },
        rope="nested",
        heads=False,
        tasks=_POOLS,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One config.json, and what to compute with it."""

    kind: str
    task: str
    config: Config
    dtype: str
    weights_seed: int


def draw(seed: int, index: int) -> Case:
    """The `index`-th case of a seed."""
    rng = Random(f"{seed}.{index}")
    kind = list(ARCHITECTURES)[index % len(ARCHITECTURES)]
    made = ARCHITECTURES[kind]
    task = rng.choice(made.tasks)
    config: Config = {"model_type": kind, "architectures": [_class(made.stem, task)]}
    config |= _shape(rng, made)
    for key, values in made.keys.items():
        config[key] = rng.choice(values)
    if task == "classify":
        config |= {key: rng.choice(values) for key, values in _HEAD.items()}
    layers = config[made.sizes.get("num_hidden_layers", "num_hidden_layers")]
    if config.get("layer_types") == "types":
        config["layer_types"] = [rng.choice((FULL, SLIDING)) for _ in range(layers)]
        if rng.random() < 0.8:  # else some have no window, and are refused
            config |= {k: v for k, v in _SLIDES.items() if k in made.keys}
    if config.get("layer_types") == "full":
        config["layer_types"] = [FULL] * layers
    if made.rope:
        config |= _rope(rng, kind, config)
    if rng.random() < 0.02:
        del config[rng.choice(sorted(config.keys() - {"model_type", "architectures"}))]
    config = {key: value for key, value in config.items() if value is not ABSENT}
    dtype = rng.choice(("float32", "float32", "float32", "bfloat16"))
    return Case(kind, task, config, dtype, rng.randrange(1 << 30))


def _class(stem: str, task: str) -> str:
    if task == "classify":
        return f"{stem}ForSequenceClassification"
    if task == "embed":
        return f"{stem}Model"
    named = {"Gemma3Text": "Gemma3ForCausalLM", "Llama4Text": "Llama4ForCausalLM"}
    return ({"GPT2": "GPT2LMHeadModel"} | named).get(stem, f"{stem}ForCausalLM")


def _shape(rng: Random, made: Architecture) -> Config:
    """Sizes: grouped heads of many widths, odd ones and ones that do not fit included."""
    heads = rng.choice((1, 2, 4, 6, 8, 16, 32))
    width = rng.choice((8, 12, 16, 20, 24, 32, 40, 64, 6, 4, 2, 15) if heads < 8 else (4, 8, 10))
    shape: Config = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": heads * width,
        "intermediate_size": rng.choice((32, 72, 100)),
        "num_hidden_layers": rng.choice((1, 2, 3)),
        "num_attention_heads": heads,
    }
    if made.heads:
        divisors = [n for n in (1, 2, 3, 4, 6, 8, 16) if heads % n == 0]
        rare = (ABSENT, None) if rng.random() < 0.15 or heads > 8 else ()
        shape["num_key_value_heads"] = rng.choice((*divisors, *rare))
        width = ABSENT if width % 2 else width
        wide = (128, 7) if heads < 8 else ()
        shape["head_dim"] = rng.choice((ABSENT, ABSENT, width, width, 8, 10, 16, 24, 64, *wide))
    return {made.sizes.get(key, key): value for key, value in shape.items()}


def _rope(rng: Random, kind: str, config: Config) -> Config:
    """RoPE's fields in a random spelling."""
    head_dim = config.get("head_dim", ABSENT)
    if head_dim in (ABSENT, None):
        usual = config.get("hidden_size", 64) // config.get("num_attention_heads", 4)
        head_dim = _HEAD_DIMS.get(kind, usual)
    usual_part = {"stablelm": 0.25, "glm4": 0.5, "glm4_moe": 0.5, "nemotron": 0.5}.get(kind, 1.0)
    rotates_parts = kind in ("phi3", "stablelm", "glm4", "glm4_moe", "nemotron")
    partial = rng.choice((0.5, 1.0)) if rotates_parts and rng.random() < 0.4 else ABSENT
    rotary = int(head_dim * (usual_part if partial is ABSENT else partial))
    table, top = scaling(rng, rotary, _SCALINGS.get(kind, ""))
    fields = _nested(rng, kind, table) if ARCHITECTURES[kind].rope == "nested" else {}
    if not fields:
        fields = _spelled(rng, table) | top
        if partial is not ABSENT:
            inside = rng.random() < 0.5 and isinstance(fields.get("rope_parameters"), dict)
            (fields["rope_parameters"] if inside else fields)["partial_rotary_factor"] = partial
    return fields


def scaling(rng: Random, rotary: int, only: str = "") -> tuple[Config, Config]:
    """A scaling's table, and what of it stands at the top level."""
    kinds = ("default", "default", "linear", "dynamic", "llama3", "yarn", "yarn", "longrope")
    if only:  # of Phi-3 others are refused
        kinds = ("default", "default", only, only, only, only, only, "yarn")
    kind = rng.choice(kinds)
    table: Config = {"rope_type": kind}
    top: Config = {}
    if kind != "default":
        table["factor"] = rng.choice((2.0, 4, 8.0, 1.0, 40.0))
    if kind == "llama3":
        table |= {
            "low_freq_factor": rng.choice((1.0, 1)),
            "high_freq_factor": rng.choice((4.0, 2, 1)),
        }
    if kind == "yarn":
        extras: Config = {
            "beta_fast": (32, 8.0, 0, None), "beta_slow": (1, 2.0), "mscale": (1.0, 0.7),
            "mscale_all_dim": (1.0, 0.4), "attention_factor": (1.3, 1, None),
            "truncate": (True, False),
        }  # fmt: skip
        for name, values in extras.items():
            if rng.random() < 0.3:
                table[name] = rng.choice(values)
        if rng.random() < 0.1:
            table["factor"] = None
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            table[name] = [round(rng.uniform(1, 6), 2) for _ in range(rotary // 2)]
        if rng.random() < 0.5:
            table.pop("factor")
        if rng.random() < 0.3:
            table["attention_factor"] = rng.choice((1.2, 1.0))
    if only == "yarn":
        table["llama_4_scaling_beta"] = rng.choice((0.1, 0.5))
    if only == "dynamic" and rng.random() < 0.7:
        table["alpha"] = rng.choice((1000.0, 2))
    if kind in ("llama3", "yarn", "longrope"):
        # Of longrope a prompt is always longer than the first, and never than the second.
        trained = (16, 1024) if kind == "longrope" else (16, 32, 64)
        places = rng.choice(("table", "top", "both", "differ", ""))
        if places in ("table", "both", "differ"):
            table[TRAINED] = rng.choice(trained)
        if places in ("top", "both"):
            top[TRAINED] = table.get(TRAINED, rng.choice(trained))
        if places == "differ":
            top[TRAINED] = rng.choice(trained)
    if rng.random() < 0.03 and len(table) > 1:
        name = rng.choice(sorted(table.keys() - {"rope_type"}))
        table[name] = rng.choice(("4", 0, -1.0, [1.0], True))
    if rng.random() < 0.04:
        table["unheard_of"] = 1
    return table, top


def _spelled(rng: Random, table: Config) -> Config:
    """One table for all layers, in Transformers 4's words, in 5's, or in both."""
    theta = rng.choice(_THETAS)
    plain = table["rope_type"] == "default"
    older = dict(table)
    if rng.random() < 0.4:
        older["type"] = older.pop("rope_type")
    elif rng.random() < 0.05:
        older["type"] = rng.choice(("linear", table["rope_type"]))
    newer = table | {"rope_theta": theta}
    match rng.choice(("4", "4", "5", "5", "5 and a theta", "both", "mixed", "mixed", "none")):
        case "4":
            fields: Config = {"rope_theta": rng.choice((theta, ABSENT))}
            return fields | {"rope_scaling": None if plain and rng.random() < 0.7 else older}
        case "5":
            return {"rope_parameters": newer}
        case "5 and a theta":
            return {"rope_parameters": table, "rope_theta": theta}
        case "both":
            return {"rope_parameters": newer, "rope_theta": rng.choice((theta, 3e4)),
                    "rope_scaling": rng.choice((older, None))}  # fmt: skip
        case "mixed":
            base = {"rope_type": "default", "rope_theta": rng.choice((10000.0, theta))}
            return {"rope_parameters": base, "rope_scaling": older,
                    "rope_theta": rng.choice((ABSENT, base["rope_theta"], theta))}  # fmt: skip
    return {"rope_theta": rng.choice((theta, theta, ABSENT)), "rope_parameters": None}


def _nested(rng: Random, kind: str, table: Config) -> Config:
    """A table for each kind of layers, or the older names; empty for a flat one, a mistake."""
    names = {"gemma3_text": ("rope_theta", "rope_local_base_freq"), "olmo3": ("rope_theta",)}
    names_of_kind = names.get(kind, ("global_rope_theta", "local_rope_theta"))
    thetas = {name: rng.choice((*_THETAS, ABSENT)) for name in names_of_kind}
    match rng.choice(("4", "4", "5", "5", "both", "flat")):
        case "4":
            older = dict(table)
            if rng.random() < 0.2:
                older["type"] = older.pop("rope_type")
            return thetas | {"rope_scaling": rng.choice((older, older, None))}
        case "5":
            tables = {
                FULL: table | {"rope_theta": rng.choice(_THETAS)},
                SLIDING: {"rope_type": "default", "rope_theta": rng.choice(_THETAS)},
            }
            if rng.random() < 0.2:
                tables.pop(rng.choice((FULL, SLIDING)))
            return {"rope_parameters": tables}
        case "both":
            tables = {FULL: {"rope_type": "default"}, SLIDING: {"rope_type": "default"}}
            return thetas | {"rope_parameters": tables, "rope_scaling": rng.choice((table, None))}
    return {}
