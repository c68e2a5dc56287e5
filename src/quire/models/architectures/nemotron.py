"""Nemotron (dense): Llama with LayerNorms of 1 + weight, a plain relu² feed-forward, and RoPE in a
part of each head."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but({"mlp.up": ("mlp.up_proj",)})


def parse(config: hf.HFConfig) -> ModelConfig:
    # Transformers ignores it in these models.
    hf.only(config, "is_causal", True, "causal attention")
    return llama.decoder(
        config,
        bos=2,
        eos=3,
        norm="layer_norm",
        norm_eps=hf.number(config, "norm_eps", default=1e-5),
        norm_gain="plus_one",
        partial=0.5,
        activation=hf.plain_activation(config, "hidden_act", "relu2"),
        **hf.attention_bias(config),
        mlp_bias=hf.boolean(config, "mlp_bias", default=False),
    )
