"""BitNet b1.58: Llama with relu² gates and a norm before the last product of each sub-layer."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but(
    {"attn.sub_norm": ("self_attn.attn_sub_norm",), "mlp.sub_norm": ("mlp.ffn_sub_norm",)}
)


def parse(config: hf.HFConfig) -> ModelConfig:
    activation = hf.activation(config, "hidden_act", "relu2")
    if activation not in hf.GATED:
        raise hf.unsupported("hidden_act", config["hidden_act"], "Quire has no gate of it")
    return llama.decoder(
        config,
        kv_heads=5,
        norm_eps=1e-5,
        theta=500_000.0,
        bos=128_000,
        eos=128_001,
        activation=hf.GATED[activation],
        sub_norms=True,
        **hf.attention_bias(config),
    )
