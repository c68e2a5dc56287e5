"""Llama 4 (text): experts scaled at their input, attention in chunks, layers without positions."""

from __future__ import annotations

from quire.core.layers import QueryGrowth, RouteSpec
from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama, sliding, smollm3
from quire.models.weights.stacks import Stacked

NAMES = llama.NAMES.but(
    {
        "mlp.gate_up": ("feed_forward.gate_proj", "feed_forward.up_proj"),
        "mlp.down": ("feed_forward.down_proj",),
        **experts.names("feed_forward", "router"),
        **experts.shared("feed_forward.shared_expert"),
    },
    stacked={
        f"mlp.experts.{name}": Stacked(f"feed_forward.experts.{name}_proj", transposed=True)
        for name in ("gate_up", "down")
    },
)
_TYPES = ("full_attention", "chunked_attention")


def parse(config: hf.HFConfig) -> ModelConfig:
    config = {**config, "no_rope_layers": config.get("no_rope_layers") or None}
    rotated, growth = smollm3.rotated(config), None
    chunked = sliding.layer_types(config, _TYPES)
    chunk = hf.optional(config, "attention_chunk_size", 8192)
    if hf.boolean(config, "attn_temperature_tuning", default=True):
        beta = hf.number(config, "attn_scale", default=0.1)
        length = hf.integer(config, "floor_scale", default=8192)
        growth = QueryGrowth(beta, length, ahead=1, unrotated=True)
    return llama.decoder(
        config,
        head_dim=128,
        kv_heads=8,
        norm_eps=1e-5,
        theta=500_000.0,
        interleaved=True,
        bos=1,
        eos=2,
        intermediate_size=hf.integer(config, "intermediate_size_mlp", default=16384),
        **hf.attention_bias(config),
        qk_norm="unit" if hf.boolean(config, "use_qk_norm", default=True) else None,
        rotated_layers=rotated,
        query_growth=growth,
        chunked=True,
        moe=experts.moe(
            config,
            ("num_experts", "num_local_experts"),
            16,
            RouteSpec(
                hf.integer(config, "num_experts_per_tok", default=1), "sigmoid", renormalize=False
            ),
            weight_on_input=True,
            layers=_sparse(config),
            shared_size=hf.integer(config, "intermediate_size", default=8192),
        ),
        **sliding.windowed(chunk, rotated if chunked is None else chunked, "attention_chunk_size"),
    )


def _sparse(config: hf.HFConfig) -> tuple[bool, ...]:
    """Return which layers have experts."""
    layers = hf.integer(config, "num_hidden_layers")
    step = hf.integer(config, "interleave_moe_layer_step", default=1)
    stated = config.get("moe_layers")
    if stated is None:
        stated = list(range(step - 1, layers, step))
    if not isinstance(stated, list) or any(type(layer) is not int for layer in stated):
        raise hf.wrong("moe_layers", stated, "a list of layers")
    return tuple(layer in stated for layer in range(layers))
