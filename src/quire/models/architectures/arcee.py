"""Arcee (AFM): Llama with a plain relu² feed-forward."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but({"mlp.up": ("mlp.up_proj",)})


def parse(config: hf.HFConfig) -> ModelConfig:
    return llama.decoder(
        config,
        bos=128_000,
        eos=128_001,
        norm_eps=1e-5,
        activation=hf.plain_activation(config, "hidden_act", "relu2"),
        **hf.attention_bias(config),
        mlp_bias=hf.boolean(config, "mlp_bias", default=False),
    )
