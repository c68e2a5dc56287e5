"""Granite 4: Granite with Mamba-2 in most layers, with or without experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.core.layers import SubLayerKind
from quire.core.model_config import ModelConfig
from quire.models import hf, mamba2
from quire.models.architectures import granite, granitemoe

NAMES = granitemoe.NAMES.but(
    {
        **mamba2.names("mamba"),
        "mlp.gate_up": ("shared_mlp.input_linear",),
        "mlp.down": ("shared_mlp.output_linear",),
        "mlp.shared.gate_up": ("shared_mlp.input_linear",),
        "mlp.shared.down": ("shared_mlp.output_linear",),
    },
    apart=dict.fromkeys(
        ("mlp.gate_up", "mlp.shared.gate_up"), ("shared_mlp.gate_proj", "shared_mlp.up_proj")
    ),
)
KINDS: dict[str, SubLayerKind] = {
    "attention": "attention",
    "full_attention": "attention",
    "mamba": "recurrent",
    "linear_attention": "recurrent",
}


def parse(config: hf.HFConfig) -> ModelConfig:
    layers = hf.integer(config, "num_hidden_layers")
    types = config.get("layer_types") or config.get("layers_block_type")
    types = ["mamba"] * layers if types is None else types
    kinds = hf.layer_kinds(types, layers, KINDS)
    rotates = config.get("position_embedding_type") == "rope"
    hybrid = any("recurrent" in kind for kind in kinds)
    shared = hf.integer(config, "shared_intermediate_size", default=1024)
    fields: dict[str, Any] = {}
    if hf.whole(config, "num_local_experts", 8):
        fields["moe"] = replace(granitemoe.experts_of(config), shared_size=shared)
    return granite.parse(
        config,
        intermediate_size=shared,
        mlp_bias=False,
        rotated_layers=None if rotates else (False,) * layers,
        recurrent=mamba2.parse(config) if hybrid else None,
        sublayers=kinds if hybrid else None,
        **fields,
    )
