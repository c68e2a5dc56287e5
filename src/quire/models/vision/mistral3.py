"""Mistral Small 3 and Ministral 3: Pixtral, of whose patches squares make a row."""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import UnsupportedModelError
from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers
from quire.models.vision.pixtral import ARCHITECTURE as PIXTRAL
from quire.models.vision.pixtral import EPS, pixtral


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    hf.only(config, "multimodal_projector_bias", False, "the projector of Mistral Small 3")
    if text.norm_eps != EPS:  # the projector's norm has that of the text model
        raise UnsupportedModelError(
            f"config.json: rms_norm_eps is {text.norm_eps:g}; images are read with {EPS:g}.",
            param="rms_norm_eps",
        )
    found = pixtral(config, text, token=10, layer=-1, bias=False, final_norm=True)
    return replace(
        found,
        kind="mistral3",
        connector=((found.hidden_size, "none"), *found.connector),
        merge=hf.integer(config, "spatial_merge_size", default=2),
        by_channel=True,
    )


_TOP = {
    "norm": "multi_modal_projector.norm",
    "connector.0": "multi_modal_projector.patch_merger.merging_layer",
    "connector.1": "multi_modal_projector.linear_1",
    "connector.2": "multi_modal_projector.linear_2",
}
ARCHITECTURE: towers.VisionArchitecture = replace(
    PIXTRAL, parse=parse, names=replace(PIXTRAL.names, top={**PIXTRAL.names.top, **_TOP})
)
