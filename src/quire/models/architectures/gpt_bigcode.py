"""GPT-BigCode (StarCoder, SantaCoder): GPT-2 whose heads share one of keys and values."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import gpt2

NAMES = gpt2.NAMES.but({}, transposed=frozenset())


def parse(config: hf.HFConfig) -> ModelConfig:
    activation = hf.plain_activation(config, "activation_function", "gelu_pytorch_tanh")
    if hf.boolean(config, "multi_query", default=True):
        return gpt2.parse(config, activation=activation, num_key_value_heads=1)
    return gpt2.parse(config, activation=activation, qkv_by_head=True)
