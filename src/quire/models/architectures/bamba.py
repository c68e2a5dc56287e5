"""Bamba: Mamba-2 in most layers, Llama's attention in the others."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf, mamba2
from quire.models.architectures import llama

NAMES = llama.NAMES.but(
    {
        **mamba2.names("mamba"),
        "mlp_norm": ("pre_ff_layernorm",),
        "mlp.gate_up": ("feed_forward.gate_proj", "feed_forward.up_proj"),
        "mlp.down": ("feed_forward.down_proj",),
    },
    {"norm": "model.final_layernorm"},
)


def parse(config: hf.HFConfig) -> ModelConfig:
    layers = hf.integer(config, "num_hidden_layers")
    full = hf.layer_numbers(config, "attn_layer_indices") or []
    types = ["attention" if i in full else "mamba" for i in range(layers)]
    return llama.decoder(
        config,
        kv_heads=8,
        norm_eps=1e-5,
        partial=0.5,
        bos=1,
        eos=2,
        **hf.attention_bias(config),
        mlp_bias=hf.boolean(config, "mlp_bias", default=False),
        recurrent=mamba2.parse(config),
        sublayers=hf.layer_kinds(types, layers, {"attention": "attention", "mamba": "recurrent"}),
    )
