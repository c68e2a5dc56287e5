"""What a file of a vision architecture says: its config, and the names of its weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal

from quire.core.errors import UnsupportedModelError
from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.system.records import dataclass

Gelu = Literal["quick_gelu", "gelu", "gelu_tanh"]
_GELUS: dict[object, Gelu] = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_BARE = re.compile(
    r"(class_embedding|cls_token|position_embeddings|image_newline|mm_input_projection|lambda_[12]"
    r"|probe|position_embedding_table|std_bias|std_scale)(?:_weight)?$"
)
_JOINED = re.compile(r"(in_proj)_(weight|bias)$")
CLIP_LAYER = {
    "attn_norm": ("layer_norm1",),
    "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn.out": ("self_attn.out_proj",),
    "mlp_norm": ("layer_norm2",),
    "mlp.up": ("mlp.fc1",),
    "mlp.down": ("mlp.fc2",),
}
"""Names within a layer of CLIP and of SigLIP, in towers and in text models."""
CAUSAL_LM = (
    (r"^(?:model\.)?language_model\.lm_head\.", "lm_head."),
    (r"^(?:model\.)?language_model\.(?:model\.)?", "model."),
)
"""`VisionArchitecture.text` of most models."""
PROJECTED = r"(?:model\.)?(?:vision_tower|multi_modal_projector)\."
"""`VisionArchitecture.tower` of most models."""


ON_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
}
ON_SIGLIP = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3}


@dataclass(frozen=True, slots=True)
class VisionArchitecture:
    """One family of models that read images.

    Attributes:
        parse: config.json and the text model → `VisionConfig`.
        tower: a regular expression for the beginning of the names of the tower's tensors.
        names: of these tensors, as `tower_name` returns them.
        text: pairs of a regular expression and what takes its place in names of the text model, so
            that they are those of a checkpoint of the text model alone. The first match counts.
        text_types: `model_type` of the text model's config → that of an architecture.
        text_config: completes the text model's config; absent fields may mean something else in it.
        renamed: pairs of what stands in names of the tower, and what takes its place.
        processor: what fields that preprocessor_config.json lacks mean. Without "do_normalize" the
            file does not normalize, but the tower, as this says.
        settings: those that `--mm-processor-kwargs` may change.
    """

    parse: Callable[[hf.HFConfig, ModelConfig], VisionConfig]
    tower: str
    names: WeightNames
    text: tuple[tuple[str, str], ...]
    text_types: dict[str, str] = field(default_factory=dict)
    text_config: Callable[[dict[str, Any]], dict[str, Any]] = dict
    renamed: tuple[tuple[str, str], ...] = (("vision_tower.vision_model.", "vision_tower."),)
    processor: dict[str, Any] = field(default_factory=lambda: ON_CLIP)
    settings: tuple[str, ...] = ()

    def tower_name(self, stored: str) -> str | None:
        """Return a stored tensor's name among `names`; None if it is not the tower's."""
        if re.match(self.tower, stored) is None:
            return None
        name = stored.removeprefix("model.")
        for old, new in self.renamed:
            name = name.replace(old, new)
        # Bare parameters are named like the others.
        return re.sub(_BARE, r"\1.weight", re.sub(_JOINED, r"\1.\2", name))

    def text_name(self, stored: str) -> str | None:
        """Return a stored tensor's name in the text model; None if it is the tower's."""
        if re.match(self.tower, stored) is not None:
            return None
        for pattern, name in self.text:
            found, count = re.subn(pattern, name, stored, count=1)
            if count:
                return found
        return stored


def clip_shape(vision: hf.HFConfig) -> dict[str, Any]:
    """Return the fields of CLIP's tower."""
    return _shape(vision, patch_size=32, activation="quick_gelu", eps=1e-5) | {
        "class_token": True, "patch_bias": False, "embed_norm": True, "final_norm": False,
    }  # fmt: skip


def siglip_shape(
    vision: hf.HFConfig, *, hidden_size: int = 768, num_heads: int = 12, patch_size: int = 16
) -> dict[str, Any]:
    """Return the fields of SigLIP's tower; the arguments are what absent ones mean."""
    return _shape(vision, hidden_size, num_heads, patch_size, "gelu_pytorch_tanh", 1e-6)


