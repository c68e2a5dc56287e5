"""GGUF files of models with recurrent layers: their config.json.

Files do not list the kinds of layers. A layer is what its tensors make it.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.checkpoint.gguf_experts import counts, groups, routed
from quire.checkpoint.gguf_families import Config, Metadata, granite, rotated_part


def _kinds(meta: Metadata, layers: int, kinds: dict[str, str]) -> list[str]:
    """Return the kind of each layer.

    Args:
        kinds: tensor of a layer → its kind; the first that the layer has decides.
    """
    meta.check_layers(layers)
    tensors = meta.file.tensors
    found = []
    for layer in range(layers):
        names = [n for n in kinds if f"blk.{layer}.{n}.weight" in tensors]
        if not names:
            raise meta.damaged(f"layer {layer} has none of the tensors {', '.join(kinds)}")
        found.append(kinds[names[0]])
    return found


def _has(meta: Metadata, layers: int, name: str) -> bool:
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


def _sizes(meta: Metadata, *names: str) -> Config:
    """Return heads, their width, groups, state and convolution under these names."""
    inner, heads = meta.integer("ssm.inner_size"), meta.integer("ssm.time_step_rank")
    others = (meta.integer(f"ssm.{key}") for key in ("group_count", "state_size", "conv_kernel"))
    return dict(zip(names, (heads, inner // max(1, heads), *others), strict=True))


def _mamba_fields(meta: Metadata, layers: int) -> Config:
    names = ("n_heads", "d_head", "n_groups", "d_state", "d_conv")
    return {
        **_sizes(meta, *(f"mamba_{name}" for name in names)),
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
    layers = config["num_hidden_layers"]
    names = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    kinds = {"ssm_in": "mamba", "attn_q": "attention", "ffn_up_exps": "moe", "ffn_up": "mlp"}
    return {
        "layers_block_type": _kinds(meta, layers, kinds),
        "layer_norm_epsilon": config["rms_norm_eps"],
        **_sizes(meta, *names),
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
    heads = ("num_value_heads", "value_head_dim", "num_key_heads", "key_head_dim")
    kinds = {"ssm_out": "linear_attention", "attn_q": "full_attention"}
    return {
        "layer_types": _kinds(meta, config["num_hidden_layers"], kinds),
        **_sizes(meta, *(f"linear_{name}" for name in (*heads, "conv_kernel_dim"))),
        "attention_bias": _has(meta, config["num_hidden_layers"], "attn_q.bias"),
        **rotated_part(meta.integer("rope.dimension_count"), config["head_dim"]),
    }


def _qwen_moe(meta: Metadata, config: Config) -> Config:
    return _qwen(meta, config) | counts(meta) | {
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": meta.integer("expert_shared_feed_forward_length"),
    }  # fmt: skip


def _qwen_next(meta: Metadata, config: Config) -> Config:
    """New files have the products one by one, like Qwen3.5-MoE, which computes the same."""
    fields = _qwen_moe(meta, config)
    whole = _has(meta, config["num_hidden_layers"], "ssm_in.weight")
    return fields if whole else fields | {"model_type": "qwen3_5_moe_text"}


def _kimi(meta: Metadata, config: Config) -> Config:
    """llama.cpp divides the weights of experts by their sum, whatever the file says."""
    kinds = {"ssm_f_a": "linear_attention", "attn_kv_a_mqa": "full_attention"}
    return routed(meta) | groups(meta) | {
        "num_local_experts": meta.integer("expert_count"),
        "norm_topk_prob": True,
        "layer_types": _kinds(meta, config["num_hidden_layers"], kinds),
        "linear_num_heads": config["num_attention_heads"],
        "linear_head_dim": meta.integer("kda.head_dim"),
        "linear_conv_kernel_dim": meta.integer("ssm.conv_kernel"),
    }  # fmt: skip


def mamba2(meta: Metadata) -> Config:
    """Return the fields of Mamba-2, which has no attention, and so no Llama's fields."""
    layers = meta.integer("block_count")
    _kinds(meta, layers, {"ssm_in": "mamba"})
    hidden = meta.integer("embedding_length")
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "layer_norm_epsilon": meta.number("attention.layer_norm_rms_epsilon"),
        "expand": max(1, meta.integer("ssm.inner_size") // max(1, hidden)),
        **_sizes(meta, "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"),
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
    "qwen3next": _qwen_next,
    "kimi-linear": _kimi,
}
"""The fields of those with experts, and of the others; Granite's are of both kinds."""
