"""LFM2: attention in some layers, gated short convolutions in the others."""

from __future__ import annotations

from typing import Any

from quire.core.layers import ShortConvConfig, SubLayerKind
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but(
    {
        "attn_norm": ("operator_norm",),
        "attn.q_norm": ("self_attn.q_layernorm",),
        "attn.k_norm": ("self_attn.k_layernorm",),
        "attn.out": ("self_attn.out_proj",),
        "recurrent.in": ("conv.in_proj",),
        "recurrent.conv": ("conv.conv",),
        "recurrent.out": ("conv.out_proj",),
        "mlp_norm": ("ffn_norm",),
        "mlp.gate_up": ("feed_forward.w1", "feed_forward.w3"),
        "mlp.down": ("feed_forward.w2",),
    },
    {"norm": "model.embedding_norm"},
)


def parse(config: hf.HFConfig, **differences: Any) -> ModelConfig:
    """config.json → `ModelConfig`; `differences` are those of LFM2-MoE."""
    conv = ShortConvConfig(
        width=hf.integer(config, "conv_L_cache", default=3),
        channels=hf.integer(config, "hidden_size"),
        bias=hf.boolean(config, "conv_bias", default=False),
    )
    fields: dict[str, Any] = {
        "intermediate_size": _inner(config),
        "tie_word_embeddings": hf.boolean(
            config, "tie_embedding" if "tie_embedding" in config else "tie_word_embeddings",
            default=True,
        ),
    }  # fmt: skip
    eps = hf.number(config, "norm_eps", default=1e-5)
    return llama.decoder(
        {**config, "rms_norm_eps": eps},
        kv_heads=8,
        theta=1_000_000.0,
        bos=1,
        eos=2,
        qk_norm="head",
        recurrent=conv,
        sublayers=_layers(config),
        **(fields | differences),
    )


def _layers(config: hf.HFConfig) -> tuple[tuple[SubLayerKind, ...], ...]:
    count = hf.integer(config, "num_hidden_layers")
    types = config.get("layer_types")
    if types is None:
        full = hf.layer_numbers(config, "full_attn_idxs")
        attends = [full is None or i in full for i in range(count)]
        types = ["full_attention" if each else "conv" for each in attends]
    return hf.layer_kinds(types, count, {"full_attention": "attention", "conv": "recurrent"})


def _inner(config: hf.HFConfig) -> int:
    """Return the feed-forward's inner width: by default two thirds of the config's, rounded up."""
    given = "block_ff_dim" if config.get("block_ff_dim") is not None else "intermediate_size"
    width = hf.integer(config, given, default=12288)
    if not hf.boolean(config, "block_auto_adjust_ff_dim", default=True):
        return width
    width = int(2 * width / 3)
    if config.get("block_ffn_dim_multiplier", 1.0) is None:
        return width
    width = int(hf.number(config, "block_ffn_dim_multiplier", default=1.0) * width)
    unit = hf.integer(config, "block_multiple_of", default=256)
    return -(-width // unit) * unit
