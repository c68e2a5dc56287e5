"""GLM-4: Llama with norms on both sides of attention and feed-forward, biased q, k and v, and RoPE
that turns neighbours in one half of each head."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but(
    {
        "attn_post_norm": ("post_self_attn_layernorm",),
        "mlp_post_norm": ("post_mlp_layernorm",),
        "mlp.gate_up": ("mlp.gate_up_proj",),
    }
)


def parse(config: hf.HFConfig) -> ModelConfig:
    norms = ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm", "norm")
    return decoder(config, head_dim=128, norms=norms)


def decoder(config: hf.HFConfig, **differences: Any) -> ModelConfig:
    """Return the `ModelConfig` of a config.json; `differences` as in `llama.decoder`."""
    vocab = hf.integer(config, "vocab_size")
    ends = hf.token_ids(config, "eos_token_id") or tuple(
        end for end in (151_329, 151_336, 151_338) if end < vocab
    )
    return llama.decoder(
        config,
        kv_heads=2,
        norm_eps=1.5625e-7,
        partial=0.5,
        interleaved=True,
        qkv_bias=hf.boolean(config, "attention_bias", default=True),
        eos_token_ids=ends,
        **differences,
    )
