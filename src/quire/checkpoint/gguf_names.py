"""Names of GGUF's architectures and their tensors in Hugging Face's terms: one row for each.

All experts of a layer are one tensor in GGUF; Hugging Face's name of one, without its number,
stands for it (`models.weights.stacks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from quire.system.records import dataclass

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_GATED = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Names:
    """An architecture's names, and its tensors' (GGUF's stem → Hugging Face's, or both in full).

    Attributes:
        model_type: Hugging Face's for the architecture.
        layers: what precedes a layer's number in Hugging Face's names.
        transposed: GGUF's stems that Hugging Face stores [in, out].
        interleaved: whether q and k are stored for interleaved RoPE.
        norms_plus_one: whether norms are stored as 1 + weight.
        recurrent: whether there are recurrent layers.
    """

    model_type: str
    block: Mapping[str, str]
    top: Mapping[str, str] = field(default_factory=_TOP.copy)
    layers: str = "model.layers"
    transposed: frozenset[str] = frozenset()
    interleaved: bool = False
    norms_plus_one: bool = False
    recurrent: bool = False


def _without(block: Mapping[str, str], *stems: str) -> dict[str, str]:
    return {stem: name for stem, name in block.items() if stem not in stems}


def _mlp(name: str, suffix: str = "", parts: Sequence[str] = _GATED) -> dict[str, str]:
    """Return the names of gate, up and down in the block `name`."""
    stems = (f"ffn_{part}{suffix}" for part in ("gate", "up", "down"))
    return dict(zip(stems, (f"{name}.{part}" for part in parts), strict=True))


def _experts(name: str, router: str = "gate", parts: Sequence[str] = _GATED) -> dict[str, str]:
    return {"ffn_gate_inp": f"{name}.{router}", **_mlp(f"{name}.experts", "_exps", parts)}


def _mamba(name: str) -> dict[str, str]:
    return {
        "ssm_in": f"{name}.in_proj",
        "ssm_conv1d": f"{name}.conv1d",
        "ssm_dt.bias": f"{name}.dt_bias",
        "ssm_a": f"{name}.A_log",
        "ssm_d": f"{name}.D",
        "ssm_norm": f"{name}.norm",
        "ssm_out": f"{name}.out_proj",
    }


_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_NO_MLP = _ATTENTION | {"ffn_norm": "post_attention_layernorm"}
_BLOCK = _NO_MLP | _mlp("mlp")
_POST_NORM = {"post_attention_norm": "post_attention_layernorm"}
_POST_NORMED = _ATTENTION | _POST_NORM
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_EXPERTS = _experts("mlp") | {"ffn_gate_up_exps": "mlp.experts.gate_up_proj"}
_SHARED_EXPERT = {
    **_mlp("mlp.shared_expert", "_shexp"),
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_SHARED_EXPERTS = _mlp("mlp.shared_experts", "_shexp")
_CORRECTION = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
_MIXTRAL_BLOCK = _NO_MLP | _experts("block_sparse_moe", parts=("w1", "w3", "w2"))
_GRANITE_EXPERTS = _experts("block_sparse_moe", "router.layer")
_LATENT_BLOCK = _without(_BLOCK, "attn_k", "attn_v") | {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
}
_NEXTN = {
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}
_GEMMA2_BLOCK = _BLOCK | _POST_NORM | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_GEMMA4_BLOCK = _GEMMA2_BLOCK | _HEAD_NORMS | {
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps": "experts.gate_up_proj",
    **_mlp("experts", "_exps"),
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
}  # fmt: skip
_GEMMA4_TOP = _TOP | {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_OLMO2_BLOCK = {
    **_without(_POST_NORMED, "attn_norm"),
    **_mlp("mlp"),
    **_HEAD_NORMS,
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LFM2 = _ATTENTION | {
    "attn_norm": "operator_norm",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "attn_output": "self_attn.out_proj",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    **_mlp("feed_forward", parts=("w1", "w3", "w2")),
}
_LFM2_TOP = {**_TOP, "token_embd_norm": "model.embedding_norm"}
_BACKBONE_TOP = {**_TOP, "token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f"}
_NEMOTRON_H = {
    **{stem: name.replace("self_attn", "mixer") for stem, name in _ATTENTION.items()},
    "attn_norm": "norm",
    **_mamba("mixer"),
    "ffn_up": "mixer.up_proj",
    "ffn_down": "mixer.down_proj",
}
_QWEN35 = _POST_NORMED | _HEAD_NORMS | {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    **_without(_mamba("linear_attn"), "ssm_in", "ssm_d"),
}  # fmt: skip

MIXTRAL = Names("mixtral", _MIXTRAL_BLOCK, interleaved=True)
"""Its files say "llama"."""
NAMES: dict[str, Names] = {
    "llama": Names("llama", _BLOCK, interleaved=True),
    "mistral": Names("mistral", _BLOCK),
    "olmoe": Names("olmoe", _NO_MLP | _EXPERTS | _HEAD_NORMS),
    "qwen2": Names("qwen2", _BLOCK),
    "qwen2moe": Names("qwen2_moe", _NO_MLP | _EXPERTS | _SHARED_EXPERT),
    "qwen3": Names("qwen3", _BLOCK | _HEAD_NORMS),
    "qwen3moe": Names("qwen3_moe", _BLOCK | _EXPERTS | _HEAD_NORMS),
    "gpt2": Names(
        "gpt2",
        {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        layers="transformer.h",
        transposed=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
    ),
    "phi3": Names(
        "phi3",
        {
            **_without(_BLOCK, "attn_q", "attn_k", "attn_v", "ffn_gate"),
            "attn_qkv": "self_attn.qkv_proj",
            "ffn_up": "mlp.gate_up_proj",
        },
    ),
    "gemma": Names("gemma", _BLOCK, norms_plus_one=True),
    "gemma2": Names("gemma2", _GEMMA2_BLOCK, norms_plus_one=True),
    "gemma3": Names("gemma3_text", _GEMMA2_BLOCK | _HEAD_NORMS, norms_plus_one=True),
    "gemma4": Names("gemma4_text", _GEMMA4_BLOCK, _GEMMA4_TOP),
    "olmo2": Names("olmo2", _OLMO2_BLOCK),
    "stablelm": Names("stablelm", _BLOCK),
    "starcoder2": Names("starcoder2", _NO_MLP | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
    "smollm3": Names("smollm3", _BLOCK, interleaved=True),
    "granite": Names("granite", _BLOCK, interleaved=True),
    "seed_oss": Names("seed_oss", _POST_NORMED | _mlp("mlp")),
    "glm4": Names(
        "glm4",
        {
            **_without(_BLOCK, "ffn_gate"),
            "post_attention_norm": "post_self_attn_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "post_ffw_norm": "post_mlp_layernorm",
        },
    ),
    "exaone4": Names("exaone4", _OLMO2_BLOCK),
    "cohere2": Names("cohere2", _ATTENTION | _mlp("mlp")),
    "ernie4_5": Names("ernie4_5", _BLOCK),
    "nemotron": Names("nemotron", _without(_BLOCK, "ffn_gate"), norms_plus_one=True),
    "hunyuan-dense": Names(
        "hunyuan_v1_dense",
        {
            **_BLOCK,
            "attn_q_norm": "self_attn.query_layernorm",
            "attn_k_norm": "self_attn.key_layernorm",
        },
    ),
    "mistral3": Names("ministral3", _BLOCK, interleaved=True),
    "gpt-oss": Names(
        "gpt_oss",
        _POST_NORMED | {"attn_sinks.weight": "self_attn.sinks"} | _experts("mlp", "router"),
    ),
    "glm4moe": Names(
        "glm4_moe",
        {**_POST_NORMED, **_mlp("mlp"), **_HEAD_NORMS, **_EXPERTS, **_SHARED_EXPERTS,
         **_CORRECTION, **_NEXTN},
    ),
    "ernie4_5-moe": Names(
        "ernie4_5_moe",
        {**_BLOCK, **_EXPERTS, **_SHARED_EXPERTS,
         "exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
    ),
    "granitemoe": Names("granitemoe", _NO_MLP | _GRANITE_EXPERTS, interleaved=True),
    "llama4": Names(
        "llama4_text",
        {**_NO_MLP, **_mlp("feed_forward"), **_experts("feed_forward", "router"),
         **_mlp("feed_forward.shared_expert", "_shexp")},
    ),
    "deepseek2": Names(
        "deepseek_v3",
        {**_LATENT_BLOCK, **dict.fromkeys(("attn_k_b", "attn_v_b"), "self_attn.kv_b_proj"),
         **_EXPERTS, **_SHARED_EXPERTS, **_CORRECTION},
    ),
    "minicpm3": Names("minicpm3", _LATENT_BLOCK),
    "phimoe": Names("phimoe", _MIXTRAL_BLOCK),
    "bitnet": Names(
        "bitnet",
        _BLOCK | {"attn_sub_norm": "self_attn.attn_sub_norm", "ffn_sub_norm": "mlp.ffn_sub_norm"},
        _without(_TOP, "output"),  # its head is always the embedding
    ),
    "lfm2": Names("lfm2", _LFM2, _LFM2_TOP, recurrent=True),
    "lfm2moe": Names(
        "lfm2_moe",
        {**_LFM2, **_experts("feed_forward", parts=("w1", "w3", "w2")),
         "exp_probs_b.bias": "feed_forward.expert_bias"},
        _LFM2_TOP,
        recurrent=True,
    ),
    "mamba2": Names(
        "mamba2",
        {"attn_norm": "norm", **_mamba("mixer")},
        _BACKBONE_TOP,
        layers="backbone.layers",
        recurrent=True,
    ),
    "granitehybrid": Names(
        "granitemoehybrid",
        {**_NO_MLP, **_mamba("mamba"), **_GRANITE_EXPERTS,
         **_mlp("shared_mlp", parts=(*_GATED[:2], "output_linear")),
         **_mlp("shared_mlp", "_shexp", (*_GATED[:2], "output_linear"))},
        interleaved=True,
        recurrent=True,
    ),
    "falcon-h1": Names(
        "falcon_h1",
        {**_ATTENTION, **_mamba("mamba"), "ffn_norm": "pre_ff_layernorm", **_mlp("feed_forward")},
        {**_TOP, "output_norm": "model.final_layernorm"},
        recurrent=True,
    ),
    "nemotron_h": Names(
        "nemotron_h",
        _NEMOTRON_H,
        _BACKBONE_TOP,
        layers="backbone.layers",
        recurrent=True,
    ),
    "nemotron_h_moe": Names(
        "nemotron_h",
        {**_NEMOTRON_H, **_without(_experts("mixer"), "ffn_gate_exps"),
         "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
         **_without(_mlp("mixer.shared_experts", "_shexp"), "ffn_gate_shexp")},
        _BACKBONE_TOP,
        layers="backbone.layers",
        recurrent=True,
    ),
    "qwen35": Names("qwen3_5_text", _QWEN35 | _mlp("mlp"), norms_plus_one=True, recurrent=True),
    "qwen35moe": Names(
        "qwen3_5_moe_text",
        _QWEN35 | _EXPERTS | _SHARED_EXPERT,
        norms_plus_one=True,
        recurrent=True,
    ),
}  # fmt: skip
"""By GGUF's `general.architecture`."""

WIDEST_LAYERS = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose queries alone are scaled by hidden_size / heads, which files do
not say."""
