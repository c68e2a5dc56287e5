"""Mistral Small 3 and Ministral 3: Pixtral, of whose patches squares make a row."""

from __future__ import annotations

from dataclasses import replace

from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers
from quire.models.vision.families.pixtral import ARCHITECTURE as PIXTRAL
from quire.models.vision.families.pixtral import pixtral


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    hf.only(config, "multimodal_projector_bias", False, "the projector of Mistral Small 3")
    found = pixtral(config, text, token=10, layer=-1, bias=False)
    merging = Product(found.hidden_size, bias=False, norm="rms", eps=text.norm_eps)
    return replace(
        found,
        kind="mistral3",
        connector=(merging, *found.connector),
        merge=hf.integer(config, "spatial_merge_size", default=2),
        by_channel=True,
    )


TOP = {
    "connector.0.norm": "multi_modal_projector.norm",
    "connector.0": "multi_modal_projector.patch_merger.merging_layer",
    "connector.1": "multi_modal_projector.linear_1",
    "connector.2": "multi_modal_projector.linear_2",
}
ARCHITECTURE: towers.VisionArchitecture = replace(
    PIXTRAL, parse=parse, names=replace(PIXTRAL.names, top={**PIXTRAL.names.top, **TOP})
)
