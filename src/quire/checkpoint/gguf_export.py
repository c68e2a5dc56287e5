"""A model in GGUF's terms: its metadata and tensor names."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf_families import EXAONE4_LAYERS, PERIOD
from quire.checkpoint.gguf_names import (
    LONG_FACTORS,
    NAMES,
    NORMALIZED,
    ROPE_FACTORS,
    SHORT_FACTORS,
    WIDEST_LAYERS,
    Names,
    Translation,
    translation_of,
)
from quire.checkpoint.gguf_writer import Value
from quire.checkpoint.weights import Weights
from quire.core.config import ModelConfig, RopeConfig
from quire.core.errors import UnsupportedModelError
from quire.core.layers import MoEConfig, QueryGrowth, yarn_magnitude

ARCHITECTURES = {
    name: name
    for name in (
        *("llama", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gpt2"),
        *("olmo2", "stablelm", "starcoder2", "smollm3", "granite", "seed_oss", "glm4"),
        *("exaone4", "cohere2", "ernie4_5", "nemotron"),
    )
}
ARCHITECTURES |= {"mistral": "llama", "internlm3": "llama", "gemma3_text": "gemma3"}
ARCHITECTURES |= {"hunyuan_v1_dense": "hunyuan-dense", "ministral3": "mistral3"}
ARCHITECTURES |= {"mixtral": "llama", "olmoe": "olmoe", "olmo3": "olmo2"}
ARCHITECTURES |= {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}
"""`ModelConfig.architecture` → GGUF's."""

_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
_NO_WEIGHTS = re.compile(r".*\.(rotary_emb\.inv_freq|attn\.(masked_)?bias)")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_QUANTIZATION_VERSION = 2


@dataclass(frozen=True, slots=True)
class ExportedTensor:
    """A tensor of a GGUF file.

    Attributes:
        name: GGUF's.
        source: the checkpoint's; of experts, which are one tensor in GGUF, the first one's.
        shape: GGUF's, row-major: [out, in] of a matrix.
        translation: from GGUF's values to the checkpoint's.
        others: the tensors of the other experts.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    translation: Translation
    others: tuple[str, ...] = ()

    def read(self, weights: Weights) -> npt.NDArray[np.float32]:
        """Return its values in GGUF's form."""
        values = weights.read(self.source)
        if self.others:
            values = np.stack([values, *map(weights.read, self.others)])
        return self.translation.undo(values).astype(np.float32, copy=False)


def metadata(model: ModelConfig, name: str) -> dict[str, Value]:
    """Return the metadata of a file for `model`, without its tokenizer.

    Raises:
        UnsupportedModelError: GGUF has no such architecture, or cannot say how it differs.
    """
    architecture = _architecture(model)
    keys: dict[str, Value] = {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": name,
        "general.quantization_version": _QUANTIZATION_VERSION,
    }
    own = _gpt2(model) if architecture == "gpt2" else _llama(model)
    return keys | {f"{architecture}.{key}": value for key, value in own.items()}


def exported_tensors(model: ModelConfig, weights: Weights) -> list[ExportedTensor]:
    """Return the tensors of `weights` under GGUF's names, without a redundant tied lm_head.

    Raises:
        UnsupportedModelError: a tensor has no name in GGUF.
    """
    architecture = _architecture(model)
    names = NAMES[model.architecture if model.architecture == "mixtral" else architecture]
    config: dict[str, Any] = {
        "model_type": model.architecture,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
    }
    found = []
    for (source, *others), shape in _sources(weights):
        name = _gguf_name(_EXPERT.sub(".experts.", source), names)
        translation = translation_of(name, architecture, config) if name else None
        if name is None or translation is None:
            raise UnsupportedModelError(
                f"Tensor {source!r} has no name in GGUF's architecture {architecture!r}.",
                fix="Write compressed-tensors instead.",
            )
        stored = translation.shape(shape)
        found.append(ExportedTensor(name, source, stored, translation, tuple(others)))
    return _one_of_tied(found) if model.tie_word_embeddings else found


