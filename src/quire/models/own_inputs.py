"""Makes the embeddings that each layer has of its own out of their declaration."""

from __future__ import annotations

import numpy as np

from quire.core.dtypes import FLOAT32, converted
from quire.core.model_config import ModelConfig
from quire.layers.embedding import Embedding
from quire.layers.own_input import OwnInputs
from quire.models.builder import Builder
from quire.models.parameters import ParameterSource
from quire.models.specs import OwnInputsSpec
from quire.ops.interface import Ops


def own_inputs(
    spec: OwnInputsSpec, source: ParameterSource, ops: Ops, build: Builder, model: ModelConfig
) -> OwnInputs:
    """Return what makes all layers' own embeddings; the scale of their table is rounded."""
    run, width = model.vocab_run, model.own_input
    table = ops.array(source.tensor(spec.table.name))
    build.modules[id(table)] = spec.table.stem
    scale = float(converted(np.array([width**0.5], FLOAT32), source.dtype)[0])
    embedding = Embedding(table, None, scale, None if run is None else (run[0], model.vocab_size))
    project, norm = build.linear(spec.linear), build.norm(spec.norm)
    return OwnInputs(embedding, project, norm, model.hidden_size**-0.5, width)
