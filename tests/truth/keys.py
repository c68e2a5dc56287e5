"""What the tables of architectures are written with: the keys that many share, and their values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ABSENT = object()
VOCAB_SIZE = 160
TRAINED = "original_max_position_embeddings"
FULL, SLIDING = "full_attention", "sliding_attention"

Config = dict[str, Any]
Choices = dict[str, tuple[Any, ...]]

EPS = (1e-6, 1e-5, 1e-3, 0.05, ABSENT)
FLAG = (True, False, ABSENT)
WINDOW = (4, 9, 16, 40, 4096, None, ABSENT)
SLIDES = {"use_sliding_window": True, "sliding_window": 9}
LENGTHS = (48, 64, 200, 512)
THETAS = (10000.0, 10000, 500000.0, 1e6, 100.0)
ENDS: Choices = {
    "bos_token_id": (1, None, ABSENT),
    "eos_token_id": (2, [2, 3], None, ABSENT),
    "pad_token_id": (0, None, ABSENT),
}
SMALL_PAD: Choices = {"pad_token_id": (0, None)}
"""Of model types whose own padding token is beyond the vocabulary."""
GATED: Choices = ENDS | {
    "max_position_embeddings": LENGTHS,
    "rms_norm_eps": EPS,
    "hidden_act": ("silu", "silu", "silu", "silu", "swish", ABSENT, ABSENT, "gelu"),
    "tie_word_embeddings": FLAG,
    "is_causal": (*[ABSENT] * 12, True, False),
    "dtype": ("float32", ABSENT),
    "torch_dtype": ("float32", ABSENT),
}
QWEN: Choices = GATED | {
    "use_sliding_window": (True, True, False, ABSENT),
    "sliding_window": WINDOW,
    "max_window_layers": (0, 1, 2, ABSENT),
    "layer_types": ("types", ABSENT, ABSENT, None),
}
FACTORS: Choices = {
    "attention_bias": FLAG,
    "mlp_bias": FLAG,
    "embedding_multiplier": (12.0, 3, 0.3, ABSENT),
    "residual_multiplier": (0.22, 1.7, ABSENT),
    "attention_multiplier": (0.015625, 0.3),
    "logits_scaling": (8.0, 0.7, 3, ABSENT),
}
"""Granite's."""
SINKS_AND_WINDOWS: Choices = {
    "sliding_window": (4, 9, 40, ABSENT),
    "layer_types": ("types", ABSENT, None),
    "layer_rope_theta": ([1e4, 1e4, 0], [0, 0, 0], [5e5, 3, 3.0], None, ABSENT),
}
EXPERTS: Choices = {
    "num_experts": (4, 6, 8),
    "num_experts_per_tok": (1, 2, 3, 4),
    "norm_topk_prob": FLAG,
}
SPARSE: Choices = {
    "moe_intermediate_size": (16, 24, 40),
    "decoder_sparse_step": (1, 1, 2, ABSENT),
    "mlp_only_layers": ([], [0], None, ABSENT),
}
MLA: Choices = GATED | {
    "attention_bias": FLAG,
    "q_lora_rank": (16, 24, None),
    "kv_lora_rank": (16, 20, 32),
    "qk_rope_head_dim": (4, 8, 16),
    "qk_nope_head_dim": (8, 12, 16),
    "v_head_dim": (8, 16, 20),
}
GEMMA: Choices = (
    {k: v for k, v in GATED.items() if k != "hidden_act"}
    | {"attention_bias": FLAG, "use_bidirectional_attention": (False, ABSENT, None)}
)  # fmt: skip
GELUS = ("gelu_pytorch_tanh", "gelu", "gelu_new", ABSENT)
GEMMA2: Choices = GEMMA | {
    "hidden_activation": GELUS,
    "query_pre_attn_scalar": (16, 20, 256, ABSENT),
    "sliding_window": (4, 9, 40, ABSENT),
    "layer_types": ("types", ABSENT, ABSENT, None),
    "final_logit_softcapping": (8.0, None, ABSENT),
}
GEMMA4_ROPES = {
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.6,
        "rope_theta": 3e4,
        "factor": 2.0,
    },
    "sliding_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e3},
}
ENCODER: Choices = {
    "max_position_embeddings": (64, 96),
    "hidden_act": ("gelu", "relu", "gelu_new", "gelu_pytorch_tanh", ABSENT),
    "layer_norm_eps": (1e-12, 1e-5, 0.05, ABSENT),
    "type_vocab_size": (1, 2, 3, ABSENT),
    "pad_token_id": (0, 1, 4, ABSENT),
}
HEAD: Choices = {
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
        mixers: what "mixed" in the place of a list draws for each layer.
        steps: the oracle takes one token after another with a cache; else all at once. Some cached
            steps of Transformers are wrong (Bamba's differ in float64, Mamba-2's forget limits).
    """

    stem: str
    keys: Choices
    rope: str = "flat"
    heads: bool = True
    tasks: tuple[str, ...] = ("generate", "generate", "generate", "classify")
    sizes: dict[str, str] = field(default_factory=dict)
    mixers: tuple[str, ...] = ()
    steps: bool = True
