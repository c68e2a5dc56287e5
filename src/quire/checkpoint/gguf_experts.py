"""Experts and latent attention in GGUF's keys, both ways.

Each function of `EXPERTS` takes typed access to the metadata and the fields that all Llamas share,
and returns the fields to change. What no file says is a constant of llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from quire.checkpoint.gguf_families import Config, Metadata, granite, rotated_part, window_types
from quire.checkpoint.gguf_writer import Value
from quire.core.errors import UnsupportedModelError
from quire.core.model_config import ModelConfig

SOFTMAX, SIGMOID = 1, 2
"""Values of `expert_gating_func`."""
LATENT = ("deepseek2", "minicpm3", "kimi-linear")
"""Architectures with latent attention."""
LLAMA4_CHUNK, LLAMA4_PERIOD, LLAMA4_UNNORMED = 8192, 4, 128
"""Positions of a chunk, the period of layers without positions, and the number of experts of the
one Llama 4 whose queries and keys have no norms."""
PHIMOE_MSCALE = 1.243163121016122
"""By how much Phi-3.5-MoE's cosines are scaled."""
_FLASH = ((47, 48), 154880)
"""Layers and tokens of GLM-4.7-Flash, whose first files do not name its sigmoids."""


def latent(meta: Metadata, heads: int) -> Config:
    """Return the fields of latent attention.

    New files have the widths of heads under names of their own, and those of the latent as
    `key_length`; old files, and MiniCPM3's, have the widths of heads there.
    """
    width, rotated = (
        meta.integer("attention.key_length_mla", 0),
        meta.integer("rope.dimension_count"),
    )
    value = meta.integer("attention.value_length_mla", 0)
    if not width:
        width = meta.integer("attention.key_length")
        rows = meta.extent("blk.0.attn_kv_b.weight", 0)
        value = rows // heads + rotated - width
    return {
        "num_key_value_heads": heads,
        "kv_lora_rank": meta.integer("attention.kv_lora_rank"),
        "q_lora_rank": meta.integer("attention.q_lora_rank", None),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": width - rotated,
        "v_head_dim": value,
    }


def counts(meta: Metadata) -> Config:
    """Return the numbers of experts, and of those that a token chooses."""
    return {
        "num_experts": meta.integer("expert_count"),
        "num_experts_per_tok": meta.integer("expert_used_count"),
    }


def _width(meta: Metadata, layer: int = 0) -> Any:
    """Return the inner width of an expert, which old files have in their tensors alone."""
    found = meta.integer("expert_feed_forward_length", 0)
    return found or meta.extent(f"blk.{layer}.ffn_down_exps.weight", 2)


def _qwen2(meta: Metadata, config: Config) -> Config:
    return counts(meta) | {
        "norm_topk_prob": False,
        "moe_intermediate_size": _width(meta),
        "shared_expert_intermediate_size": meta.extent("blk.0.ffn_gate_shexp.weight", 0),
    }


def _qwen3(meta: Metadata, config: Config) -> Config:
    return counts(meta) | {"norm_topk_prob": True, "moe_intermediate_size": _width(meta)}


def _gpt_oss(meta: Metadata, config: Config) -> Config:
    """YaRN's range of this model is not rounded, and no file says so."""
    scaling = config["rope_scaling"] or {"rope_type": "default"}
    if scaling["rope_type"] == "yarn":
        scaling["truncate"] = False
    return counts(meta) | {
        "intermediate_size": _width(meta),
        "rope_scaling": scaling,
        "sliding_window": meta.integer("attention.sliding_window") or None,
        "layer_types": window_types(meta, config["num_hidden_layers"], 2),
    }