def _shape(
    vision: hf.HFConfig,
    hidden_size: int = 768,
    num_heads: int = 12,
    patch_size: int = 16,
    activation: str = "",
    eps: float = 0.0,
) -> dict[str, Any]:
    return {
        "hidden_size": hf.integer(vision, "hidden_size", default=hidden_size),
        "intermediate_size": hf.integer(vision, "intermediate_size", default=3072),
        "num_layers": hf.integer(vision, "num_hidden_layers", default=12),
        "num_heads": hf.integer(vision, "num_attention_heads", default=num_heads),
        "patch_size": hf.integer(vision, "patch_size", default=patch_size),
        "image_size": hf.integer(vision, "image_size", default=224),
        "activation": gelu(vision, "hidden_act", activation),
        "norm_eps": hf.number(vision, "layer_norm_eps", default=eps),
    }


def tower_names(prefix: str, rest: dict[str, str], **fields: Any) -> WeightNames:
    """Return the names of a tower of CLIP or SigLIP below `prefix`, and of what follows it."""
    embeddings = f"{prefix}.embeddings"
    top = {
        "patch": f"{embeddings}.patch_embedding",
        "class": f"{embeddings}.class_embedding",
        "positions": f"{embeddings}.position_embedding",
        "embed_norm": f"{prefix}.pre_layrnorm",
        "norm": f"{prefix}.post_layernorm",
    }
    fields.setdefault("ignored", r".*\.(?:position_ids|head\..*)")
    return WeightNames(
        top | rest, CLIP_LAYER, f"{prefix}.encoder.layers.{{}}.", base_prefix="", **fields
    )


def image_token(config: hf.HFConfig, default: int | None = None) -> int:
    """Return the token that stands for a row of an image."""
    return hf.integer(config, "image_token_index", "image_token_id", default=default)


def layers_read(config: hf.HFConfig, layers: int, default: int) -> int:
    """Return how many of a tower's layers are computed, up to the one that the projector reads."""
    feature = config.get("vision_feature_layer", default)
    if type(feature) is not int or not -layers <= feature < 0:
        raise UnsupportedModelError(
            f"config.json: vision_feature_layer is {feature!r}; Quire reads one layer, counted "
            "from the end.",
            param="vision_feature_layer",
        )
    return layers + 1 + feature


def features_read(config: hf.HFConfig, layers: int, default: int) -> dict[str, Any]:
    """Return the fields that say which layers the projector reads: one, or several."""
    features = config.get("vision_feature_layer", default)
    if not isinstance(features, list):
        return {"num_layers": layers_read(config, layers, default)}
    read = [layers_read({"vision_feature_layer": each}, layers, default) for each in features]
    if not read or sorted(set(read)) != read:
        raise hf.wrong("vision_feature_layer", features, "layers in their order")
    return {"num_layers": read[-1], "feature_layers": tuple(each - 1 for each in read)}


def square(config: hf.HFConfig, name: str, default: int) -> int:
    """Return the side of a square, which may be given as a pair."""
    value = config.get(name, default)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    return hf.integer({name: value}, name)


def sections(config: hf.HFConfig, default: list[int] | None = None) -> tuple[int, ...]:
    """Return the frequencies that M-RoPE turns by time, height and width."""
    text = hf.table(config, "text_config") or config
    rope = hf.table(text, "rope_parameters") | hf.table(text, "rope_scaling")
    found = rope.get("mrope_section", default)
    if not isinstance(found, list) or len(found) != 3 or any(type(n) is not int for n in found):
        raise hf.wrong("mrope_section", found, "three numbers")
    return tuple(found)


def gelu(config: hf.HFConfig, name: str, default: str) -> Gelu:
    """Return the activation of a tower's feed-forwards."""
    value = config.get(name, default)
    if not isinstance(value, str) or value not in _GELUS:
        raise hf.wrong(name, value, f"one of {', '.join(map(str, _GELUS))}")
    return _GELUS[value]
