"""GGUF's names of tensors in Hugging Face's: both name the parameters of Quire's layers.

GGUF has the same names in all architectures. Hugging Face's are those of `WeightNames`. All experts
of a layer are one tensor in GGUF; Hugging Face's name of one, without its number, stands for it
(`models.weights.stacks`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf_names import NAMES
from quire.checkpoint.gguf_translation import FACTORS, Reorder, Translation
from quire.core.errors import UnsupportedModelError
from quire.models.registry import architecture as architecture_of

_TOP = {
    "token_embd": "embed",
    "position_embd": "positions",
    "output_norm": "norm",
    "token_embd_norm": "norm",
    "output": "lm_head",
    "per_layer_token_embd": "own_embed",
    "per_layer_model_proj": "own_project",
    "per_layer_proj_norm": "own_norm",
}
"""Stems outside the layers → the parameters'."""
_LAYER = {
    "attn_norm": "attn_norm",
    "attn_qkv": "attn.qkv",
    "attn_output": "attn.out",
    "attn_q_norm": "attn.q_norm",
    "attn_k_norm": "attn.k_norm",
    "attn_sinks.weight": "attn.sinks",
    "attn_sub_norm": "attn.sub_norm",
    "attn_q_a": "attn.q_a",
    "attn_q_a_norm": "attn.q_a_norm",
    "attn_q_b": "attn.q_b",
    "attn_kv_a_mqa": "attn.kv_a",
    "attn_kv_a_norm": "attn.kv_a_norm",
    **dict.fromkeys(("attn_kv_b", "attn_k_b", "attn_v_b"), "attn.kv_b"),
    "post_attention_norm": "attn_post_norm",
    "ffn_norm": "mlp_norm",
    "ffn_up": "mlp.gate_up",
    "ffn_down": "mlp.down",
    "ffn_sub_norm": "mlp.sub_norm",
    "post_ffw_norm": "mlp_post_norm",
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_inp.scale": "mlp.router_norm.weight",
    "exp_probs_b.bias": "mlp.router.correction",
    "ffn_down_exps": "mlp.experts.down",
    "ffn_down_exps.scale": "mlp.router.factors",
    "ffn_down_shexp": "mlp.shared.down",
    "ffn_gate_inp_shexp": "mlp.shared_gate",
    "pre_ffw_norm_2": "mlp.experts_norm",
    "post_ffw_norm_1": "mlp.shared_post_norm",
    "post_ffw_norm_2": "mlp.experts_post_norm",
    "layer_output_scale.weight": "end.factor",
    "inp_gate": "own_input.gate",
    "proj": "own_input.out",
    "post_norm": "own_input_post_norm",
    **dict.fromkeys(("ssm_in", "shortconv.in_proj"), "recurrent.in"),
    **dict.fromkeys(("ssm_conv1d", "shortconv.conv"), "recurrent.conv"),
    **dict.fromkeys(("ssm_out", "shortconv.out_proj"), "recurrent.out"),
    "ssm_dt.bias": "recurrent.bias",
    "ssm_a": "recurrent.rate",
    "ssm_d": "recurrent.skip",
    "ssm_norm": "recurrent.norm",
    "ssm_f_a": "recurrent.decay_low",
    "ssm_f_b": "recurrent.decay",
    "ssm_g_a": "recurrent.gate_low",
    "ssm_g_b": "recurrent.gate",
}
"""Stems in a layer, or names in full → the parameters', whose parts are one tensor."""
_PARTS = {
    "attn.q": ("attn_q",),
    "attn.qkv": ("attn_q", "attn_k", "attn_v"),
    "mlp.gate_up": ("ffn_gate", "ffn_up"),
    "mlp.up": ("ffn_up",),
    "mlp.experts.gate_up": ("ffn_gate_exps", "ffn_up_exps"),
    "mlp.experts.up": ("ffn_up_exps",),
    "mlp.shared.gate_up": ("ffn_gate_shexp", "ffn_up_shexp"),
    "mlp.shared.up": ("ffn_up_shexp",),
    "recurrent.conv": ("ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"),
}
"""Parameters' stems → those of their parts."""
_BEFORE_MLP = ("seed_oss", "gpt-oss", "glm4moe", "qwen35", "qwen35moe", "qwen3next")
"""Architectures whose `post_attention_norm` is that before the feed-forward."""
_DELTA_RULE = ("attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha")
_RECURRENT_IN = {
    "qwen35": (_DELTA_RULE,),
    "qwen35moe": (_DELTA_RULE,),
    "qwen3next": (("ssm_in", "ssm_ba"), ("attn_qkv", "attn_gate", "ssm_ba")),  # old files, new ones
    "kimi-linear": (("attn_q", "attn_k", "attn_v", "ssm_beta"),),
}
"""Architecture → stems of the parts of `recurrent.in`."""
_NEXTN = {
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}
"""Of GLM-4.5's draft heads, which are layers behind the last one."""


class TensorNames(NamedTuple):
    """Names of an architecture's tensors: GGUF's stem → Hugging Face's, or both in full.

    Attributes:
        layers: what precedes a layer's number in Hugging Face's names.
        transposed: GGUF's stems that Hugging Face stores [in, out].
    """

    block: dict[str, str]
    top: dict[str, str]
    layers: str
    transposed: set[str]