def _llama4(meta: Metadata, config: Config) -> Config:
    windowed = meta.integer("attention.sliding_window", LLAMA4_CHUNK)
    if (
        not windowed
        or meta.integer("attention.sliding_window_pattern", LLAMA4_PERIOD) != LLAMA4_PERIOD
    ):
        raise UnsupportedModelError(
            f"{meta.file.path.name} is a llama4 whose layers are not those of Llama 4: three with "
            "chunks, one without positions.",
            fix="Use its safetensors.",
        )
    return counts(meta) | {
        "model_type": "llama4_text",
        "intermediate_size": _width(meta),
        "intermediate_size_mlp": config["intermediate_size"],
        "interleave_moe_layer_step": meta.integer("interleave_moe_layer_step"),
        "no_rope_layer_interval": LLAMA4_PERIOD,
        "attention_chunk_size": LLAMA4_CHUNK,
        "sliding_window": None,
        "attn_temperature_tuning": True,
        "floor_scale": LLAMA4_CHUNK,
        "attn_scale": 0.1,
        "use_qk_norm": meta.integer("expert_count") != LLAMA4_UNNORMED,
    }


def _phimoe(meta: Metadata, config: Config) -> Config:
    """A converted file has the factor of Phi-3's rule, and the model has another."""
    scaling = config["rope_scaling"]
    head = {"lm_head_bias": "output.bias" in meta.file.tensors}
    if scaling is None or scaling["rope_type"] != "longrope":
        return counts(meta) | head
    factor, original = scaling.pop("attention_factor"), scaling["original_max_position_embeddings"]
    longer = max(1.0, config["max_position_embeddings"] / original)
    by_rule = math.sqrt(1.0 + math.log(longer) / math.log(original))
    mscale = PHIMOE_MSCALE if math.isclose(factor, by_rule, rel_tol=1e-6) else factor
    scaling |= {"short_mscale": mscale, "long_mscale": mscale}
    return counts(meta) | head | {"original_max_position_embeddings": original}


def _ernie4_5(meta: Metadata, config: Config) -> Config:
    start = meta.integer("leading_dense_block_count", 0)
    step = meta.integer("interleave_moe_layer_step") or 1
    first = (start // step + 1) * step - 1  # the first sparse layer from `start` on
    width, shared = _width(meta, first), f"blk.{first}.ffn_gate_shexp.weight"
    rows = meta.extent(shared, 0) if shared in meta.file.tensors else 0
    return {
        "use_bias": config["attention_bias"],
        "moe_num_experts": meta.integer("expert_count"),
        "moe_k": meta.integer("expert_used_count"),
        "moe_intermediate_size": width,
        "moe_num_shared_experts": rows // max(1, width),
        "moe_layer_start_index": start,
        "moe_layer_interval": step,
    }


def _glm4(meta: Metadata, config: Config) -> Config:
    if _gating(meta, SIGMOID) != SIGMOID:
        raise _no_such_gating(meta)
    part = rotated_part(meta.integer("rope.dimension_count"), config["head_dim"])
    norms = "blk.0.attn_q_norm.weight" in meta.file.tensors
    return part | routed(meta) | groups(meta) | {"use_qk_norm": norms}


def _deepseek2(meta: Metadata, config: Config) -> Config:
    """DeepSeek-V2 chooses by a softmax; V3, R1, Kimi-K2 and GLM-4.7-Flash do by sigmoids."""
    layers, tokens = _FLASH
    flash = config["num_hidden_layers"] in layers and config["vocab_size"] == tokens
    gating = _gating(meta, SIGMOID if flash else SOFTMAX)
    if meta.number("attention.temperature_scale", 0.0):
        raise UnsupportedModelError(
            f"{meta.file.path.name}: queries of this {meta.architecture!r} grow with their "
            "position (attention.temperature_scale).",
            fix="Quire has no such architecture; use another model.",
        )
    if gating == SIGMOID:
        return routed(meta) | groups(meta)
    if gating != SOFTMAX:
        raise _no_such_gating(meta)
    found = groups(meta)
    method = "group_limited_greedy" if found["n_group"] > 1 else "greedy"
    return routed(meta) | found | {"model_type": "deepseek_v2", "topk_method": method}


def _gating(meta: Metadata, default: int) -> Any:
    return meta.integer("expert_gating_func", 0) or default


def _no_such_gating(meta: Metadata) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{meta.file.path.name}: {meta.architecture}.expert_gating_func is "
        f"{meta.integer('expert_gating_func')}; Quire has no such router in this architecture.",
        fix="Use another model.",
    )


