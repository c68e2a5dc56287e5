"""Translate names of configuration and tensors between GGUF and Hugging Face.

The loader of models then sees one naming, whatever the file. For architecture "llama" GGUF
stores the rows of q and k for interleaved RoPE (pairs 2i, 2i+1); Hugging Face rotates halves
(pairs i, i + head_dim/2), so these rows are put back in that order. Where Hugging Face's RoPE is
interleaved too (GLM-4, Cohere 2, ERNIE 4.5), both store the same rows. GPT-2's linear layers are
stored [out, in] in GGUF and [in, out] (`Conv1D`) by Hugging Face; they are transposed back.
Gemma's norms are stored as 1 + weight. All experts of a layer are one tensor in GGUF; Hugging
Face's name of one, without its number, stands for it (`models.weights.stacks`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.checkpoint import gguf_hybrids
from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf_translation import Reorder, Translation
from quire.core.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class Names:
    """An architecture's tensor names: GGUF's stem → Hugging Face's, or both in full.

    Attributes:
        layers: what precedes a layer's number in Hugging Face's names.
        transposed: GGUF's stems that Hugging Face stores [in, out].
        interleaved: whether q and k are stored for interleaved RoPE.
        norms_plus_one: whether norms are stored as 1 + weight.
        rows: GGUF's stems of vectors that are a matrix of one row for Hugging Face.
    """

    top: Mapping[str, str]
    block: Mapping[str, str]
    layers: str = "model.layers"
    transposed: frozenset[str] = frozenset()
    interleaved: bool = False
    norms_plus_one: bool = False
    rows: frozenset[str] = frozenset()


_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_NO_MLP = {k: v for k, v in _BLOCK.items() if k not in ("ffn_gate", "ffn_up", "ffn_down")}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
}
_SHARED_EXPERT = {
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_SHARED_EXPERTS = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_CORRECTION = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
_GPT_OSS_BLOCK = {k: v for k, v in _NO_MLP.items() if k != "ffn_norm"} | {
    "attn_sinks.weight": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_GRANITE_MOE_BLOCK = _NO_MLP | {
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_gate_exps": "block_sparse_moe.experts.gate_proj",
    "ffn_up_exps": "block_sparse_moe.experts.up_proj",
    "ffn_down_exps": "block_sparse_moe.experts.down_proj",
}
_LLAMA4_BLOCK = _NO_MLP | {
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
    "ffn_gate_inp": "feed_forward.router",
    "ffn_gate_exps": "feed_forward.experts.gate_proj",
    "ffn_up_exps": "feed_forward.experts.up_proj",
    "ffn_down_exps": "feed_forward.experts.down_proj",
    "ffn_gate_shexp": "feed_forward.shared_expert.gate_proj",
    "ffn_up_shexp": "feed_forward.shared_expert.up_proj",
    "ffn_down_shexp": "feed_forward.shared_expert.down_proj",
}
_LATENT_BLOCK = {k: v for k, v in _BLOCK.items() if k not in ("attn_k", "attn_v")} | {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
}
_SPLIT: dict[str, Reorder] = {"attn_k_b": "key_heads", "attn_v_b": "value_heads"}
"""Stems of the two parts of `kv_b_proj`."""
_SPLIT_NAMES = dict.fromkeys(_SPLIT, "self_attn.kv_b_proj")
_NEXTN = {
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}
_MIXTRAL_BLOCK = _NO_MLP | {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.w1",
    "ffn_up_exps": "block_sparse_moe.experts.w3",
    "ffn_down_exps": "block_sparse_moe.experts.w2",
}
_PHI3_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA2_BLOCK = _BLOCK | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OLMO2_BLOCK = {k: v for k, v in _BLOCK.items() if not k.endswith("_norm")} | {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_SEED_OSS_BLOCK = {k: v for k, v in _BLOCK.items() if k != "ffn_norm"} | {
    "post_attention_norm": "post_attention_layernorm",
}
_GLM4_BLOCK = {k: v for k, v in _BLOCK.items() if k != "ffn_gate"} | {
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "post_ffw_norm": "post_mlp_layernorm",
}
_COHERE2_BLOCK = {k: v for k, v in _BLOCK.items() if k != "ffn_norm"}
_STARCODER2_BLOCK = {k: v for k, v in _BLOCK.items() if k != "ffn_gate"} | {
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GPT2 = Names(
    top={
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    },
    block={
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
    layers="transformer.h",
    transposed=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
)

NAMES: dict[str, Names] = {
    "llama": Names(_TOP, _BLOCK, interleaved=True),
    "mistral": Names(_TOP, _BLOCK),
    "mixtral": Names(_TOP, _MIXTRAL_BLOCK, interleaved=True),
    "olmoe": Names(_TOP, _NO_MLP | _EXPERTS | _HEAD_NORMS),
    "qwen2moe": Names(
        _TOP, _NO_MLP | _EXPERTS | _SHARED_EXPERT, rows=frozenset({"ffn_gate_inp_shexp"})
    ),
    "qwen3moe": Names(_TOP, _BLOCK | _EXPERTS | _HEAD_NORMS),
    "qwen2": Names(_TOP, _BLOCK),
    "qwen3": Names(_TOP, _BLOCK | _HEAD_NORMS),
    "phi3": Names(_TOP, _PHI3_BLOCK),
    "gemma": Names(_TOP, _BLOCK, norms_plus_one=True),
    "gemma2": Names(_TOP, _GEMMA2_BLOCK, norms_plus_one=True),
    "gemma3": Names(_TOP, _GEMMA2_BLOCK | _HEAD_NORMS, norms_plus_one=True),
    "gpt2": _GPT2,
    "olmo2": Names(_TOP, _OLMO2_BLOCK | _HEAD_NORMS),
    "stablelm": Names(_TOP, _BLOCK),
    "starcoder2": Names(_TOP, _STARCODER2_BLOCK),
    "smollm3": Names(_TOP, _BLOCK, interleaved=True),
    "granite": Names(_TOP, _BLOCK, interleaved=True),
    "seed_oss": Names(_TOP, _SEED_OSS_BLOCK),
    "glm4": Names(_TOP, _GLM4_BLOCK),
    "exaone4": Names(_TOP, _OLMO2_BLOCK | _HEAD_NORMS),
    "cohere2": Names(_TOP, _COHERE2_BLOCK),
    "ernie4_5": Names(_TOP, _BLOCK),
    "hunyuan-dense": Names(
        _TOP,
        _BLOCK
        | {
            "attn_q_norm": "self_attn.query_layernorm",
            "attn_k_norm": "self_attn.key_layernorm",
        },
    ),
    "mistral3": Names(_TOP, _BLOCK, interleaved=True),
    "gpt-oss": Names(_TOP, _GPT_OSS_BLOCK),
    "glm4moe": Names(
        _TOP,
        {k: v for k, v in _BLOCK.items() if k != "ffn_norm"}
        | {"post_attention_norm": "post_attention_layernorm"}
        | {**_HEAD_NORMS, **_EXPERTS, **_SHARED_EXPERTS, **_CORRECTION, **_NEXTN},
    ),
    "ernie4_5-moe": Names(
        _TOP,
        _BLOCK
        | {**_EXPERTS, **_SHARED_EXPERTS}
        | {"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
    ),
    "granitemoe": Names(_TOP, _GRANITE_MOE_BLOCK, interleaved=True),
    "llama4": Names(_TOP, _LLAMA4_BLOCK),
    "deepseek2": Names(
        _TOP, {**_LATENT_BLOCK, **_SPLIT_NAMES, **_EXPERTS, **_SHARED_EXPERTS, **_CORRECTION}
    ),
    "minicpm3": Names(_TOP, _LATENT_BLOCK),
    "phimoe": Names(_TOP, _MIXTRAL_BLOCK),
    "bitnet": Names(  # whose head is always the embedding
        {k: v for k, v in _TOP.items() if k != "output"},
        _BLOCK | {"attn_sub_norm": "self_attn.attn_sub_norm", "ffn_sub_norm": "mlp.ffn_sub_norm"},
    ),
    "nemotron": Names(
        _TOP, {k: v for k, v in _BLOCK.items() if k != "ffn_gate"}, norms_plus_one=True
    ),
}
NAMES |= {name: Names(**fields) for name, fields in gguf_hybrids.NAMES.items()}
"""By GGUF's `general.architecture`; Mixtral's is llama."""

ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""Frequency factors (Llama 3's, LongRoPE's); `hf_config` turns them into `rope_scaling`."""


