"""LFM3: LFM2 with windows and a RoPE of their own, a gate per head, and norms behind sub-layers."""

from __future__ import annotations

from typing import Any

from quire.core.layers import ShortConvConfig, SubLayerKind
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models import rope as ropes
from quire.models.architectures import lfm2, llama, sliding

NAMES = lfm2.NAMES.but(
    {
        **{
            f"attn.{name}": llama.NAMES.layer[f"attn.{name}"]
            for name in ("q_norm", "k_norm", "out")
        },
        "attn.gate": ("self_attn.g_proj",),
        "attn_post_norm": ("post_operator_norm",),
        "mlp_post_norm": ("post_ffn_norm",),
    },
    apart={"attn.gate": ("self_attn.gate_proj",)},  # as published
)
_ROPES: dict[str, Any] = {
    ropes.FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
    ropes.SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}
"""Where the config does not say."""
_KINDS: dict[str, SubLayerKind] = {
    "conv": "recurrent", ropes.FULL: "attention", ropes.SLIDING: "attention",
}  # fmt: skip
_PERIOD = ropes.SLIDING, "conv", ropes.FULL, "conv"


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "rope_scaling", None, "RoPE by rope_parameters")
    if config.get("rope_parameters") is None:
        config = {**config, "rope_parameters": _ROPES}
    layers, dim = (
        hf.integer(config, "num_hidden_layers"),
        hf.integer(config, "head_dim", default=128),
    )
    types = config.get("layer_types")
    if types is None:
        types = ["conv", *(_PERIOD[i % 4] for i in range(1, layers))]
    kinds = hf.layer_kinds(types, layers, _KINDS)
    slides = tuple(kind == ropes.SLIDING for kind in types)
    longest = hf.integer(config, "max_position_embeddings")
    thetas = {ropes.FULL: ("", 1e6), ropes.SLIDING: ("", 1e4)}
    rope, local = ropes.ropes(config, dim, longest, thetas=thetas, scaled=())
    norms: tuple[str, ...] = ("attn_norm", "mlp_norm", "norm")
    if hf.boolean(config, "use_sandwich_norm", default=True):
        norms += ("attn_post_norm", "mlp_post_norm")
    gated = hf.boolean(config, "use_attention_gate", default=True)
    return llama.decoder(
        {**config, "rms_norm_eps": hf.number(config, "norm_eps", default=1e-5)},
        head_dim=dim,
        kv_heads=4,
        bos=124_894,
        eos=124_900,
        rope=rope,
        local_rope=local,
        norms=norms,
        qk_norm="head",
        output_gate="per_head" if gated else None,
        **hf.attention_bias(config),
        **sliding.windowed(hf.optional(config, "sliding_window", 256), slides),
        recurrent=ShortConvConfig(
            width=hf.integer(config, "conv_L_cache", default=7),
            channels=hf.integer(config, "hidden_size"),
            bias=hf.boolean(config, "conv_bias", default=False),
        ),
        sublayers=kinds,
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=True),
    )
