"""What each rank of a tensor-parallel group has of a model; torch-free.

    attn.qkv, mlp.gate_up, mlp.up    rows: whole heads, and a run of the inner layer
    attn.out, mlp.down               columns: the same heads, the same run; the ranks' products are
                                     added up, the bias with rank 0's
    embed, lm_head                   rows: a run of the vocabulary; the ranks' rows and logits are
                                     brought together
    everything else                  all of it

A rank's share of a decoder is a decoder with fewer heads and a narrower inner layer, so that its
weights, its KV cache and its memory follow from its `ModelConfig` as any model's do. Where there
are fewer key-value heads than ranks, several ranks have the same one. Runs of the vocabulary, which
need not be divisible, differ by a row at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from quire.core.config import EngineConfig, ModelConfig, RankShare
from quire.core.errors import ConfigError
from quire.core.quantization import Form

_FLAG = "tensor_parallel_size"

Run = tuple[int, int]
"""First, and how many."""


def shared_config(config: EngineConfig, rank: int) -> EngineConfig:
    """The configuration of a rank: its share of the model, of the memory, and of the threads.

    Raises:
        ConfigError: the model cannot be shared among so many ranks; says why.
    """
    ranks = config.tensor_parallel_size
    model = shared_model(config.model, rank, ranks)
    cache = config.kv_cache_memory_bytes
    return replace(
        config,
        model=model,
        weight_forms=_shared_forms(config.weight_forms, model, ranks),
        memory_budget_bytes=config.memory_budget_bytes // ranks,
        kv_cache_memory_bytes=None if cache is None else cache // ranks,
        num_threads=max(1, config.num_threads // ranks),
        share=RankShare(rank, ranks, config.model, config.weight_forms),
    )


def shared_model(model: ModelConfig, rank: int, ranks: int) -> ModelConfig:
    """The shape of a rank's share; raises as `shared_config`."""
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    if heads % ranks:
        raise _error(ranks, f"the model's {heads} attention heads cannot be dealt out evenly.")
    if kv_heads % ranks and ranks % kv_heads:
        raise _error(ranks, f"the model's {kv_heads} key-value heads cannot be dealt out evenly.")
    if model.intermediate_size % ranks:
        width = model.intermediate_size
        raise _error(ranks, f"the model's inner layer of {width} cannot be dealt out evenly.")
    if model.vocab_size < ranks:
        raise _error(ranks, f"the model's vocabulary has {model.vocab_size} tokens.")
    return replace(
        model,
        num_attention_heads=heads // ranks,
        num_key_value_heads=max(1, kv_heads // ranks),
        intermediate_size=model.intermediate_size // ranks,
        vocab_run=_run(model.vocab_size, rank, ranks),
    )


def row_runs(name: str, share: RankShare) -> list[Run] | None:
    """The rows that a rank has of the parameter `name`; None where it has all of them."""
    model, rank, ranks = share.model, share.rank, share.ranks
    if name in ("embed.weight", "lm_head.weight"):
        return [_run(model.vocab_size, rank, ranks)]
    stem = _stem(name)
    if stem == "attn.qkv":
        dim, heads, kv_heads = model.head_dim, model.num_attention_heads, model.num_key_value_heads
        kv_first, kv_count = rank * kv_heads // ranks, max(1, kv_heads // ranks)
        q = (rank * heads // ranks * dim, heads // ranks * dim)
        k_row, v_row = heads * dim, (heads + kv_heads) * dim
        return [
            q,
            (k_row + kv_first * dim, kv_count * dim),
            (v_row + kv_first * dim, kv_count * dim),
        ]
    width = model.intermediate_size
    run = _run(width, rank, ranks)
    if stem == "mlp.gate_up":
        return [run, (width + run[0], run[1])]
    return [run] if stem == "mlp.up" else None


def column_run(name: str, share: RankShare) -> Run | None:
    """The columns that a rank has of the weight `name`; None where it has all of them."""
    if not name.endswith(".weight") or not is_summed(name):
        return None
    model, rank, ranks = share.model, share.rank, share.ranks
    heads, width = model.num_attention_heads * model.head_dim, model.intermediate_size
    return _run(heads if _stem(name) == "attn.out" else width, rank, ranks)


def is_summed(name: str) -> bool:
    """Whether the ranks' products with this layer are added up."""
    return _stem(name) in ("attn.out", "mlp.down")


def _run(count: int, rank: int, ranks: int) -> Run:
    """A rank's part of `count` that are dealt out as evenly as can be."""
    first = rank * count // ranks
    return first, (rank + 1) * count // ranks - first


def _stem(name: str) -> str:
    """ "layers.3.attn.qkv.weight" → "attn.qkv"; "" outside of the layers."""
    parts = name.split(".")
    return ".".join(parts[2:-1]) if parts[0] == "layers" else ""


def _shared_forms(
    forms: Mapping[str, Sequence[Form | None]], model: ModelConfig, ranks: int
) -> dict[str, list[Form | None]]:
    heads, width = model.num_attention_heads * model.head_dim, model.intermediate_size
    return {
        name: [
            _shared_form(name, form, heads if _stem(name) == "attn.out" else width, ranks)
            if form is not None and is_summed(name)
            else form
            for form in parts
        ]
        for name, parts in forms.items()
    }


def _shared_form(name: str, form: Form, columns: int, ranks: int) -> Form:
    """The form of `columns`, a rank's, of a weight."""
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
