"""Qwen3-Next: gated delta rules in most layers, gated attention in the others, and experts."""

from __future__ import annotations

from typing import Any

from quire.core.errors import CheckpointError
from quire.core.layers import DeltaConfig, SubLayerKind
from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama, qwen2_moe

NAMES = qwen2_moe.NAMES.but(
    {
        "recurrent.in": ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"),
        "recurrent.conv": ("linear_attn.conv1d",),
        "recurrent.rate": ("linear_attn.A_log",),
        "recurrent.bias": ("linear_attn.dt_bias",),
        "recurrent.norm": ("linear_attn.norm",),
        "recurrent.out": ("linear_attn.out_proj",),
    }
)
MTP = "mtp"
KINDS: dict[str, SubLayerKind] = {"full_attention": "attention", "linear_attention": "recurrent"}


def parse_hybrid(config: hf.HFConfig, *, grouped: bool, **differences: Any) -> ModelConfig:
    """config.json → `ModelConfig`, for Qwen3-Next and Qwen3.5.

    Args:
        grouped: see `DeltaConfig`.
        differences: fields of the architecture.
    """
    delta = DeltaConfig(
        key_heads=hf.integer(config, "linear_num_key_heads", default=16),
        value_heads=hf.integer(config, "linear_num_value_heads", default=32),
        key_dim=hf.integer(config, "linear_key_head_dim", default=128),
        value_dim=hf.integer(config, "linear_value_head_dim", default=128),
        width=hf.integer(config, "linear_conv_kernel_dim", default=4),
        grouped=grouped,
    )
    if delta.value_heads % delta.key_heads:
        raise CheckpointError(
            f"config.json: linear_num_value_heads is {delta.value_heads}, not a multiple of "
            f"linear_num_key_heads, {delta.key_heads}.",
            param="linear_num_value_heads",
        )
    layers = hf.integer(config, "num_hidden_layers")
    types = config.get("layer_types")
    if types is None:
        every = hf.integer(config, "full_attention_interval", default=4)
        names = "full_attention", "linear_attention"
        types = [names[bool((i + 1) % every)] for i in range(layers)]
    return llama.decoder(
        config,
        head_dim=256,
        partial=0.25,
        qk_norm="head",
        norm_gain="plus_one",
        output_gate="of_q",
        **hf.attention_bias(config),
        recurrent=delta,
        sublayers=hf.layer_kinds(types, layers, KINDS),
        **differences,
    )


def sparse(config: hf.HFConfig, default: tuple[int, int], **differences: Any) -> dict[str, Any]:
    """Return the experts of a model.

    Args:
        default: number of experts, and of those that a token chooses.
        differences: fields of `MoEConfig`.
    """
    count, top_k = default
    moe = experts.moe(
        config,
        ("num_experts",),
        count,
        experts.route(
            config, top_k, renormalize=hf.boolean(config, "norm_topk_prob", default=True)
        ),
        width=512,
        shared_size=hf.integer(config, "shared_expert_intermediate_size", default=512),
        shared_gate=True,
        **differences,
    )
    return {"moe": moe}


def parse(config: hf.HFConfig) -> ModelConfig:
    return parse_hybrid(
        config,
        grouped=True,
        kv_heads=2,
        **sparse(config, (512, 10), layers=experts.sparse_layers(config)),
    )
