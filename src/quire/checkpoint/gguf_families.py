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

    def each(self, key: str, layers: int) -> list[int]:
        """Return a whole number for each layer; the file has one of them, or one for all."""
        value = self._get(key, MISSING)
        found = value if isinstance(value, list) else [value] * layers
        if len(found) != layers or any(type(each) is not int or each < 0 for each in found):
            raise self.damaged(
                f"{self.architecture}.{key} is {value!r}, not {layers} whole numbers"
            )
        return found

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


def granite(meta: Metadata, config: Config) -> Config:
    scale = meta.number("attention.scale", 0.0) or config["head_dim"] ** -0.5
    return {
        "attention_multiplier": scale,
        "embedding_multiplier": meta.number("embedding_scale", 1.0),
        "residual_multiplier": meta.number("residual_scale", 1.0),
        "logits_scaling": meta.number("logit_scale"),
    }


def _olmo(meta: Metadata, config: Config) -> Config:
    """OLMo 3 is an OLMo 2 with a window; only its other layers have scaled RoPE."""
    if "sliding_window" not in config:
        return {}
    theta, scaling = config["rope_theta"], config["rope_scaling"] or {"rope_type": "default"}
    layers = config["num_hidden_layers"]
    return {
        "model_type": "olmo3",
        "layer_types": sliding_types(meta, layers),
        "rope_theta": None,
        "rope_scaling": None,
        "rope_parameters": {
            FULL: {**scaling, "rope_theta": theta},
            SLIDING: {"rope_type": "default", "rope_theta": theta},
        },
    }


def _exaone4(meta: Metadata, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    if layers != EXAONE4_LAYERS:
        return {"sliding_window": None, "layer_types": [FULL] * layers}
    window = config.get("sliding_window", 4096)
    return {"sliding_window": window, "sliding_window_pattern": PERIOD}


def _cohere(meta: Metadata, config: Config) -> Config:
    eps = config["rms_norm_eps"]
    return {"layer_norm_eps": eps, "logit_scale": meta.number("logit_scale")}


def _cohere2(meta: Metadata, config: Config) -> Config:
    return _cohere(meta, config) | {
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


def gemma4(meta: Metadata) -> Config:
    """Return all fields of a Gemma 4: its layers differ in heads and widths."""
    layers = meta.integer("block_count")
    meta.check_layers(layers)
    types = sliding_types(meta, layers)
    if types is None:
        raise meta.damaged("gemma4.attention.sliding_window_pattern is not one bool per layer")
    kv_heads, widths = (
        meta.each(key, layers) for key in ("attention.head_count_kv", "feed_forward_length")
    )
    full = [layer for layer, kind in enumerate(types) if kind == FULL]
    slides = [layer for layer in range(layers) if layer not in full]
    head_dim, own_input = (
        meta.integer(key)
        for key in ("attention.key_length_swa", "embedding_length_per_layer_input")
    )
    own = {"head_dim": meta.integer("attention.key_length")}
    values_are_keys = any(f"blk.{i}.attn_v.weight" not in meta.file.tensors for i in full[:1])
    config = {
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": meta.integer("embedding_length"),
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] == 2 * widths[0],
        "max_position_embeddings": meta.integer("context_length"),
        "num_attention_heads": meta.integer("attention.head_count"),
        "num_key_value_heads": kv_heads[slides[0] if slides else 0],
        "head_dim": head_dim,
        "per_layer_config": {str(i): own | {"num_key_value_heads": kv_heads[i]} for i in full},
        "attention_k_eq_v": values_are_keys,
        "num_hidden_layers": layers,
        "num_kv_shared_layers": meta.integer("attention.shared_kv_layers", 0),
        "layer_types": types,
        "sliding_window": meta.integer("attention.sliding_window"),
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "final_logit_softcapping": meta.number("final_logit_softcapping", None),
        "hidden_size_per_layer_input": own_input,
        "vocab_size_per_layer_input": meta.extent("token_embd.weight", 0),
        "rope_parameters": {
            FULL: {
                "rope_type": "proportional",
                "partial_rotary_factor": _rotated_factors(meta),
                "rope_theta": meta.number("rope.freq_base", 10000.0),
            },
            SLIDING: {
                "rope_type": "default",
                "rope_theta": meta.number("rope.freq_base_swa", 10000.0),
            },
        },
    }
    count = meta.integer("expert_count", 0)
    if not count:
        return config
    return config | {
        "enable_moe_block": True,
        "num_experts": count,
        "top_k_experts": meta.integer("expert_used_count"),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
    }


def _rotated_factors(meta: Metadata) -> float:
    """Return the part of the frequencies that turn: the factors of the others are immense."""
    name = "rope_freqs.weight"
    tensor = meta.file.tensors.get(name)
    if tensor is None or tensor.type.name != "F32":
        raise meta.damaged(f"tensor {name} is missing or not F32")
    factors = meta.file.raw(name).view("<f4")
    turned = int((factors == 1.0).sum())
    if not (factors[:turned] == 1.0).all() or (factors[turned:] < 1e20).any():
        raise UnsupportedModelError(
            f"{meta.file.path.name}: the factors of {name} are neither 1 nor immense.",
            fix="Quire knows Gemma 4's proportional RoPE; convert the model again.",
        )
    return turned / len(factors)


CHANGES: dict[str, Callable[[Metadata, Config], Config]] = {
    "smollm3": lambda meta, config: {"no_rope_layer_interval": PERIOD},
    "granite": granite,
    "seed_oss": lambda meta, config: {
        "attention_out_bias": "blk.0.attn_output.bias" in meta.file.tensors
    },
    "olmo2": _olmo,
    "glm4": lambda meta, config: rotated_part(
        meta.integer("rope.dimension_count"), config["head_dim"]
    ),
    "exaone4": _exaone4,
    "command-r": _cohere,
    "cohere2": _cohere2,
    "ernie4_5": lambda meta, config: {"use_bias": config["attention_bias"]},
    "nemotron": _nemotron,
    "arcee": lambda meta, config: {"hidden_act": "relu2"},
    "jais2": lambda meta, config: {"hidden_act": "relu2", "layer_norm_eps": config["rms_norm_eps"]},
    "mistral3": _mistral3,
    "minicpm3": lambda meta, config: {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    "bitnet": _bitnet,
}
"""By GGUF's `general.architecture`."""


def rotated_part(rotary_dim: int, head_dim: int) -> Config:
    """Return the part of a head that RoPE turns."""
    # A hair above the quotient, so that head_dim times it is never rounded below rotary_dim.
    return {"partial_rotary_factor": min(1.0, math.nextafter(rotary_dim / head_dim, 2.0))}
