"""Open a checkpoint's tensors, in any file format."""

from __future__ import annotations

from quire.checkpoint.safetensors import SafetensorsFile
from quire.checkpoint.source import ModelSource
from quire.checkpoint.weight_files import weight_files
from quire.checkpoint.weights import (
    GGUFWeights,
    LabelWeights,
    NamedWeights,
    SafetensorsWeights,
    Weights,
)
from quire.core.errors import ModelNotFoundError
from quire.core.model_config import ModelConfig
from quire.models.registry import text_alone, text_name
from quire.models.vision.registry import vision_architecture


def open_weights(source: ModelSource) -> Weights:
    """Open the tensors of `source` and check every header; this reads no data yet.

    Raises:
        ModelNotFoundError: there is no checkpoint, or `source` is a preset.
        CheckpointError: a file is damaged, a shard is missing, a tensor is stored twice, or the
            only checkpoint is pickled.
        UnsupportedModelError: a tensor's type cannot be read.
    """
    if source.path is None:
        raise ModelNotFoundError(
            f"{source.name} is a preset and has no weights.", fix="Use --load-format dummy."
        )
    if source.path.is_file():  # GGUF's modules are as much code as all other formats'
        from quire.checkpoint.gguf import GGUFFile
        from quire.checkpoint.gguf_config import hf_config
        from quire.models.weights.gguf_names import translate

        file = GGUFFile(source.path)
        return GGUFWeights(file, translate(file, hf_config(file)))
    weights = SafetensorsWeights([SafetensorsFile(path) for path in weight_files(source.path)])
    return NamedWeights(weights, text_name) if text_alone(source.config) else weights


def text_weights(source: ModelSource, model: ModelConfig) -> Weights:
    """Open the tensors of the text model alone, under its own names; raises as `open_weights`."""
    weights = open_weights(source)
    if model.vision is not None:
        weights = NamedWeights(weights, vision_architecture(model.vision.kind).text_name)
    if model.label_tokens:
        less = model.num_labels < len(model.label_tokens)
        weights = LabelWeights(weights, "score.weight", model.label_tokens, less=less)
    return weights
