"""Jais 2: Llama with LayerNorms, biases and a plain relu² feed-forward."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama, nemotron

NAMES = nemotron.NAMES


def parse(config: hf.HFConfig) -> ModelConfig:
    return llama.decoder(
        config,
        bos=0,
        eos=150_024,
        norm="layer_norm",
        norm_eps=hf.number(config, "layer_norm_eps", default=1e-5),
        activation=hf.plain_activation(config, "hidden_act", "relu2"),
        **hf.attention_bias(config, default=True),
        mlp_bias=hf.boolean(config, "mlp_bias", default=True),
    )
