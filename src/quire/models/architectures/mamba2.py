"""Mamba-2: recurrent layers alone, without attention, feed-forward and positions."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf, mamba2
from quire.models.architecture import WeightNames

MAX_LEN = 131_072
"""Longest sequence. The model has no limit of its own."""
NAMES = WeightNames(
    top={"embed": "backbone.embeddings", "norm": "backbone.norm_f", "lm_head": "lm_head"},
    layer={"attn_norm": ("norm",), **mamba2.names("mixer")},
    layer_prefix="backbone.layers.{}.",
    base_prefix="backbone.",
)


def parse(config: hf.HFConfig) -> ModelConfig:
    hidden, layers = hf.integer(config, "hidden_size"), hf.integer(config, "num_hidden_layers")
    if hf.activation(config, "hidden_act", "silu") != "silu":
        raise hf.wrong("hidden_act", config["hidden_act"], "silu")
    recurrent = mamba2.mamba2(
        config,
        hf.integer(config, "expand", default=2) * hidden,
        hf.integer(config, "num_heads", default=128),
        hf.integer(config, "head_dim", default=64),
        "num_heads",
        groups=hf.integer(config, "n_groups", default=8),
        state_dim=hf.integer(config, "state_size", default=128),
        width=hf.integer(config, "conv_kernel", default=4),
        conv_bias=hf.boolean(config, "use_conv_bias", default=True),
        bias=hf.boolean(config, "use_bias", default=False),
    )
    return ModelConfig(
        architecture="mamba2",
        vocab_size=hf.integer(config, "vocab_size", default=32768),
        hidden_size=hidden,
        intermediate_size=recurrent.inner,
        num_hidden_layers=layers,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=1,
        max_position_embeddings=MAX_LEN,
        dtype=hf.dtype(config),
        norm_eps=hf.number(config, "layer_norm_epsilon", default=1e-5),
        norms=("attn_norm", "norm"),
        recurrent=recurrent,
        sublayers=(("recurrent",),) * layers,
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=False),
        bos_token_id=hf.bos_token_id(config, 0),
        eos_token_ids=hf.token_ids(config, "eos_token_id", 2),
    )
