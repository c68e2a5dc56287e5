"""InternLM 3: Llama under other names of its biases, which Transformers computes as a Llama."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama


def parse(config: hf.HFConfig) -> ModelConfig:
    attention = _either(config, "attention_bias", "qkv_bias")
    mlp = _either(config, "mlp_bias", "bias")
    if attention != mlp:
        raise hf.wrong("qkv_bias", attention, "as bias is: all linear layers have one, or none")
    return llama.decoder(
        config,
        head_dim=hf.optional(config, "head_dim", 128),
        kv_heads=2,
        norm_eps=1e-5,
        bos=1,
        eos=2,
        **hf.biases(attention),
    )


def _either(config: hf.HFConfig, *names: str) -> bool:
    return any(hf.boolean(config, name, default=False) for name in names)
