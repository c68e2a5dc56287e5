"""Seed-OSS: Llama with biased q, k and v, and heads of their own width."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama


def parse(config: hf.HFConfig) -> ModelConfig:
    return llama.decoder(
        config,
        head_dim=hf.optional(config, "head_dim", 128),
        kv_heads=8,
        bos=0,
        eos=2,
        qkv_bias=hf.boolean(config, "attention_bias", default=True),
        output_bias=hf.boolean(config, "attention_out_bias", default=False),
        mlp_bias=hf.boolean(config, "mlp_bias", default=False),
    )
