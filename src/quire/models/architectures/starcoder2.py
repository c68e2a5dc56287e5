"""StarCoder 2: Llama with LayerNorms, biases, a plain GELU feed-forward and a sliding window."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but({"mlp.up": ("mlp.c_fc",), "mlp.down": ("mlp.c_proj",)})


def parse(config: hf.HFConfig) -> ModelConfig:
    return llama.decoder(
        config,
        kv_heads=2,
        bos=50256,
        eos=50256,
        norm="layer_norm",
        norm_eps=hf.number(config, "norm_epsilon", default=1e-5),
        activation=hf.plain_activation(config, "hidden_act", "gelu_pytorch_tanh"),
        **hf.biases(hf.boolean(config, "use_bias", default=True)),
        sliding_window=hf.optional(config, "sliding_window", None),
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=True),
    )
