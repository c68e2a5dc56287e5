"""Which of a model's layers adapters may change, and where those layers find them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from quire.core.config import EngineConfig, RankShare
from quire.core.dtypes import dtype_of
from quire.core.model_config import ModelConfig
from quire.models.layout import parameters
from quire.models.parameters import Parameter
from quire.models.registry import architecture
from quire.models.weights.row_order import row_factors, row_order
from quire.models.weights.shares import column_run, row_runs
from quire.ops.lora import MAX_PARTS

if TYPE_CHECKING:
    from quire.lora.peft import Delta, LoRATarget
    from quire.ops.interface import Ops
    from quire.ops.lora import LoraTable


_TEXT_MODELS = ("model.language_model.", "language_model.model.", "model.text_model.")
"""What precedes a layer's name in models that read images."""


def lora_targets(model: ModelConfig) -> dict[str, LoRATarget]:
    """Return the linear layers of the model's own layers, by their names in Transformers.

    The output projection, the embedding, routers and experts are not among them; nor are q, k and v
    that have a gate, whose packed rows lie apart, and the four layers in front of Qwen3.5's delta
    rule: a weight has adapters of three layers at most. Layers of a model that reads images also
    have the names that it gives those of its text model.
    """
    from quire.lora.peft import LoRATarget  # not without adapters, for a faster start

    names = architecture(model.architecture).names
    found = {
        source.removesuffix(".weight"): LoRATarget(p.stem, part, rows, p.shape[1])
        for p in _linears(model)
        for part, (source, rows) in enumerate(names.stored(p))
    }
    if model.vision is None:
        return found
    inner = {name.removeprefix("model."): target for name, target in found.items()}
    return found | {
        prefix + name: target for prefix in _TEXT_MODELS for name, target in inner.items()
    }


def ordered_delta(model: ModelConfig, delta: Delta) -> Delta:
    """Return an adapter's change of a layer with its rows as the packed weight has them."""
    (parameter,) = (p for p in _linears(model) if p.stem == delta.target.stem)
    order, factors = row_order(parameter), row_factors(parameter)
    begin = sum(_parts(model, parameter)[: delta.target.part])
    end, b = begin + delta.b.shape[1], delta.b
    if order is not None:
        b = b[:, order[begin:end] - begin]
    return replace(delta, b=b if factors is None else b * factors[begin:end])


def own_delta(config: EngineConfig, delta: Delta) -> Delta:
    """Return what this process adds to its weight: in the weight's order, a rank's part of it."""
    if config.share is not None:
        delta = shared_delta(config.share, delta)
    return ordered_delta(config.model, delta)


def shared_delta(share: RankShare, delta: Delta) -> Delta:
    """Return a rank's part of an adapter's change: B's rows or A's columns, cut as the layer's
    weight is.
    """
    (parameter,) = (p for p in _linears(share.model) if p.stem == delta.target.stem)
    if (run := column_run(parameter, share)) is not None:
        return replace(delta, a=delta.a[:, run[0] : run[0] + run[1]])
    runs = row_runs(parameter, share)
    if runs is None:  # every rank has all of it
        return delta
    parts = _parts(share.model, parameter)
    begin = sum(parts[: delta.target.part])
    end = begin + parts[delta.target.part]
    pieces = [
        delta.b[:, max(first, begin) - begin : min(first + count, end) - begin]
        for first, count in runs
        if first < end and begin < first + count
    ]
    return replace(delta, b=np.concatenate(pieces, axis=1))


def lora_tables(config: EngineConfig, ops: Ops) -> dict[str, LoraTable]:
    """Return stem of a linear layer ("layers.0.attn.qkv") → its adapters; {} without adapters."""
    limits, model = config.lora, config.model
    if limits is None:
        return {}
    dtype = dtype_of(config.dtype)
    return {
        p.stem: ops.lora_table(p.shape[1], _parts(model, p), limits.max_cpu_loras, dtype)
        for p in _linears(model)
    }


def _linears(model: ModelConfig) -> list[Parameter]:
    found = [p for p in parameters(model) if p.in_layer and not p.experts]
    gated = [p for p in found if model.output_gate and p.stem.endswith(".attn.qkv")]
    return [p for p in found if p not in gated and len(_parts(model, p)) <= MAX_PARTS]


def _parts(model: ModelConfig, parameter: Parameter) -> tuple[int, ...]:
    """Return the rows of each layer that the checkpoint has for the parameter."""
    return tuple(rows for _, rows in architecture(model.architecture).names.stored(parameter))
