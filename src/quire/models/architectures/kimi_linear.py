"""Kimi Linear: Kimi Delta Attention in most layers, latent attention without positions in the
others, and DeepSeek-V3's experts."""

from __future__ import annotations

from typing import Any

from quire.core.layers import DeltaConfig, LatentConfig
from quire.core.model_config import ModelConfig
from quire.models import experts, hf, latent
from quire.models.architectures.qwen3_next import KINDS

NAMES = latent.NAMES.but(
    {
        **experts.names("block_sparse_moe", parts=("w1", "w3", "w2")),
        **experts.shared("block_sparse_moe.shared_experts"),
        "recurrent.in": tuple(f"self_attn.{name}_proj" for name in "qkvb"),
        "recurrent.conv": tuple(f"self_attn.{name}_conv1d" for name in "qkv"),
        "recurrent.rate": ("self_attn.A_log",),
        "recurrent.bias": ("self_attn.dt_bias",),
        "recurrent.decay_low": ("self_attn.f_a_proj",),
        "recurrent.decay": ("self_attn.f_b_proj",),
        "recurrent.gate_low": ("self_attn.g_a_proj",),
        "recurrent.gate": ("self_attn.g_b_proj",),
        "recurrent.norm": ("self_attn.o_norm",),
        "recurrent.out": ("self_attn.o_proj",),
    },
    apart={  # Transformers also renames the layers without experts when it saves a model
        "mlp.gate_up": ("block_sparse_moe.gate_proj", "block_sparse_moe.up_proj"),
        "mlp.down": ("block_sparse_moe.down_proj",),
    },
)
_DEFAULT = LatentConfig(rank=512, rope_dim=64, nope_dim=128, value_dim=128, q_rank=None)
_RENAMED = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts": "num_local_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
"""The published files' names of fields → Transformers' own."""


def parse(config: hf.HFConfig) -> ModelConfig:
    renamed = {_RENAMED[name]: value for name, value in config.items() if name in _RENAMED}
    config = {
        **renamed,
        **config,
        **{k: value for k, value in renamed.items() if value is not None},
    }
    hf.only(config, "mla_use_nope", True, "attention without positions")
    layers, linear = hf.integer(config, "num_hidden_layers"), hf.table(config, "linear_attn_config")
    head_dim = _linear(config, linear, "head_dim", "linear_head_dim", 128)
    heads = _linear(config, linear, "num_heads", "linear_num_heads", 32)
    return latent.parse(
        config,
        _DEFAULT,
        rotates=False,
        norm_eps=1e-5,
        bos=163_584,
        eos=163_586,
        recurrent=DeltaConfig(
            heads,
            heads,
            head_dim,
            head_dim,
            _linear(config, linear, "short_conv_kernel_size", "linear_conv_kernel_dim", 4),
            gate_rank=head_dim,
        ),
        sublayers=hf.layer_kinds(_types(config, linear, layers), layers, KINDS),
        moe=experts.moe(
            config,
            ("num_local_experts",),
            256,
            experts.grouped_route(config, 8, scale=2.446),
            width=1024,
            shared=1,
            layers=experts.sparse_by_types(config, experts.sparse_behind(config, 1)),
            correction=True,
        ),
    )


def _linear(
    config: hf.HFConfig, linear: dict[str, Any], published: str, name: str, default: int
) -> int:
    """Return a size of the recurrent layers; the published files keep it in a table."""
    found = linear if linear.get(published) is not None else config
    return hf.integer(found, published if found is linear else name, default=default)


def _types(config: hf.HFConfig, linear: dict[str, Any], layers: int) -> Any:
    """Return what mixes the tokens of each layer; the published files count layers from 1."""
    if config.get("layer_types") is not None:
        return config["layer_types"]
    full = linear.get("full_attn_layers")
    if full is None or linear.get("kda_layers") is None:
        full = range(5, layers + 1, 4)
    return ["full_attention" if i in full else "linear_attention" for i in range(1, layers + 1)]
