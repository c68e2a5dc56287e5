"""What each worker of an engine has of a model; torch-free.

A pipeline stage has a run of the layers, so its share is a decoder of fewer layers. Each rank of it
has a part of every one of these. `models.layout` declares how each weight is cut:

    rows       of q, k and v whole heads, of gate and up a run; of tables and lm_head a run of the
               vocabulary, whose rows and logits the ranks bring together
    columns    the same heads, the same run; the ranks' products are added up, the bias with rank
               0's
    ""         every rank has all of it

Norms before the last product of a sub-layer (BitNet) read all of its columns. So the ranks gather
these, and cut the product by rows, which they gather too: the bits are those of one process.

Of recurrent layers a rank has whole heads, groups or channels. Where these cannot be dealt out
evenly, every rank computes the whole layer (`divided`).

Experts are cut alike: a rank has a part of the inner width of each, and the whole router, so that
all ranks choose the same experts.

A rank's share of a decoder is a decoder with fewer heads and a narrower inner layer, so that its
weights, its KV cache and its memory follow from its `ModelConfig` as any model's do. Where there
are fewer key-value heads than ranks, several ranks have the same one. Runs of the vocabulary, which
need not be divisible, differ by a row at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from quire.core.config import EngineConfig, RankShare
from quire.core.errors import ConfigError
from quire.core.layers import MoEConfig
from quire.core.model_config import ModelConfig
from quire.core.quantization import Form
from quire.models.layout import parameters
from quire.models.memory import draft_weight_bytes, kv_bytes_of, loaded_bytes
from quire.models.parameters import Parameter, Run, dealt
from quire.parallel.grid import Grid

_FLAG = "tensor_parallel_size"


def shared_config(config: EngineConfig, worker: int) -> EngineConfig:
    """Return a worker's configuration: its share of the model, the memory, and the threads.

    Raises:
        ConfigError: the model cannot be shared among so many ranks; says why.
    """
    grid = worker_grid(config)
    rank, ranks, stage = grid.rank(worker), grid.ranks, grid.stage(worker)
    part = stage_config(config, stage)
    model = part.model if ranks == 1 else shared_model(part.model, rank, ranks)
    whole = config.model if ranks == 1 else divided_model(config.model, ranks)
    cache = part.kv_cache_memory_bytes
    return replace(
        part,
        model=model,
        weight_forms=_shared_forms(part.weight_forms, model, ranks),
        memory_budget_bytes=part.memory_budget_bytes // ranks,
        kv_cache_memory_bytes=None if cache is None else cache // ranks,
        num_threads=max(1, config.num_threads // (grid.size // grid.nodes)),
        share=RankShare(rank, ranks, whole, config.weight_forms, stage, grid.stages),
    )


def worker_grid(config: EngineConfig) -> Grid:
    nodes = config.cluster.nnodes
    return Grid(config.tensor_parallel_size, config.pipeline_parallel_size, nodes)


def worker_configs(config: EngineConfig) -> list[EngineConfig]:
    """Return the configuration of every worker; of the only one, `config` itself."""
    size = worker_grid(config).size
    return [shared_config(config, worker) for worker in range(size)] if size > 1 else [config]


def stage_config(config: EngineConfig, stage: int) -> EngineConfig:
    """Return the configuration of a stage: its layers, and memory for as many KV blocks as any on
    its machine."""
    if not config.stage_layers:
        return config
    parts = {i: _with_layers(config, i) for i in worker_grid(config).stages_beside(stage)}
    own = parts[stage]
    kv = {i: kv_bytes_of(part) or 1 for i, part in parts.items()}
    weights = {i: loaded_bytes(part) + draft_weight_bytes(part) for i, part in parts.items()}
    left, cache = config.memory_budget_bytes - sum(weights.values()), config.kv_cache_memory_bytes
    share = kv[stage], sum(kv.values())
    return replace(
        own,
        memory_budget_bytes=max(0, weights[stage] + left * share[0] // share[1]),
        kv_cache_memory_bytes=None if cache is None else cache * share[0] // share[1],
    )


def _with_layers(config: EngineConfig, stage: int) -> EngineConfig:
    counts = config.stage_layers
    run = sum(counts[:stage]), counts[stage]
    config = replace(config, model=replace(config.model, layer_run=run))
    return replace(
        config,
        images=config.images if stage == 0 else None,  # it has the tower
        draft=config.draft if stage == len(counts) - 1 else None,  # it drafts
    )


def shared_model(model: ModelConfig, rank: int, ranks: int) -> ModelConfig:
    """Return the shape of a rank's share; raises as `shared_config`."""
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    if not model.layers_with("attention"):
        heads = kv_heads = ranks
    if heads % ranks:
        raise _error(ranks, f"the model's {heads} attention heads cannot be dealt out evenly.")
    if kv_heads % ranks and ranks % kv_heads:
        raise _error(ranks, f"the model's {kv_heads} key-value heads cannot be dealt out evenly.")
    if model.qkv_by_head and kv_heads % ranks:
        raise _error(ranks, f"{kv_heads} runs of q, k and v cannot be dealt out evenly.")
    full = model.full_heads
    if full is not None:
        if full[0] % ranks and ranks % full[0]:
            raise _error(
                ranks, f"the model's {full[0]} key-value heads cannot be dealt out evenly."
            )
        full = max(1, full[0] // ranks), full[1]
    width, moe = model.intermediate_size, model.moe
    if width % ranks and not (moe and moe.layers is None):  # a model of experts alone has no MLP
        raise _error(ranks, f"the model's inner layer of {width} cannot be dealt out evenly.")
    if moe is not None:
        moe = _shared_moe(moe, ranks)
    if model.vocab_size < ranks:
        raise _error(ranks, f"the model's vocabulary has {model.vocab_size} tokens.")
    recurrent = model.recurrent and (model.recurrent.share(ranks) or model.recurrent)
    return replace(
        model,
        recurrent=recurrent,
        num_attention_heads=heads // ranks,
        num_key_value_heads=max(1, kv_heads // ranks),
        full_heads=full,
        intermediate_size=max(1, width // ranks),
        borrower_mlp=model.borrower_mlp and model.borrower_mlp // ranks,
        moe=moe,
        vocab_run=dealt(model.vocab_size, rank, ranks),
        norm_rank=(rank, ranks) if model.sub_norms else None,
    )


def divided_model(model: ModelConfig, ranks: int) -> ModelConfig:
    """Return the whole model, with recurrent layers that are cut if they can be."""
    recurrent = model.recurrent
    if recurrent is None or recurrent.share(ranks) is None:
        return model
    return replace(model, recurrent=msgspec.structs.replace(recurrent, divided=True))


def _shared_moe(moe: MoEConfig, ranks: int) -> MoEConfig:
    """Return the experts' shape on one rank, which has a part of every expert's inner width."""
    for width in (moe.intermediate_size, moe.shared_size):
        if width % ranks:
            raise _error(ranks, f"the experts' inner layer of {width} cannot be dealt out evenly.")
    return replace(
        moe, intermediate_size=moe.intermediate_size // ranks, shared_size=moe.shared_size // ranks
    )


def row_runs(parameter: Parameter, share: RankShare) -> list[Run] | None:
    """Return a rank's rows of a parameter; None if it has all of them."""
    if parameter.cut != "rows":
        return None
    runs, begin = [], 0
    for rows in parameter.pieces or parameter.parts:
        first, count = dealt(rows // parameter.unit, share.rank, share.ranks)
        runs.append((begin + first * parameter.unit, count * parameter.unit))
        begin += rows
    return runs


def column_run(parameter: Parameter, share: RankShare) -> Run | None:
    """Return a rank's columns of a weight; None if it has all of them."""
    if parameter.cut != "columns" or parameter.kind == "bias":
        return None
    return dealt(parameter.shape[1], share.rank, share.ranks)


def _shared_forms(
    forms: Mapping[str, Sequence[Form | None]], model: ModelConfig, ranks: int
) -> dict[str, list[Form | None]]:
    columns = {p.name: p.shape[1] for p in parameters(model) if p.in_layer and p.cut == "columns"}
    return {
        name: [
            form if form is None else _shared_form(name, form, columns[name], ranks)
            for form in parts
        ]
        if name in columns
        else list(parts)
        for name, parts in forms.items()
    }


def _shared_form(name: str, form: Form, columns: int, ranks: int) -> Form:
    """Return the form of a rank's `columns` of a weight."""
    if form.permuted:
        raise _error(
            ranks,
            f"the columns of {name} are quantized in groups out of order (GPTQ's act-order), of "
            "which no rank can have whole ones.",
        )
    if form.group >= columns * ranks:  # one scale a row
        return replace(form, group=columns)
    if columns % form.group:
        raise _error(
            ranks,
            f"{name} is quantized in groups of {form.group} columns, and a rank's {columns} are no "
            "whole number of them.",
        )
    return form


def _error(ranks: int, why: str) -> ConfigError:
    return ConfigError(f"{_FLAG} is {ranks}; {why}", param=_FLAG)
