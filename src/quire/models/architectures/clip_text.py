"""CLIP's text model: a small decoder, whose last token ends in an embedding."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.vision.architecture import CLIP_LAYER, gelu


def names(projection: str) -> WeightNames:
    """Return the weight names of a text model that ends in the product `projection`."""
    return WeightNames(
        top={
            "embed": "text_model.embeddings.token_embedding",
            "positions": "text_model.embeddings.position_embedding",
            "norm": "text_model.final_layer_norm",
            "head.out": projection,
        },
        layer=CLIP_LAYER,
        layer_prefix="text_model.encoder.layers.{}.",
        base_prefix="",
        ignored=r"(.*\.)?position_ids|logit_scale|logit_bias",
    )


def parse(config: hf.HFConfig, **differences: Any) -> ModelConfig:
    """Return the `ModelConfig`; `differences` are SigLIP's fields."""
    heads = hf.integer(config, "num_attention_heads", default=8)
    hidden = hf.integer(config, "hidden_size", default=512)
    fields: dict[str, Any] = {
        "architecture": config["model_type"],
        "vocab_size": hf.integer(config, "vocab_size", default=49408),
        "hidden_size": hidden,
        "intermediate_size": hf.integer(config, "intermediate_size", default=2048),
        "num_hidden_layers": hf.integer(config, "num_hidden_layers", default=12),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": hf.integer(config, "max_position_embeddings", default=77),
        "dtype": hf.dtype(config),
        "norm": "layer_norm",
        "norm_eps": hf.number(config, "layer_norm_eps", default=1e-5),
        "activation": gelu(config, "hidden_act", "quick_gelu"),
        "learned_positions_offset": 0,
        **hf.biases(True),
        "lm_head": False,
        "num_labels": hf.integer(config, "projection_dim", default=512),
    }
    return ModelConfig(**(fields | differences))


NAMES = names("text_projection")
