"""GGUF files of models with recurrent layers: names of their tensors, and their config.json.

Files do not list the kinds of layers. A layer is what its tensors make it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.checkpoint.gguf_experts import counts, groups, routed
from quire.checkpoint.gguf_families import Config, Metadata, granite, rotated_part
from quire.core.errors import CheckpointError

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
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
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
_LFM2_MOE = _LFM2 | {
    "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b.bias": "feed_forward.expert_bias",
    "ffn_gate_exps": "feed_forward.experts.w1",
    "ffn_up_exps": "feed_forward.experts.w3",
    "ffn_down_exps": "feed_forward.experts.w2",
}
_LFM2_TOP = {**_TOP, "token_embd_norm": "model.embedding_norm"}


def _mamba(block: str) -> dict[str, str]:
    return {
        "ssm_in": f"{block}.in_proj",
        "ssm_conv1d": f"{block}.conv1d",
        "ssm_dt.bias": f"{block}.dt_bias",
        "ssm_a": f"{block}.A_log",
        "ssm_d": f"{block}.D",
        "ssm_norm": f"{block}.norm",
        "ssm_out": f"{block}.out_proj",
    }


_NEMOTRON = {
    "attn_norm": "norm",
    **{part: f"mixer.{part[-1]}_proj" for part in ("attn_q", "attn_k", "attn_v")},
    "attn_output": "mixer.o_proj",
    **_mamba("mixer"),
    "ffn_up": "mixer.up_proj",
    "ffn_down": "mixer.down_proj",
}
_NEMOTRON_MOE = _NEMOTRON | {
    "ffn_gate_inp": "mixer.gate",
    "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
    "ffn_up_exps": "mixer.experts.up_proj",
    "ffn_down_exps": "mixer.experts.down_proj",
    "ffn_up_shexp": "mixer.shared_experts.up_proj",
    "ffn_down_shexp": "mixer.shared_experts.down_proj",
}
_QWEN = _ATTENTION | {
    "post_attention_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_QWEN_MLP = {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
_QWEN_MOE = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_GRANITE = _ATTENTION | {
    **_mamba("mamba"),
    "ffn_norm": "post_attention_layernorm",
    **{f"ffn_{part}": f"shared_mlp.{part}_proj" for part in ("gate", "up")},
    **{f"ffn_{part}_shexp": f"shared_mlp.{part}_proj" for part in ("gate", "up")},
    **dict.fromkeys(("ffn_down", "ffn_down_shexp"), "shared_mlp.output_linear"),
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    **{
        f"ffn_{part}_exps": f"block_sparse_moe.experts.{part}_proj"
        for part in ("gate", "up", "down")
    },
}
_FALCON = _ATTENTION | {
    **_mamba("mamba"),
    "ffn_norm": "pre_ff_layernorm",
    **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
}
_BACKBONE = {
    "top": {**_TOP, "token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f"},
    "layers": "backbone.layers",
}
_QWEN_NAMES = {"top": _TOP, "norms_plus_one": True, "rows": frozenset({"ffn_gate_inp_shexp"})}
NAMES: dict[str, dict[str, Any]] = {
    "lfm2": {"top": _LFM2_TOP, "block": _LFM2},
    "lfm2moe": {"top": _LFM2_TOP, "block": _LFM2_MOE},
    "mamba2": {**_BACKBONE, "block": {"attn_norm": "norm", **_mamba("mixer")}},
    "granitehybrid": {"top": _TOP, "block": _GRANITE, "interleaved": True},
    "falcon-h1": {"top": {**_TOP, "output_norm": "model.final_layernorm"}, "block": _FALCON},
    "nemotron_h": {**_BACKBONE, "block": _NEMOTRON},
    "nemotron_h_moe": {**_BACKBONE, "block": _NEMOTRON_MOE},
    "qwen35": {**_QWEN_NAMES, "block": _QWEN | _QWEN_MLP},
    "qwen35moe": {**_QWEN_NAMES, "block": _QWEN | _QWEN_MOE},
}
"""By GGUF's `general.architecture`: arguments of `gguf_names.Names`."""
ARCHITECTURES = {
    "lfm2": ("lfm2", "Lfm2ForCausalLM"),
    "lfm2moe": ("lfm2_moe", "Lfm2MoeForCausalLM"),
    "mamba2": ("mamba2", "Mamba2ForCausalLM"),
    "granitehybrid": ("granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    "falcon-h1": ("falcon_h1", "FalconH1ForCausalLM"),
    "nemotron_h": ("nemotron_h", "NemotronHForCausalLM"),
    "nemotron_h_moe": ("nemotron_h", "NemotronHForCausalLM"),
    "qwen35": ("qwen3_5_text", "Qwen3_5ForCausalLM"),
    "qwen35moe": ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
}
"""GGUF's architecture → Hugging Face's model type and class."""


def _kinds(meta: Metadata, layers: int, kinds: dict[str, str]) -> list[str]:
    """Return the kind of each layer.

    Args:
        kinds: tensor of a layer → its kind; the first that the layer has decides.
    """
    tensors = meta.file.tensors
    if layers > len(tensors):
        raise CheckpointError(
            f"{meta.file.path.name}: {meta.architecture}.block_count is {layers}, more than it has "
            "tensors.",
            fix="The file is damaged or no model; convert or download it again.",
        )
    found = []
    for layer in range(layers):
        names = [n for n in kinds if f"blk.{layer}.{n}.weight" in tensors]
        if not names:
            raise CheckpointError(
                f"{meta.file.path.name}: layer {layer} has none of the tensors {', '.join(kinds)}.",
                fix="The file is damaged or no model; convert or download it again.",
            )
        found.append(kinds[names[0]])
    return found


def _has(meta: Metadata, layers: int, name: str) -> bool:
    """Return whether a layer has the tensor `name`."""
    return any(f"blk.{layer}.{name}" in meta.file.tensors for layer in range(layers))


def _lfm2(meta: Metadata, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    kinds = {"shortconv.conv": "conv", "attn_q": "full_attention"}
    return {
        "norm_eps": config["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": meta.integer("shortconv.l_cache"),
        "conv_bias": _has(meta, layers, "shortconv.conv.bias"),
        "layer_types": _kinds(meta, layers, kinds),
    }


def _lfm2_moe(meta: Metadata, config: Config) -> Config:
    """llama.cpp divides the weights by their sum, whatever the file says."""
    return _lfm2(meta, config) | counts(meta) | {
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "num_dense_layers": meta.integer("leading_dense_block_count", 0),
        "routed_scaling_factor": meta.number("expert_weights_scale", 0.0) or 1.0,
        "norm_topk_prob": True,
        "use_expert_bias": _has(meta, config["num_hidden_layers"], "exp_probs_b.bias"),
    }  # fmt: skip


def _widths(meta: Metadata) -> tuple[int, int, dict[str, int]]:
    """Return heads and their width, and the other sizes of Mamba-2."""
    inner, heads = meta.integer("ssm.inner_size"), meta.integer("ssm.time_step_rank")
    sizes = {
        "groups": meta.integer("ssm.group_count"),
        "state": meta.integer("ssm.state_size"),
        "conv": meta.integer("ssm.conv_kernel"),
    }
    return heads, inner // max(1, heads), sizes


def _mamba_fields(meta: Metadata, layers: int) -> Config:
    """Return the fields `mamba_…` of hybrid models."""
    heads, width, sizes = _widths(meta)
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": width,
        "mamba_n_groups": sizes["groups"],
        "mamba_d_state": sizes["state"],
        "mamba_d_conv": sizes["conv"],
        "mamba_conv_bias": _has(meta, layers, "ssm_conv1d.bias"),
        "mamba_proj_bias": _has(meta, layers, "ssm_in.bias"),
    }


def _granite(meta: Metadata, config: Config) -> Config:
    layers, rotates = config["num_hidden_layers"], meta.flag("rope.scaling.finetuned")
    kinds = {"ssm_in": "mamba", "attn_q": "attention"}
    shared = meta.integer("expert_shared_feed_forward_length", 0)
    fields = granite(meta, config) | _mamba_fields(meta, layers)
    return fields | {
        "num_local_experts": 0,
        "shared_intermediate_size": shared or config["intermediate_size"],
        "layer_types": _kinds(meta, layers, kinds),
        "position_embedding_type": "rope" if rotates else "nope",
        "mamba_expand": max(1, meta.integer("ssm.inner_size") // config["hidden_size"]),
        "attention_bias": _has(meta, layers, "attn_q.bias"),
    }


def _granite_moe(meta: Metadata, config: Config) -> Config:
    found = counts(meta)
    experts = {"num_local_experts": found.pop("num_experts")}
    return _granite(meta, config) | found | experts


def _falcon(meta: Metadata, config: Config) -> Config:
    """All multipliers are part of the weights, and the norm, if any, stands behind the gate."""
    layers = config["num_hidden_layers"]
    return _mamba_fields(meta, layers) | {
        "mamba_d_ssm": meta.integer("ssm.inner_size"),
        "projectors_bias": _has(meta, layers, "ssm_out.bias"),
        "mamba_rms_norm": _has(meta, layers, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
    }


def _nemotron(meta: Metadata, config: Config) -> Config:
    """llama.cpp does not limit step sizes."""
    heads, width, sizes = _widths(meta)
    layers = config["num_hidden_layers"]
    kinds = {"ssm_in": "mamba", "attn_q": "attention", "ffn_up_exps": "moe", "ffn_up": "mlp"}
    return {
        "layers_block_type": _kinds(meta, layers, kinds),
        "layer_norm_epsilon": config["rms_norm_eps"],
        "mamba_num_heads": heads,
        "mamba_head_dim": width,
        "n_groups": sizes["groups"],
        "ssm_state_size": sizes["state"],
        "conv_kernel": sizes["conv"],
        "use_conv_bias": _has(meta, layers, "ssm_conv1d.bias"),
        "use_bias": _has(meta, layers, "ssm_in.bias"),
        "mlp_bias": _has(meta, layers, "ffn_up.bias"),
        "mlp_hidden_act": "relu2",
        "time_step_min": 0.0,
    }


def _nemotron_moe(meta: Metadata, config: Config) -> Config:
    shared = meta.integer("expert_shared_feed_forward_length")
    latent = meta.integer("moe_latent_size", None)
    fields = {"moe_shared_expert_intermediate_size": shared, "moe_latent_size": latent}
    return _nemotron(meta, config) | routed(meta) | groups(meta) | fields


def _qwen(meta: Metadata, config: Config) -> Config:
    heads, width, sizes = _widths(meta)
    kinds = {"ssm_out": "linear_attention", "attn_q": "full_attention"}
    return {
        "layer_types": _kinds(meta, config["num_hidden_layers"], kinds),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": width,
        "linear_num_key_heads": sizes["groups"],
        "linear_key_head_dim": sizes["state"],
        "linear_conv_kernel_dim": sizes["conv"],
        "attention_bias": _has(meta, config["num_hidden_layers"], "attn_q.bias"),
        **rotated_part(meta.integer("rope.dimension_count"), config["head_dim"]),
    }


def _qwen_moe(meta: Metadata, config: Config) -> Config:
    return _qwen(meta, config) | counts(meta) | {
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": meta.integer("expert_shared_feed_forward_length"),
    }  # fmt: skip


def mamba2(meta: Metadata) -> Config:
    """Return the fields of Mamba-2, which has no attention, and so no Llama's fields."""
    heads, width, sizes = _widths(meta)
    layers = meta.integer("block_count")
    _kinds(meta, layers, {"ssm_in": "mamba"})
    hidden = meta.integer("embedding_length")
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "layer_norm_epsilon": meta.number("attention.layer_norm_rms_epsilon"),
        "expand": max(1, meta.integer("ssm.inner_size") // max(1, hidden)),
        "num_heads": heads,
        "head_dim": width,
        "n_groups": sizes["groups"],
        "state_size": sizes["state"],
        "conv_kernel": sizes["conv"],
        "use_conv_bias": _has(meta, layers, "ssm_conv1d.bias"),
        "use_bias": _has(meta, layers, "ssm_in.bias"),
    }


CHANGES: dict[str, Callable[[Metadata, Config], Config]] = {
    "lfm2": _lfm2,
    "granitehybrid": _granite,
    "falcon-h1": _falcon,
    "nemotron_h": _nemotron,
    "qwen35": _qwen,
}
EXPERTS: dict[str, Callable[[Metadata, Config], Config]] = {
    "lfm2moe": _lfm2_moe,
    "granitehybrid": _granite_moe,
    "nemotron_h_moe": _nemotron_moe,
    "qwen35moe": _qwen_moe,
}
"""The fields of those with experts, and of the others; Granite's are of both kinds."""
