"""Fields of config.json that GGUF says in its own way, one function per architecture.

Each takes typed access to the metadata and the fields that all Llamas share, and returns the fields
to change. Some facts are constants of llama.cpp, and in no file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from quire.checkpoint.gguf import GGUFDescription
from quire.checkpoint.gguf_names import NAMES
from quire.core.errors import CheckpointError, UnsupportedModelError

Config = dict[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"
EXAONE4_LAYERS = 64
"""Layers of the one EXAONE 4 that has windows."""
MISSING = object()
"""The default of a key that must be there."""
_NO_TOKEN = 0xFFFFFFFF
PERIOD = 4
"""Of layers: the last of each period attends to all, or has no positions."""


class Metadata:
    """Typed access to the keys of one architecture; errors name the file and the key."""

    def __init__(self, file: GGUFDescription) -> None:
        self.file = file
        architecture = file.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise self.damaged("general.architecture is missing")
        self.architecture = architecture

    def integer(self, key: str, default: Any = MISSING) -> Any:
        value = self._get(key, default)
        if isinstance(value, list) and NAMES[self.architecture].recurrent:
            value = [each for each in value if each != 0]  # of layers of another kind
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]  # one number a layer, all the same
        if isinstance(value, list):
            raise UnsupportedModelError(
                f"{self.file.path.name}: {self.architecture}.{key} differs between layers.",
                fix="Quire has no architecture whose layers differ in shape.",
            )
        if value is not default and (type(value) is not int or value < 0):
            raise self.damaged(f"{self.architecture}.{key} is {value!r}, not a whole number")
        return value

    def number(self, key: str, default: Any = MISSING) -> Any:
        value = self._get(key, default)
        if value is not default and (type(value) not in (int, float) or not math.isfinite(value)):
            raise self.damaged(f"{self.architecture}.{key} is {value!r}, not a number")
        return value if type(value) is not float else _decimal(value)

    def flag(self, key: str) -> bool:
        """Return whether the key is present and true."""
        value = self._get(key, False)
        if type(value) is not bool:
            raise self.damaged(f"{self.architecture}.{key} is {value!r}, not true or false")
        return value

    def text(self, key: str, default: Any = MISSING) -> Any:
        value = self._get(key, default)
        if value is not default and not isinstance(value, str):
            raise self.damaged(f"{self.architecture}.{key} is {value!r}, not a string")
        return value

    def token(self, key: str) -> int | None:
        value = self.file.metadata.get(f"tokenizer.ggml.{key}")
        return value if type(value) is int and 0 <= value < _NO_TOKEN else None

    def extent(self, tensor: str, axis: int) -> int:
        if tensor not in self.file.tensors:
            raise self.damaged(f"tensor {tensor} is missing")
        shape = self.file.tensors[tensor].shape
        if axis >= len(shape):
            raise self.damaged(f"tensor {tensor} has the shape {list(shape)}")
        return shape[axis]

    def _get(self, key: str, default: Any) -> Any:
        value = self.file.metadata.get(f"{self.architecture}.{key}", default)
        if value is MISSING:
            raise self.damaged(f"{self.architecture}.{key} is missing")
        return value

    def check_layers(self, layers: int) -> None:
        """Check that so many layers, of which a list is made, can be in the file."""
        if layers > len(self.file.tensors):
            key = f"{self.architecture}.block_count"
            raise self.damaged(f"{key} is {layers}, more than it has tensors")

    def damaged(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.file.path.name}: {what}.",
            fix="The file is damaged or no model; convert or download it again.",
        )


def _decimal(value: float) -> float:
    """Return the shortest decimal number that float32 rounds to `value`: 1e-6, not 9.9999999e-7."""
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    return float(str(rounded)) if rounded == value else value


def sliding_types(meta: Metadata, layers: int) -> list[str] | None:
    """Return `layer_types` where the file has one bool per layer."""
    slides = meta.file.metadata.get(f"{meta.architecture}.attention.sliding_window_pattern")
    if isinstance(slides, list) and len(slides) == layers and all(type(s) is bool for s in slides):
        return [SLIDING if s else FULL for s in slides]
    return None


def window_types(meta: Metadata, layers: int, period: int) -> list[str]:
    """Return `layer_types`: of each period of layers, the last one attends to all."""
    types = sliding_types(meta, layers)
    if types is not None:
        return types
    meta.check_layers(layers)
    period = meta.integer("attention.sliding_window_pattern", period)
    slides = (period == 0 or layer % period < period - 1 for layer in range(layers))
    return [SLIDING if slide else FULL for slide in slides]


def _smollm3(meta: Metadata, config: Config) -> Config:
    return {"no_rope_layer_interval": PERIOD}


def granite(meta: Metadata, config: Config) -> Config:
    scale = meta.number("attention.scale", 0.0) or config["head_dim"] ** -0.5
    return {
        "attention_multiplier": scale,
        "embedding_multiplier": meta.number("embedding_scale", 1.0),
        "residual_multiplier": meta.number("residual_scale", 1.0),
        "logits_scaling": meta.number("logit_scale"),
    }


def _seed_oss(meta: Metadata, config: Config) -> Config:
    return {"attention_out_bias": "blk.0.attn_output.bias" in meta.file.tensors}


def _olmo(meta: Metadata, config: Config) -> Config:
    """OLMo 3 is an OLMo 2 with a window; only its other layers have scaled RoPE."""
    if "sliding_window" not in config:
        return {}
    theta, scaling = config["rope_theta"], config["rope_scaling"] or {"rope_type": "default"}
    layers = config["num_hidden_layers"]
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "layer_types": sliding_types(meta, layers),
        "rope_theta": None,
        "rope_scaling": None,
        "rope_parameters": {
            FULL: {**scaling, "rope_theta": theta},
            SLIDING: {"rope_type": "default", "rope_theta": theta},
        },
    }


def _glm4(meta: Metadata, config: Config) -> Config:
    return rotated_part(meta.integer("rope.dimension_count"), config["head_dim"])


def _exaone4(meta: Metadata, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    if layers != EXAONE4_LAYERS:
        return {"sliding_window": None, "layer_types": [FULL] * layers}
    window = config.get("sliding_window", 4096)
    return {"sliding_window": window, "sliding_window_pattern": PERIOD}


def _cohere2(meta: Metadata, config: Config) -> Config:
    return {
        "layer_norm_eps": config["rms_norm_eps"],
        "logit_scale": meta.number("logit_scale"),
        "sliding_window": meta.integer("attention.sliding_window"),
        "sliding_window_pattern": PERIOD,
    }


def _nemotron(meta: Metadata, config: Config) -> Config:
    part = rotated_part(meta.integer("rope.dimension_count"), config["head_dim"])
    return part | {"hidden_act": "relu2", "norm_eps": config["rms_norm_eps"]}


def _mistral3(meta: Metadata, config: Config) -> Config:
    """Queries grow by multiples of the trained length; YaRN does not sharpen them."""
    scaling = config["rope_scaling"] or {"rope_type": "default"}
    if scaling["rope_type"] == "yarn" and meta.number("rope.scaling.yarn_log_multiplier", 0.0):
        scaling |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    beta = meta.number("attention.temperature_scale", 0.0)
    trained = meta.integer("rope.scaling.original_context_length", 0)
    if beta and trained:
        scaling |= {"llama_4_scaling_beta": beta, "original_max_position_embeddings": trained}
    return {"rope_scaling": scaling}


def _ernie4_5(meta: Metadata, config: Config) -> Config:
    return {"use_bias": config["attention_bias"]}


def _minicpm3(meta: Metadata, config: Config) -> Config:
    return {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}


def _bitnet(meta: Metadata, config: Config) -> Config:
    """Files without the key are of models with SiLU gates and of models with squared ReLU."""
    activation = meta.text("hidden_activation", None)
    if activation is None:
        raise UnsupportedModelError(
            f"{meta.file.path.name} has no bitnet.hidden_activation: its gates may be SiLU or "
            "squared ReLU.",
            fix="Convert the model again with a llama.cpp that writes the key, or use its "
            "safetensors.",
        )
    return {"hidden_act": activation}


CHANGES: dict[str, Callable[[Metadata, Config], Config]] = {
    "smollm3": _smollm3,
    "granite": granite,
    "seed_oss": _seed_oss,
    "olmo2": _olmo,
    "glm4": _glm4,
    "exaone4": _exaone4,
    "cohere2": _cohere2,
    "ernie4_5": _ernie4_5,
    "nemotron": _nemotron,
    "mistral3": _mistral3,
    "minicpm3": _minicpm3,
    "bitnet": _bitnet,
}
"""By GGUF's `general.architecture`."""


def rotated_part(rotary_dim: int, head_dim: int) -> Config:
    """Return the part of a head that RoPE turns."""
    # A hair above the quotient, so that head_dim times it is never rounded below rotary_dim.
    return {"partial_rotary_factor": min(1.0, math.nextafter(rotary_dim / head_dim, 2.0))}
