"""A model in GGUF's terms: its metadata and tensor names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire.checkpoint.gguf_experts import expert_keys, latent_keys
from quire.checkpoint.gguf_families import EXAONE4_LAYERS, PERIOD
from quire.checkpoint.gguf_names import NAMES, WIDEST_LAYERS
from quire.checkpoint.gguf_rope import not_in_gguf, scaling_keys
from quire.checkpoint.gguf_translation import Translation
from quire.checkpoint.gguf_writer import Value
from quire.core.errors import UnsupportedModelError
from quire.core.layers import QueryGrowth, yarn_magnitude
from quire.core.model_config import ModelConfig, RopeConfig
from quire.models.weights.gguf_names import TensorNames, tensor_names, translation_of
from quire.system.records import dataclass

ARCHITECTURES = {
    **{
        names.model_type: name
        for name, names in NAMES.items()
        if not names.recurrent and name != "gemma4"
    },
    **dict.fromkeys(("mistral", "mixtral", "internlm3"), "llama"),
    **dict.fromkeys(("deepseek_v2", "glm4_moe_lite"), "deepseek2"),
    "olmo3": "olmo2",
}
"""`ModelConfig.architecture` → GGUF's."""

_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_KEYS_AND_VALUES = "attn_kv_b.weight"
_QUANTIZATION_VERSION = 2


@dataclass(frozen=True, slots=True)
class ExportedTensor:
    """A tensor of a GGUF file.

    Attributes:
        name: GGUF's.
        sources: the model's tensor; of experts, which are one tensor in GGUF, that of each.
        shape: GGUF's, row-major: [out, in] of a matrix.
        translation: from GGUF's values to the model's.
    """

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    translation: Translation


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


def exported_tensors(
    model: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> list[ExportedTensor]:
    """Return the tensors of a model under GGUF's names.

    Args:
        shapes: Hugging Face's names → [out, in] or [width]; each expert has its own.

    Raises:
        UnsupportedModelError: a tensor has no name in GGUF.
    """
    architecture = _architecture(model)
    names = tensor_names(architecture, model.architecture)
    config: dict[str, Any] = {
        "model_type": model.architecture,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
    }
    groups: dict[str, list[str]] = {}
    for source in shapes:
        groups.setdefault(_EXPERT.sub(".experts.", source), []).append(source)
    found = []
    for source, sources in groups.items():
        name = _gguf_name(source, names)
        if name == _HEAD and model.tie_word_embeddings:  # it was stored as the head
            name = _EMBEDDINGS
        translation = translation_of(name, architecture, config) if name else None
        if name is None or translation is None:
            raise not_in_gguf(
                f"Tensor {source!r} has no name in GGUF's architecture {architecture!r}."
            )
        shape = shapes[sources[0]]
        if _EXPERT.search(sources[0]):
            shape = (len(sources), *shape)
        elif translation.reorder == "one_row":
            shape = shape[1:]
        tensor = ExportedTensor(name, tuple(sources), shape, translation)
        found += _parted(tensor, model) if name.endswith(_KEYS_AND_VALUES) else [tensor]
    return found


def _parted(tensor: ExportedTensor, model: ModelConfig) -> list[ExportedTensor]:
    """Return the keys and the values of a latent's heads, which are two tensors in new files."""
    latent, heads = model.latent, model.num_attention_heads
    if latent is None or model.architecture == "minicpm3":
        return [tensor]
    stem = tensor.name.removesuffix(_KEYS_AND_VALUES)
    name, nope = tensor.translation.name, latent.nope_dim
    keys, values = (Translation(name, part, heads, nope) for part in ("key_heads", "value_heads"))
    return [
        replace(tensor, name=f"{stem}attn_k_b.weight", shape=(heads, latent.rank, nope),
                translation=keys),
        replace(tensor, name=f"{stem}attn_v_b.weight", shape=(heads, latent.value_dim, latent.rank),
                translation=values),
    ]  # fmt: skip


def _architecture(model: ModelConfig) -> str:
    if model.architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"GGUF files of architecture {model.architecture!r} cannot be written.",
            fix=f"It can be one of {', '.join(sorted(ARCHITECTURES))}; write compressed-tensors.",
        )
    return ARCHITECTURES[model.architecture]


def _gguf_name(source: str, names: TensorNames) -> str | None:
    """Return GGUF's name of a checkpoint's tensor; a leading "model." may be missing."""
    stem, _, kind = source.rpartition(".")
    base = names.layers.rpartition(".")[0]
    stems: dict[str, str] = {}
    for part, known in names.block.items():
        stems.setdefault(known, part)
    for candidate in (stem, f"{base}.{stem}"):
        for part, known in names.top.items():
            if candidate == known:
                return f"{part}.{kind}"
        block = re.fullmatch(re.escape(names.layers) + r"\.(\d+)\.(.+)", candidate)
        if block is None:
            continue
        if whole := stems.get(f"{block[2]}.{kind}"):
            return f"blk.{block[1]}.{whole}"
        if block[2] in stems:
            return f"blk.{block[1]}.{stems[block[2]]}.{kind}"
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
    layer_norm = model.norm == "layer_norm" and model.architecture != "phimoe"
    norm = "layer_norm" if layer_norm else "layer_norm_rms"
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
        **scaling_keys(model.rope, _architecture(model)),
        **latent_keys(model),
        **expert_keys(model),
    }
    _check_layers(model)
    if model.sliding_window is not None and not model.chunked:
        keys["attention.sliding_window"] = model.sliding_window
    if model.attention_softcap is not None:
        keys["attn_logit_softcapping"] = model.attention_softcap
    if model.logits_softcap is not None:
        keys["final_logit_softcapping"] = model.logits_softcap
    if model.query_growth is not None and not model.query_growth.unrotated:
        keys |= _growth(model.query_growth, model.rope)
    if model.architecture.startswith("granite"):
        keys |= _granite(model)
    elif model.logits_scale is not None and model.latent is None:
        keys["logit_scale"] = model.logits_scale
    elif _architecture(model) in WIDEST_LAYERS and model.attention_scale is not None:
        _check_attention_scale(model)
    if model.architecture == "bitnet":
        keys["hidden_activation"] = model.activation.removesuffix("_mul")
    if model.architecture == "olmo3":
        keys["attention.sliding_window_pattern"] = list(model.sliding_layers or ())
    elif model.local_rope is not None:
        keys["rope.freq_base_swa"] = model.local_rope.theta
        keys["attention.sliding_window_pattern"] = _pattern(model)
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
        raise not_in_gguf(
            "GGUF has no way to say how queries grow with their position, except by YaRN's trained "
            "length and with its cosines unsharpened."
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
        raise not_in_gguf(
            "Some layers slide, or have RoPE of their own, and GGUF has no way to say which in "
            "this architecture."
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
        raise not_in_gguf(
            f"Queries are scaled by {model.attention_scale}, and GGUF has no way to say it."
        )


def _pattern(model: ModelConfig) -> int:
    """Return the period of layers with full attention."""
    slides = model.sliding_layers or ()
    pattern = next((i + 1 for i, slide in enumerate(slides) if not slide), len(slides) + 1)
    if slides != tuple((i + 1) % pattern != 0 for i in range(len(slides))):
        raise not_in_gguf(
            "The layers that slide follow no pattern, and GGUF has no other way to say which."
        )
    return pattern
