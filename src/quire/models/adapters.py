"""Which of a model's layers adapters may change, and where those layers find them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from quire.core.config import EngineConfig, RankShare
from quire.core.dtypes import dtype_of
from quire.core.model_config import ModelConfig
from quire.models.layout import parameters
from quire.models.parameters import Parameter
from quire.models.registry import architecture
from quire.models.weights.row_order import packed_runs, row_factors, row_order
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

    The output projection, the embedding, routers and experts are not among them.
    """
    from quire.lora.peft import LoRATarget  # not without adapters, for a faster start

    names = architecture(model.architecture).names
    return {
        source.removesuffix(".weight"): LoRATarget(p.stem, part, rows, p.shape[1])
        for p in _linears(model).values()
        for part, (source, rows) in enumerate(names.stored(p))
    }


def named_targets(model: ModelConfig) -> dict[str, LoRATarget]:
    """Return the same, also by the names that models which read images give the layers of their
    text model: an adapter may be of such a model, of which only the text is served."""
    found = lora_targets(model)
    inner = {name.removeprefix("model."): target for name, target in found.items()}
    return found | {
        prefix + name: target for prefix in _TEXT_MODELS for name, target in inner.items()
    }


def ordered_deltas(model: ModelConfig, delta: Delta) -> list[Delta]:
    """Return an adapter's change of a layer as changes of the packed weight's parts.

    The part of each result is that of the weight's table.
    """
    parameter = _linears(model)[delta.target.stem]
    order, factors = row_order(parameter), row_factors(parameter)
    begin = sum(_parts(model, parameter)[: delta.target.part])
    found = []
    for part, (layer, first, end) in enumerate(_runs(model, parameter)):
        if layer == delta.target.part:
            same = slice(first - begin, end - begin)
            b = delta.b[:, same if order is None else order[first:end] - begin]
            b = b if factors is None else b * factors[first:end]
            target = replace(delta.target, part=part, rows=end - first)
            found.append(replace(delta, target=target, b=b))
    return found


def own_deltas(config: EngineConfig, delta: Delta) -> list[Delta]:
    """Return what this process adds to its weight: in the weight's order, a rank's part of it."""
    if config.share is not None:
        delta = shared_delta(config.share, delta)
    return ordered_deltas(config.model, delta)


def shared_delta(share: RankShare, delta: Delta) -> Delta:
    """Return a rank's part of an adapter's change: B's rows or A's columns, cut as the layer's
    weight is.
    """
    parameter = _linears(share.model)[delta.target.stem]
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
    count, dtype = limits.max_cpu_loras, dtype_of(config.dtype)
    return {
        p.stem: ops.lora_table(p.shape[1], [end - first for _, first, end in runs], count, dtype)
        for p in _linears(model).values()
        for runs in (_runs(model, p),)
    }


@lru_cache(maxsize=4)
def _linears(model: ModelConfig) -> dict[str, Parameter]:
    """Return stem → weight that may have adapters; kept, because each layer of an adapter asks."""
    found = [p for p in parameters(model) if p.in_layer and not p.experts]
    return {p.stem: p for p in found if len(_runs(model, p)) <= MAX_PARTS}


def _runs(model: ModelConfig, parameter: Parameter) -> list[tuple[int, int, int]]:
    return packed_runs(parameter, _parts(model, parameter))


def _parts(model: ModelConfig, parameter: Parameter) -> tuple[int, ...]:
    """Return the rows of each layer that the checkpoint has for the parameter."""
    return tuple(rows for _, rows in architecture(model.architecture).names.stored(parameter))
