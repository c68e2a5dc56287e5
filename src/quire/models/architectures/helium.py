"""Helium: Llama with RoPE that turns neighbours."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama


def parse(config: hf.HFConfig) -> ModelConfig:
    return llama.decoder(
        config,
        head_dim=128,
        kv_heads=20,
        norm_eps=1e-8,
        norm_gain="float32",
        theta=100_000.0,
        interleaved=True,
        bos=1,
        eos=2,
        qkv_bias=hf.boolean(config, "attention_bias", default=False),
        mlp_bias=hf.boolean(config, "mlp_bias", default=False),
    )