WIDEST_LAYERS = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose queries alone are scaled by hidden_size / heads, which files do
not say."""


def translate(file: GGUFFile, config: Mapping[str, Any]) -> dict[str, Translation]:
    """Return GGUF's name → `Translation`, for every weight of the file.

    Raises:
        UnsupportedModelError: a tensor has no counterpart; names it.
    """
    architecture = file.metadata["general.architecture"]
    table = {}
    for name in file.tensors:
        if name in (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS) or _drafts(name, config):
            continue
        translation = translation_of(name, architecture, config)
        if translation is None:
            raise UnsupportedModelError(
                f"{file.path.name}: tensor {name!r} is not known for architecture "
                f"{architecture!r}.",
                fix="Quire would compute something else than this model; use another file.",
            )
        table[name] = translation
    return table


_IGNORED_DRAFTS = (
    "deepseek_v2", "deepseek_v3", "nemotron_h", "qwen3_5_text", "qwen3_5_moe_text",
)  # fmt: skip


def _drafts(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether a tensor is of a layer behind the last one, which Quire does not compute."""
    block = re.match(r"blk\.(\d{1,6})\.", name)
    behind = block is not None and int(block[1]) >= config.get("num_hidden_layers", math.inf)
    return behind and config.get("model_type") in _IGNORED_DRAFTS


