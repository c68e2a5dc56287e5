"""What a file of a vision architecture says: its config, and the names of its weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames

Gelu = Literal["quick_gelu", "gelu", "gelu_tanh"]
_GELUS: dict[object, Gelu] = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_BARE = re.compile(
    r"(class_embedding|cls_token|position_embeddings|image_newline|mm_input_projection|lambda_[12])"
    r"(?:_weight)?$"
)
CLIP_LAYER = {
    "attn_norm": ("layer_norm1",),
    "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn.out": ("self_attn.out_proj",),
    "mlp_norm": ("layer_norm2",),
    "mlp.up": ("mlp.fc1",),
    "mlp.down": ("mlp.fc2",),
}
"""Names within a layer of CLIP and of SigLIP."""


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
    """

    parse: Callable[[hf.HFConfig, ModelConfig], VisionConfig]
    tower: str
    names: WeightNames
    text: tuple[tuple[str, str], ...]
    text_types: dict[str, str] = field(default_factory=dict)

    def tower_name(self, stored: str) -> str | None:
        """Return a stored tensor's name among `names`; None if it is not the tower's."""
        if re.match(self.tower, stored) is None:
            return None
        name = stored.removeprefix("model.").replace("vision_tower.vision_model.", "vision_tower.")
        # Bare parameters are named like the others.
        return re.sub(_BARE, r"\1.weight", name)

    def text_name(self, stored: str) -> str | None:
        """Return a stored tensor's name in the text model; None if it is the tower's."""
        if re.match(self.tower, stored) is not None:
            return None
        for pattern, name in self.text:
            found, count = re.subn(pattern, name, stored, count=1)
            if count:
                return found
        return stored


def image_token(config: hf.HFConfig, default: int | None = None) -> int:
    """Return the token that stands for a row of an image."""
    return hf.integer(config, "image_token_index", "image_token_id", default=default)


def sections(config: hf.HFConfig) -> tuple[int, ...]:
    """Return the frequencies that M-RoPE turns by time, height and width."""
    text = hf.table(config, "text_config") or config
    rope = hf.table(text, "rope_parameters") | hf.table(text, "rope_scaling")
    found = rope.get("mrope_section")
    if not isinstance(found, list) or len(found) != 3 or any(type(n) is not int for n in found):
        raise hf.wrong("mrope_section", found, "three numbers")
    return tuple(found)


def gelu(config: hf.HFConfig, name: str, default: str) -> Gelu:
    """Return the activation of a tower's feed-forwards."""
    value = config.get(name, default)
    if value not in _GELUS:
        raise hf.wrong(name, value, f"one of {', '.join(map(str, _GELUS))}")
    return _GELUS[value]
