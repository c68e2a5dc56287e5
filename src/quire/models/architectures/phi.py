"""Phi 1, 1.5 and 2: attention and feed-forward side by side behind one LayerNorm, biases, and a
rotated part of each head."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but(
    {"attn.out": ("self_attn.dense",), "mlp.up": ("mlp.fc1",), "mlp.down": ("mlp.fc2",)},
    top={"norm": "model.final_layernorm"},
)


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "qk_layernorm", False, "q and k without norms")
    hf.only(config, "tie_word_embeddings", False, "a head with a bias of its own")
    return llama.decoder(
        config,
        bos=1,
        eos=2,
        partial=0.5,
        norm="layer_norm",
        norm_eps=hf.number(config, "layer_norm_eps", default=1e-5),
        norms=("attn_norm", "norm"),
        parallel=2,
        activation=hf.plain_activation(config, "hidden_act", "gelu_new"),
        **hf.biases(True),
        lm_head_bias=True,
    )