def translation_of(name: str, architecture: str, config: Mapping[str, Any]) -> Translation | None:
    """Return the translation of GGUF's tensor `name`; None if Hugging Face has no such tensor."""
    names = NAMES["mixtral" if config.get("model_type") == "mixtral" else architecture]
    stem, _, kind = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d{1,6})\.(\w+(?:\.\w+)?)", stem)
    part = block[2] if block else stem
    known = names.block if block else names.top
    prefix = f"{names.layers}.{int(block[1])}." if block else ""
    if architecture in gguf_hybrids.NAMES and (found := _of_hybrid(name, names, config)):
        return found
    if whole := known.get(f"{part}.{kind}"):
        return Translation(prefix + whole)
    if part not in known or kind not in ("weight", "bias"):
        return None
    target = f"{prefix}{known[part]}.{kind}"
    if block and part in names.transposed and kind == "weight":
        return Translation(target, "transpose")
    if names.interleaved and block and part in ("attn_q", "attn_k"):
        heads = "num_attention_heads" if part == "attn_q" else "num_key_value_heads"
        return Translation(target, "halves_from_pairs", config[heads])
    if block and part in _SPLIT:
        return Translation(target, _SPLIT[part])
    if block and part in names.rows:
        return Translation(target, "one_row")
    if names.norms_plus_one and part.endswith("_norm") and kind == "weight":
        return Translation(target, "minus_one")
    return Translation(target)


_RECURRENT = re.compile(r"blk\.(\d{1,6})\.(attn_qkv|attn_gate|ffn_norm|ssm_[a-z0-9]+)(?:\.(\w+))?")
_GROUPED = ("attn_gate", "ssm_beta", "ssm_alpha", "ssm_dt")
"""Stems of a delta rule whose rows are heads of values."""


def _of_hybrid(name: str, names: Names, config: Mapping[str, Any]) -> Translation | None:
    """Return the translation of a recurrent layer's tensor that is not stored as it is."""
    block = re.fullmatch(
        r"blk\.(\d{1,6})\.(attn_qkv|attn_gate|ffn_norm|ssm_[a-z0-9]+)(?:\.(\w+))?", name
    )
    if block is None:
        return None
    number, part, kind = block.groups(default="weight")  # falcon-h1's ffn_norm has no suffix
    target = names.block.get(part) or names.block.get(f"{part}.{kind}")
    if target is None:
        return None
    whole = part in ("ssm_a", "ssm_d") or f"{part}.{kind}" in names.block
    target = f"{names.layers}.{number}.{target}" + ("" if whole else f".{kind}")
    heads = config.get("linear_num_key_heads", 0)
    served = config["linear_num_value_heads"] // heads if heads else 1
    if part == "ssm_a":
        return Translation(target, "log_rate", heads, served=served)
    if part in ("ssm_norm", "ssm_d"):
        return Translation(target, "flat")
    if served == 1:
        return Translation(target)
    if part in _GROUPED:
        return Translation(target, "grouped", heads, served=served)
    if part in ("attn_qkv", "ssm_conv1d"):
        keys = 2 * heads * config["linear_key_head_dim"]
        return Translation(target, "grouped", heads, keys, served)
    return Translation(target, "grouped_columns", heads, served=served)
