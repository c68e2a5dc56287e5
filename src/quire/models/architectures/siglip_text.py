"""SigLIP's text model: attention both ways over texts that are padded to one length."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import clip_text
from quire.models.vision.architecture import gelu

NAMES = clip_text.names("text_model.head")

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
}


def parse(config: hf.HFConfig) -> ModelConfig:
    config = _DEFAULTS | {name: value for name, value in config.items() if value is not None}
    return clip_text.parse(
        config,
        norm_eps=hf.number(config, "layer_norm_eps", default=1e-6),
        activation=gelu(config, "hidden_act", "gelu_pytorch_tanh"),
        causal=False,
        padded=True,
        num_labels=hf.integer(config, "projection_size", default=hf.integer(config, "hidden_size")),
        projection_bias=True,
    )