@cache
def tensor_names(architecture: str, model_type: str) -> TensorNames:
    """Return the names of GGUF's `architecture`, of which Hugging Face may have several."""
    names = architecture_of(model_type).names
    layer = {**names.layer, **names.apart}
    found: list[tuple[str, str, str]] = []  # GGUF's, the parameter's, Hugging Face's
    for stem, own in _LAYER.items():
        if stem == "post_attention_norm" and architecture in _BEFORE_MLP:
            own = "mlp_norm"
        if len(layer.get(own, ())) == 1:
            found.append((stem, own, layer[own][0]))
    inner = (("recurrent.in", stems) for stems in _RECURRENT_IN.get(architecture, ()))
    for own, stems in (*_PARTS.items(), *inner):
        for theirs in (names.layer.get(own, ()), names.apart.get(own, ())):
            if len(theirs) == len(stems):
                found += [(stem, own, name) for stem, name in zip(stems, theirs, strict=True)]
    block = {stem: name.replace(".{}", "") for stem, _, name in found}
    if (stacked := names.stacked.get("mlp.experts.gate_up")) is not None:
        block["ffn_gate_up_exps"] = stacked.name
    if architecture == "glm4moe":
        block |= _NEXTN
    named = ((stem, names.top.get(own)) for stem, own in _TOP.items())
    top = {stem: name for stem, name in named if isinstance(name, str)}
    if architecture == "bitnet":  # its head is always the embedding
        del top["output"]
    transposed = {stem for stem, own, _ in found if own in names.transposed}
    return TensorNames(block, top, names.layer_prefix.removesuffix(".{}."), transposed)


_SPLIT: dict[str, Reorder] = {"attn_k_b": "key_heads", "attn_v_b": "value_heads"}
"""Stems of the two parts of `kv_b_proj`."""
_ONE_ROW = "ffn_gate_inp_shexp"
"""The stem of a vector that is a matrix of one row for Hugging Face."""


def translate(file: GGUFFile, config: Mapping[str, Any]) -> dict[str, Translation]:
    """Return GGUF's name → `Translation`, for every weight of the file.

    Raises:
        UnsupportedModelError: a tensor has no counterpart; names it.
    """
    architecture = file.metadata["general.architecture"]
    table: dict[str, Translation] = {}
    taken: dict[str, Reorder] = {}
    for name in file.tensors:
        if name in FACTORS or _drafts(name, config):
            continue
        translation = translation_of(name, architecture, config)
        before = taken.get(translation.name) if translation else None
        if translation is None or (before and {before, translation.reorder} != {*_SPLIT.values()}):
            raise UnsupportedModelError(
                f"{file.path.name}: tensor {name!r} is not known for architecture "
                f"{architecture!r}.",
                fix="Quire would compute something else than this model; use another file.",
            )
        table[name] = translation
        taken[translation.name] = translation.reorder
    return table


_IGNORED_DRAFTS = (
    "deepseek_v2", "deepseek_v3", "nemotron_h", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next",
)  # fmt: skip


def _drafts(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether a tensor is of a layer behind the last one, which Quire does not compute."""
    block = re.match(r"blk\.(\d{1,6})\.", name)
    behind = block is not None and int(block[1]) >= config.get("num_hidden_layers", math.inf)
    return behind and config.get("model_type") in _IGNORED_DRAFTS


def translation_of(name: str, architecture: str, config: Mapping[str, Any]) -> Translation | None:
    """Return the translation of GGUF's tensor `name`; None if Hugging Face has no such tensor."""
    names, stored = tensor_names(architecture, config["model_type"]), NAMES[architecture]
    stem, _, kind = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d{1,6})\.(\w+(?:\.\w+)?)", stem)
    part = block[2] if block else stem
    known = names.block if block else names.top
    prefix = f"{names.layers}.{int(block[1])}." if block else ""
    if stored.recurrent and (found := _of_hybrid(name, architecture, names, config)):
        return found
    if whole := known.get(f"{part}.{kind}"):
        return Translation(prefix + whole)
    if part not in known or kind not in ("weight", "bias"):
        return None
    target = f"{prefix}{known[part]}.{kind}"
    if block and part in names.transposed and kind == "weight":
        return Translation(target, "transpose")
    if stored.interleaved and block and part in ("attn_q", "attn_k"):
        heads = "num_attention_heads" if part == "attn_q" else "num_key_value_heads"
        return Translation(target, "halves_from_pairs", config[heads])
    if block and part in _SPLIT:
        return Translation(target, _SPLIT[part])
    if block and part == _ONE_ROW:
        return Translation(target, "one_row")
    if stored.norms_plus_one and part.endswith("_norm") and kind == "weight":
        return Translation(target, "minus_one")
    return Translation(target)


_RECURRENT = re.compile(r"blk\.(\d{1,6})\.(attn_qkv|attn_gate|ffn_norm|ssm_[a-z0-9]+)(?:\.(\w+))?")
_GROUPED = ("attn_gate", "ssm_beta", "ssm_alpha", "ssm_dt")
"""Stems of a delta rule whose rows are heads of values."""


def _of_hybrid(
    name: str, architecture: str, names: TensorNames, config: Mapping[str, Any]
) -> Translation | None:
    """Return the translation of a recurrent layer's tensor that is not stored as it is."""
    block = _RECURRENT.fullmatch(name)
    if block is None:
        return None
    number, part, kind = block.groups(default="weight")  # falcon-h1's ffn_norm has no suffix
    target = names.block.get(part) or names.block.get(f"{part}.{kind}")
    if target is None:
        return None
    whole = part in ("ssm_a", "ssm_d") or f"{part}.{kind}" in names.block
    target = f"{names.layers}.{number}.{target}" + ("" if whole else f".{kind}")
    heads, in_order = config.get("linear_num_key_heads", 0), architecture == "qwen3next"
    if part == "ssm_ba" and config["model_type"] != "qwen3_next":
        # Of each head of keys its rows of b, then of a: bring all of b to the front.
        return Translation(target, "grouped", 2, served=max(1, heads))
    served = config["linear_num_value_heads"] // heads if heads and not in_order else 1
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
