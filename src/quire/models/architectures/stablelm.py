"""StableLM: Llama with LayerNorms, biases of q, k and v, and a rotated part of each head."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama


def parse(config: hf.HFConfig) -> ModelConfig:
    # Transformers ignores it in these models.
    hf.only(config, "is_causal", True, "causal attention")
    hf.only(config, "qk_layernorm", False, "q and k without norms")
    hf.only(config, "use_parallel_residual", False, "attention before the feed-forward")
    return llama.decoder(
        config,
        kv_heads=32,
        bos=0,
        eos=0,
        partial=0.25,
        norm="layer_norm",
        norm_eps=hf.number(config, "layer_norm_eps", default=1e-5),
        qkv_bias=hf.boolean(config, "use_qkv_bias", default=False),
    )