def routed(meta: Metadata) -> Config:
    """Return the fields of DeepSeek-V3's experts."""
    return {
        "n_routed_experts": meta.integer("expert_count"),
        "num_experts_per_tok": meta.integer("expert_used_count"),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "n_shared_experts": meta.integer("expert_shared_count"),
        "first_k_dense_replace": meta.integer("leading_dense_block_count", 0),
        "routed_scaling_factor": meta.number("expert_weights_scale", 0.0) or 1.0,
        "norm_topk_prob": meta.flag("expert_weights_norm"),
    }


def groups(meta: Metadata) -> Config:
    """Return the groups of experts, and from how many of them a token chooses."""
    return {
        "n_group": meta.integer("expert_group_count", 0) or 1,
        "topk_group": meta.integer("expert_group_used_count", 0) or 1,
    }


EXPERTS: dict[str, Callable[[Metadata, Config], Config]] = {
    "llama": lambda meta, config: counts(meta) | {"model_type": "mixtral"},
    "olmoe": lambda meta, config: counts(meta) | {"norm_topk_prob": False},
    "qwen2moe": _qwen2,
    "qwen3moe": _qwen3,
    "granitemoe": lambda meta, config: counts(meta) | granite(meta, config),
    "hunyuan-moe": lambda meta, config: counts(meta) | {"intermediate_size": _width(meta)},
    "phimoe": _phimoe,
    "gpt-oss": _gpt_oss,
    "llama4": _llama4,
    "ernie4_5-moe": _ernie4_5,
    "glm4moe": _glm4,
    "deepseek2": _deepseek2,
}
"""By GGUF's `general.architecture`; all but "llama" always have experts."""


def latent_keys(model: ModelConfig) -> dict[str, Value]:
    """Return the keys of latent attention; none if the model has others."""
    latent = model.latent
    if latent is None:
        return {}
    keys: dict[str, Value] = {"attention.kv_lora_rank": latent.rank}
    if latent.q_rank is not None:
        keys["attention.q_lora_rank"] = latent.q_rank
    if model.architecture == "minicpm3":
        return keys | {
            "attention.head_count_kv": model.num_attention_heads,
            "attention.key_length": latent.head,
            "attention.value_length": latent.value_dim,
        }
    weight = model.rope.params.get("mscale_all_dim") if model.rope is not None else None
    if weight:
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * weight
    return keys | {
        "attention.value_length": latent.rank,
        "attention.key_length_mla": latent.head,
        "attention.value_length_mla": latent.value_dim,
    }


def expert_keys(model: ModelConfig) -> dict[str, Value]:
    """Return the keys of a mixture of experts; none if the model is dense.

    What these keys cannot say is refused when the file's description is read back.
    """
    moe = model.moe
    if moe is None:
        return {}
    route, layers = moe.route, moe.layers or (True,) * model.num_hidden_layers
    keys: dict[str, Value] = {"expert_count": moe.num_experts, "expert_used_count": route.top_k}
    if moe.intermediate_size != model.intermediate_size or model.architecture == "gpt_oss":
        keys["expert_feed_forward_length"] = moe.intermediate_size
    if model.architecture == "qwen2_moe":
        return keys | {"expert_shared_feed_forward_length": moe.shared_size}
    start = layers.index(True) if True in layers else len(layers)
    if model.architecture == "llama4_text":
        return keys | {"interleave_moe_layer_step": start + 1}
    if not moe.shared_size:
        return keys
    keys |= {
        "expert_feed_forward_length": moe.intermediate_size,
        "expert_shared_count": moe.shared_size // moe.intermediate_size,
    }
    if model.architecture == "ernie4_5_moe":
        step = layers[start:].index(True, 1) if True in layers[start + 1 :] else 1
        return keys | {
            "expert_shared_feed_forward_length": moe.shared_size,
            "leading_dense_block_count": start,
            "interleave_moe_layer_step": step,
        }
    return keys | {
        "leading_dense_block_count": start,
        "expert_gating_func": SIGMOID if route.scores == "sigmoid" else SOFTMAX,
        "expert_weights_scale": route.scale,
        "expert_weights_norm": route.renormalize,
        "expert_group_count": route.num_groups,
        "expert_group_used_count": route.top_groups,
    }