def _sources(weights: Weights) -> list[tuple[list[str], tuple[int, ...]]]:
    """Return the checkpoint's tensors, the experts of a layer together, and their shapes."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for source in weights.tensors:
        if not _NO_WEIGHTS.fullmatch(source):
            expert = _EXPERT.search(source)
            group = groups.setdefault(_EXPERT.sub(".experts.", source), [])
            group.append((int(expert[1]) if expert else 0, source))
    found = []
    for group in groups.values():
        sources = [source for _, source in sorted(group)]
        shape = weights.tensors[sources[0]].shape
        found.append((sources, (len(sources), *shape) if _EXPERT.search(sources[0]) else shape))
    return found


def _one_of_tied(tensors: list[ExportedTensor]) -> list[ExportedTensor]:
    """Return only the embedding of a tied pair; the head may replace it."""
    names = {tensor.name for tensor in tensors}
    if _EMBEDDINGS in names:
        return [tensor for tensor in tensors if tensor.name != _HEAD]
    return [replace(t, name=_EMBEDDINGS) if t.name == _HEAD else t for t in tensors]


def factor_tensors(rope: RopeConfig | None) -> dict[str, npt.NDArray[np.float32]]:
    """Return the frequency factors that a file stores as tensors: Llama 3's and LongRoPE's."""
    if rope is None or rope.scaling not in ("llama3", "longrope"):
        return {}
    p = rope.params
    if rope.scaling == "longrope":
        return {
            LONG_FACTORS: np.array(p["long_factor"], np.float32),
            SHORT_FACTORS: np.array(p["short_factor"], np.float32),
        }
    frequencies = rope.theta ** -(np.arange(0, rope.rotary_dim, 2) / rope.rotary_dim)
    turns = p["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return {ROPE_FACTORS: (1 / ((1 - kept) / p["factor"] + kept)).astype(np.float32)}


def _architecture(model: ModelConfig) -> str:
    if model.architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"GGUF files of architecture {model.architecture!r} cannot be written.",
            fix=f"It can be one of {', '.join(sorted(ARCHITECTURES))}; write compressed-tensors.",
        )
    return ARCHITECTURES[model.architecture]


def _gguf_name(source: str, names: Names) -> str | None:
    """Return GGUF's name of a checkpoint's tensor; a leading "model." may be missing."""
    stem, _, kind = source.rpartition(".")
    base = names.layers.rpartition(".")[0]
    for candidate in (stem, f"{base}.{stem}"):
        for part, known in names.top.items():
            if candidate == known:
                return f"{part}.{kind}"
        block = re.fullmatch(re.escape(names.layers) + r"\.(\d+)\.(.+)", candidate)
        for part, known in names.block.items() if block else ():
            if block and block[2] == known:
                return f"blk.{block[1]}.{part}.{kind}"
    return None


def _gpt2(model: ModelConfig) -> dict[str, Value]:
    return {
        "context_length": model.max_position_embeddings,
        "embedding_length": model.hidden_size,
        "feed_forward_length": model.intermediate_size,
        "block_count": model.num_hidden_layers,
        "attention.head_count": model.num_attention_heads,
        "attention.layer_norm_epsilon": model.norm_eps,
    }


def _llama(model: ModelConfig) -> dict[str, Value]:
    assert model.rope is not None
    norm = "layer_norm" if model.norm == "layer_norm" else "layer_norm_rms"
    keys: dict[str, Value] = {
        "context_length": model.max_position_embeddings,
        "embedding_length": model.hidden_size,
        "feed_forward_length": model.intermediate_size,
        "block_count": model.num_hidden_layers,
        "vocab_size": model.vocab_size,
        "attention.head_count": model.num_attention_heads,
        "attention.head_count_kv": model.num_key_value_heads,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
        f"attention.{norm}_epsilon": model.norm_eps,
        "rope.dimension_count": model.rope.rotary_dim,
        "rope.freq_base": model.rope.theta,
        **_rope_scaling(model.rope),
    }
    if model.moe is not None:
        keys |= _experts(model, model.moe)
    _check_layers(model)
    if model.sliding_window is not None:
        keys["attention.sliding_window"] = model.sliding_window
    if model.attention_softcap is not None:
        keys["attn_logit_softcapping"] = model.attention_softcap
    if model.logits_softcap is not None:
        keys["final_logit_softcapping"] = model.logits_softcap
    if model.query_growth is not None:
        keys |= _growth(model.query_growth, model.rope)
    if model.architecture == "granite":
        keys |= _granite(model)
    elif model.logits_scale is not None:
        keys["logit_scale"] = model.logits_scale
    elif model.attention_scale is not None:
        _check_attention_scale(model)
    if model.architecture == "olmo3":
        keys["attention.sliding_window_pattern"] = list(model.sliding_layers or ())
    elif model.local_rope is not None:
        keys["rope.freq_base_swa"] = model.local_rope.theta
        keys["attention.sliding_window_pattern"] = _pattern(model)
    return keys


def _experts(model: ModelConfig, moe: MoEConfig) -> dict[str, Value]:
    if moe.layers is not None or moe.route.renormalize != (model.architecture in NORMALIZED):
        what = "dense layers" if moe.layers is not None else "weights of experts like these"
        raise UnsupportedModelError(
            f"GGUF has no way to say that this architecture has {what}.",
            fix="Write compressed-tensors instead.",
        )
    keys: dict[str, Value] = {
        "expert_count": moe.num_experts,
        "expert_used_count": moe.route.top_k,
    }
    if moe.intermediate_size != model.intermediate_size:
        keys["expert_feed_forward_length"] = moe.intermediate_size
    if moe.shared_size:
        keys["expert_shared_feed_forward_length"] = moe.shared_size
    return keys


def _granite(model: ModelConfig) -> dict[str, Value]:
    return {
        "attention.scale": model.attention_scale or 1.0,
        "embedding_scale": model.embedding_scale or 1.0,
        "residual_scale": model.residual_scale or 1.0,
        "logit_scale": 1.0 / (model.logits_scale or 1.0),
    }


def _growth(growth: QueryGrowth, rope: RopeConfig) -> dict[str, Value]:
    unsharp = rope.scaling == "yarn" and math.isclose(yarn_magnitude(rope.params), 1.0)
    if not unsharp or rope.params["original_max_position_embeddings"] != growth.length:
        raise UnsupportedModelError(
            "GGUF has no way to say how queries grow with their position, except by YaRN's trained "
            "length and with its cosines unsharpened.",
            fix="Write compressed-tensors instead.",
        )
    return {
        "attention.temperature_scale": growth.beta,
        "rope.scaling.yarn_log_multiplier": 1.0,
        "rope.scaling.attn_factor": 1.0,
    }


def _check_layers(model: ModelConfig) -> None:
    """Check that the layers that slide, and those without positions, are those that the
    architecture implies: the file does not say which ones they are."""
    layers = range(model.num_hidden_layers)
    slides = tuple(model.window(layer) is not None for layer in layers)
    rotates = tuple(model.layer_rope(layer) is not None for layer in layers)
    none, every = (False,) * len(layers), (True,) * len(layers)
    period = tuple((layer + 1) % PERIOD != 0 for layer in layers)
    match model.architecture:
        case name if name.startswith(("qwen", "ministral3")):
            fits = slides == none
        case "mistral":
            fits = slides in (none, every)
        case "smollm3":
            fits = slides == none and rotates == period
        case "cohere2":
            fits = slides == rotates == period
        case "exaone4" if len(layers) == EXAONE4_LAYERS:
            fits = slides == rotates == period
        case "exaone4":
            fits = slides == none and rotates == every
        case "olmo3":
            fits = _local_rope_is_implied(model)
        case _:
            return
    if not fits:
        raise UnsupportedModelError(
            "Some layers slide, or have RoPE of their own, and GGUF has no way to say which in "
            "this architecture.",
            fix="Write compressed-tensors instead.",
        )


def _local_rope_is_implied(model: ModelConfig) -> bool:
    """Return whether sliding layers have the others' base and no scaling."""
    rope, local = model.rope, model.local_rope
    assert rope is not None
    assert local is not None
    return local.theta == rope.theta and local.scaling == "default"


