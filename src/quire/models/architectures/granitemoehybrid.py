"""Granite 4 without experts and Mamba layers: Granite under other names, some without positions."""

from __future__ import annotations

from dataclasses import replace

from quire.core.config import ModelConfig
from quire.core.errors import UnsupportedModelError
from quire.models import hf
from quire.models.architecture import Architecture
from quire.models.architectures import granite, llama

NAMES = replace(
    llama.NAMES,
    layer={
        **llama.NAMES.layer,
        "mlp.gate_up": ("shared_mlp.input_linear",),
        "mlp.down": ("shared_mlp.output_linear",),
    },
)


def parse(config: hf.HFConfig) -> ModelConfig:
    layers = hf.integer(config, "num_hidden_layers")
    types = config.get("layer_types") or config.get("layers_block_type")
    for field, value, wanted in (
        ("num_local_experts", config.get("num_local_experts", 8), [0]),
        ("layer_types", types, [[kind] * layers for kind in ("attention", "full_attention")]),
    ):
        if value not in wanted:
            raise UnsupportedModelError(
                f"config.json: {field} is {value!r}; of Granite 4 Quire computes models with "
                "attention in every layer and without experts.",
                param=field,
            )
    rotates = config.get("position_embedding_type") == "rope"
    return granite.parse(
        config,
        architecture="granitemoehybrid",
        intermediate_size=hf.integer(config, "shared_intermediate_size", default=1024),
        mlp_bias=False,
        rotated_layers=None if rotates else (False,) * layers,
    )


ARCHITECTURE = Architecture(parse, NAMES)
