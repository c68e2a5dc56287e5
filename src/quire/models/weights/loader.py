"""A model with its weights: read from a checkpoint, or random."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from quire.checkpoint.source import resolve
from quire.checkpoint.weights import NamedWeights
from quire.core.config import EngineConfig
from quire.core.dtypes import dtype_of
from quire.models.builder import Place
from quire.models.decoder import Decoder
from quire.models.parameters import ParameterSource, Progress
from quire.models.vision.registry import vision_architecture
from quire.models.weights.checkpoint import open_weights, text_weights
from quire.models.weights.dummy import RandomParameters
from quire.models.weights.pack_cache import PackCache
from quire.models.weights.sharded import SharedParameters
from quire.models.weights.stored import StoredParameters
from quire.ops.interface import Ops
from quire.ops.lora import LoraTable
from quire.quant.names import rounding
from quire.quant.registry import GGUF, method

if TYPE_CHECKING:
    from quire.models.vision.tower import Tower

logger = logging.getLogger(__name__)


def load_model(
    config: EngineConfig,
    ops: Ops,
    cache: PackCache | None = None,
    progress: Progress | None = None,
    place: Place | None = None,
    adapters: Mapping[str, LoraTable] | None = None,
) -> Decoder:
    """Load the model of `config` in `config.dtype`, for positions below `max_model_len`.

    Its linear weights are packed for `ops`, which alone can compute it, or taken from `cache`;
    `place` may move them elsewhere (see `models.weights.offload`). `adapters` are those of
    `models.adapters.lora_tables`.

    Raises:
        CheckpointError: the files are damaged or do not fit the architecture; names the
            tensor, what was expected and what is there.
        ModelNotFoundError: there are no weights.
        ConfigError: what `place` moves cannot be kept there.
    """
    build = partial(
        Decoder,
        config.model,
        parameter_source(config, progress),
        config.scheduler.max_model_len,
        ops,
        place=place,
        adapters=adapters,
    )
    if cache is not None and (stored := cache.linears()):
        try:
            return build(stored)
        except ValueError as error:
            logger.warning("The packed weights are packed again: %s", error)
            cache.drop()
    return build()


def parameter_source(config: EngineConfig, progress: Progress | None = None) -> ParameterSource:
    """Return the source of the parameters of `config`'s model; raises as `load_model`."""
    share = config.share
    if share is None:
        return _whole_source(config, progress)
    whole = replace(config, model=share.model, weight_forms=share.weight_forms)
    source = _whole_source(whole, progress)
    return source if share.ranks == 1 else SharedParameters(source, share)


def load_tower(config: EngineConfig, ops: Ops) -> Tower | None:
    """Load the tower that reads images; None if no images are accepted. Raises as `load_model`."""
    vision = config.model.vision
    if vision is None or config.images is None:
        return None
    from quire.models.vision.layout import tower_parameters
    from quire.models.vision.tower import Tower

    wanted, dtype = tower_parameters(vision), dtype_of(config.dtype)
    source: ParameterSource
    if config.load_format == "dummy":
        source = RandomParameters(config.model, dtype, config.seed, wanted=wanted)
    else:
        found = vision_architecture(vision.kind)
        files = resolve(config.model_path, load_format=config.load_format)
        weights = NamedWeights(open_weights(files), found.tower_name)
        source = StoredParameters(weights, config.model, dtype, tower=(wanted, found.names))
    return Tower(vision, config.images, source, ops.whole(None))


def _whole_source(config: EngineConfig, progress: Progress | None) -> ParameterSource:
    dtype = dtype_of(config.dtype)
    if config.load_format == "dummy":
        return RandomParameters(
            config.model, dtype, config.seed, progress, forms=config.weight_forms
        )
    stored, name = config.quantization_config, config.quantization
    source = resolve(config.model_path, load_format=config.load_format)
    return StoredParameters(
        text_weights(source, config.model),
        config.model,
        dtype,
        progress,
        method=method(stored) if stored and stored["quant_method"] != GGUF else None,
        rounding=rounding(name) if name and config.weight_forms and stored is None else None,
    )
