"""Nemotron-H: each layer is one sub-layer, Mamba-2, attention without positions, a plain relu²
feed-forward, or such experts."""

from __future__ import annotations

from typing import Any

from quire.core.layers import LARGEST_STEP, Mamba2Config, MoEConfig, SubLayerKind
from quire.core.model_config import ModelConfig
from quire.models import experts, hf, mamba2
from quire.models.architecture import WeightNames
from quire.models.weights.stacks import Stacked

NAMES = WeightNames(
    top={"embed": "backbone.embeddings", "norm": "backbone.norm_f", "lm_head": "lm_head"},
    layer={
        **mamba2.names("mixer"),
        **experts.names("mixer"),
        "attn_norm": ("norm",),
        "attn.qkv": ("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
        "attn.out": ("mixer.o_proj",),
        "mlp_norm": ("norm",),
        "mlp.up": ("mixer.up_proj",),
        "mlp.down": ("mixer.down_proj",),
        "mlp.experts.up": ("mixer.experts.{}.up_proj",),
        "mlp.shared.up": ("mixer.shared_experts.up_proj",),
        "mlp.shared.down": ("mixer.shared_experts.down_proj",),
    },
    layer_prefix="backbone.layers.{}.",
    base_prefix="backbone.",
    stacked={
        "mlp.experts.up": Stacked("mixer.experts.up_proj"),
        "mlp.experts.down": Stacked("mixer.experts.down_proj"),
    },
    ignored=r"mtp\..*",
)
_LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
_KINDS: dict[str, SubLayerKind] = {
    "mamba": "recurrent",
    "linear_attention": "recurrent",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "mlp",
}


def parse(config: hf.HFConfig) -> ModelConfig:
    types = _types(config)
    config = {**config, "num_hidden_layers": len(types)}
    sizes = {"intermediate_size": 21504, "max_position_embeddings": 4096}
    config |= {name: size for name, size in sizes.items() if config.get(name) is None}
    shape = hf.shape(config, hf.integer(config, "head_dim", default=128), 8)
    if config.get("mamba_hidden_act", "silu") != "silu":
        raise hf.wrong("mamba_hidden_act", config["mamba_hidden_act"], "silu")
    fields: dict[str, Any] = {
        "norm_eps": hf.number(config, "layer_norm_epsilon", default=1e-5),
        "norm_gain": "float32",
        "activation": hf.plain_activation(config, "mlp_hidden_act", "relu2"),
        "mlp_bias": hf.boolean(config, "mlp_bias", default=False),
        "recurrent": _mamba(config),
        "sublayers": hf.layer_kinds(types, len(types), _KINDS, "layers_block_type", ()),
        "tie_word_embeddings": hf.boolean(config, "tie_word_embeddings", default=False),
        "bos_token_id": hf.bos_token_id(config, 1),
        "eos_token_ids": hf.token_ids(config, "eos_token_id", 2),
    }
    if "moe" in types:
        fields["moe"] = _experts(config, types)
    return ModelConfig(**(shape | fields))


def _types(config: hf.HFConfig) -> list[str]:
    """Return the kind of each layer."""
    found: Any = config.get("layer_types") or config.get("layers_block_type")
    pattern = config.get("hybrid_override_pattern")
    if found is None and isinstance(pattern, str) and set(pattern) <= set(_LETTERS):
        found = [_LETTERS[letter] for letter in pattern]
    elif found is None and pattern is not None:
        raise hf.wrong("hybrid_override_pattern", pattern, f"letters of {' '.join(_LETTERS)}")
    if found is None:
        found = ["linear_attention", "moe", "full_attention", "mlp"]
    if not isinstance(found, list) or not 0 < len(found) <= hf.MOST_LAYERS:
        raise hf.wrong("layers_block_type", found, "a list of names, one for each layer")
    return found


def _mamba(config: hf.HFConfig) -> Mamba2Config:
    heads = hf.integer(config, "mamba_num_heads", default=128)
    width = hf.integer(config, "mamba_head_dim", default=64)
    least = config.get("time_step_min", config.get("mamba_dt_min", 0.001))
    return mamba2.mamba2(
        config,
        heads * width,
        heads,
        width,
        "mamba_num_heads",
        groups=hf.integer(config, "n_groups", "mamba_n_groups", default=8),
        state_dim=hf.integer(config, "ssm_state_size", default=128),
        width=hf.integer(config, "conv_kernel", "mamba_d_conv", default=4),
        conv_bias=hf.boolean(config, "use_conv_bias", default=True),
        bias=hf.boolean(config, "use_bias", default=False),
        # Transformers' lower limit; it does not read `time_step_limit`.
        limits=(0.0 if least == 0 else hf.number({"time_step_min": least}, "time_step_min"),
                LARGEST_STEP),
    )  # fmt: skip


def _experts(config: hf.HFConfig, types: list[str]) -> MoEConfig:
    hf.only(config, "moe_latent_size", None, "experts that read the hidden state")
    return experts.moe(
        config,
        ("n_routed_experts", "num_local_experts"),
        8,
        experts.grouped_route(config, 2),
        width=7688,
        layers=tuple(kind == "moe" for kind in types),
        bias=False,
        correction=True,
        shared_size=hf.integer(config, "moe_shared_expert_intermediate_size", default=7688),
    )