def _check_attention_scale(model: ModelConfig) -> None:
    """Check that queries have the family's scale: the file does not state it."""
    widest = WIDEST_LAYERS[_architecture(model)] == model.num_hidden_layers
    implied = model.hidden_size / model.num_attention_heads if widest else model.head_dim
    if not math.isclose(model.attention_scale or 0.0, implied**-0.5, rel_tol=1e-6):
        raise UnsupportedModelError(
            f"Queries are scaled by {model.attention_scale}, and GGUF has no way to say it.",
            fix="Write compressed-tensors instead.",
        )


def _pattern(model: ModelConfig) -> int:
    """Return the period of layers with full attention."""
    slides = model.sliding_layers or ()
    pattern = next((i + 1 for i, slide in enumerate(slides) if not slide), len(slides) + 1)
    if slides != tuple((i + 1) % pattern != 0 for i in range(len(slides))):
        raise UnsupportedModelError(
            "The layers that slide follow no pattern, and GGUF has no other way to say which.",
            fix="Write compressed-tensors instead.",
        )
    return pattern


def _rope_scaling(rope: RopeConfig) -> dict[str, Value]:
    p: dict[str, Any] = rope.params
    match rope.scaling:
        case "default" | "llama3":  # whose factors are a tensor
            return {}
        case "linear":
            return {"rope.scaling.type": "linear", "rope.scaling.factor": float(p["factor"])}
        case "yarn":
            return _yarn(p)
        case "longrope":
            return {
                "rope.scaling.original_context_length": p["original_max_position_embeddings"],
                "rope.scaling.attn_factor": p["attention_factor"],
            }
    raise UnsupportedModelError(
        f"GGUF cannot say that RoPE is scaled in the way {rope.scaling!r}.",
        fix="Write compressed-tensors instead.",
    )


def _yarn(p: dict[str, Any]) -> dict[str, Value]:
    """Return YaRN's keys; GGUF readers round its range and sharpen by the factor alone."""
    if not p.get("truncate", True):
        raise UnsupportedModelError(
            "YaRN's truncate is false, and GGUF has no way to say it.",
            fix="Write compressed-tensors instead.",
        )
    keys: dict[str, Value] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(p["factor"]),
        "rope.scaling.original_context_length": p["original_max_position_embeddings"],
    }
    for name in ("beta_fast", "beta_slow"):
        if name in p:
            keys[f"rope.scaling.yarn_{name}"] = float(p[name])
    sharper = yarn_magnitude(p) / yarn_magnitude({"factor": p["factor"]})
    if sharper != 1.0:
        keys["rope.scaling.attn_factor"] = sharper
    return keys
