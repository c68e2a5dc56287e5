"""Pipeline stages, one after another, compute the bits of the whole model."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.checkpoint.source import resolve
from quire.core.config import RankShare
from quire.core.model_config import OWN_INPUTS, ModelConfig
from quire.models.decoder import Decoder
from quire.models.layout import parameters
from quire.models.parameters import ParameterSource
from quire.models.registry import model_config
from quire.models.weights.checkpoint import open_weights
from quire.models.weights.sharded import SharedParameters
from quire.models.weights.shares import divided_model, shared_model
from quire.models.weights.stored import StoredParameters
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.providers import load_ops
from quire.ops.rank_group import RankGroup
from tests.arrays import numpy_dtype
from tests.golden.harness import PagedModel
from tests.golden.ranks import run_ranks
from tests.golden.test_tensor_parallel import prompts
from tests.golden.tiny_models import (
    FEW_KINDS,
    MAX_POSITIONS,
    RECURRENT_MODELS,
    TINY_MODELS,
    make_tiny,
    of_each_kind,
)

QUICK = frozenset({"llama", "gemma2", "olmo2", "gpt2", "qwen2-moe", "deepseek-v3"})
"""Plain; tied, with softcaps; norms behind the sub-layers; biases; experts; latent attention."""
RECURRENT = ("lfm2", "qwen3-next", "mamba2")
LAYERS = 4
"""Of the models here, or more."""
PER_LAYER = ("layer_types", "no_rope_layers", "layers_block_type", "attention_types")
"""Lists of config.json with an entry for each layer."""


class Recorded:
    """A source that notes what it is asked for."""

    def __init__(self, source: ParameterSource) -> None:
        self._source = source
        self.dtype = source.dtype
        self.asked: set[str] = set()

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def parts(self, name: str) -> Any:
        self.asked.add(name)
        return self._source.parts(name)

    def tensor(self, name: str) -> Any:
        self.asked.add(name)
        return self._source.tensor(name)


class Pipeline:
    """Stages that stand for one decoder of `config`."""

    def __init__(self, config: ModelConfig, stages: list[Decoder]) -> None:
        self.config = config
        self.dtype = stages[0].dtype
        self._stages = stages

    def modules(self, caches: list[Any]) -> dict[int, str]:
        return {}

    def forward(
        self, ops: Ops, rows: Array, positions: Array, caches: list[Any], meta: Any, *wanted: Any,
        **named: Any,
    ) -> Array:  # fmt: skip
        found: dict[int, Array] = {}
        left = iter(caches)
        for stage in self._stages:
            kinds = map(stage.config.kinds, stage.config.layers)
            own = [next(left) for kind in chain(*kinds) if kind in ("attention", "recurrent")]
            rows = stage.forward(
                ops, rows, positions, own, meta, *wanted,
                own=found.get(OWN_INPUTS), tap=found.__setitem__,
            )  # fmt: skip
        return rows

    def compute_logits(self, ops: Ops, hidden: Array) -> Array:
        return self._stages[-1].compute_logits(ops, hidden)


def build(folder: Path, counts: tuple[int, ...] = (), group: RankGroup | None = None) -> PagedModel:
    """The model, whole or with so many layers in each stage; or a rank's share of it."""
    files = resolve(str(folder))
    model = model_config(files.config)
    ops = load_ops("cpu", group=group)
    stored: ParameterSource = StoredParameters(
        open_weights(files), model, numpy_dtype(torch.float32)
    )
    if group is not None:
        whole = divided_model(model, group.ranks)
        stored = SharedParameters(stored, RankShare(group.rank, group.ranks, whole, {}))
    share = shared_model(model, group.rank, group.ranks) if group else model
    decoder: Any
    if counts:
        stages = []
        for number, count in enumerate(counts):
            part = replace(share, layer_run=(sum(counts[:number]), count))
            source = Recorded(stored)
            stages.append(Decoder(part, source, MAX_POSITIONS, ops))
            assert {name for name in source.asked if not name.endswith("_scale")} <= {
                parameter.name for parameter in parameters(part)
            }
        decoder = Pipeline(share, stages)
    else:
        decoder = Decoder(share, stored, MAX_POSITIONS, ops)
    return PagedModel(decoder, ops, block_size=16, num_blocks=200, seed=1)


def logits(model: PagedModel) -> list[torch.Tensor]:
    return [torch.cat(found.logits) for found in model.generate(prompts(), 3)]


def deep(name: str, folder: Path) -> Path:
    """Write a tiny model, with its layers repeated until there are `LAYERS`."""
    config = (TINY_MODELS | RECURRENT_MODELS)[name].config
    lists = {key: config[key] for key in PER_LAYER if key in config}
    count = max(config["num_hidden_layers"], *map(len, lists.values()), 1)
    times = -(-LAYERS // (count - config.get("num_kv_shared_layers", 0)))
    if times > 1:
        config = {key: times * entries for key, entries in lists.items()}
        make_tiny(name, 0, folder, num_hidden_layers=times * count, **config)
    else:
        make_tiny(name, 0, folder)
    return folder


def check(name: str, folder: Path, ranks: int = 1) -> None:
    """Compare two stages, and one for each layer, with the whole model. Layers that share keys and
    values are on the last stage together."""
    deep(name, folder)
    model = model_config(resolve(str(folder)).config)
    count, cut = model.num_hidden_layers, model.last_cut
    assert cut >= LAYERS - 1
    half = count // 2
    divisions = ((), (half, count - half), (*[1] * cut, count - cut))

    def found(group: RankGroup | None) -> list[list[torch.Tensor]]:
        return [logits(build(folder, counts, group)) for counts in divisions]

    for whole, *others in [found(None)] if ranks == 1 else run_ranks(ranks, found):
        for stages in others:
            assert all(torch.equal(a, b) for a, b in zip(whole, stages, strict=True))


@pytest.mark.parametrize(
    "name", of_each_kind(TINY_MODELS | RECURRENT_MODELS, *RECURRENT, kinds=FEW_KINDS)
)
def test_stages_have_the_bits_of_the_whole_model(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.parametrize("name", of_each_kind(TINY_MODELS | RECURRENT_MODELS, kinds=QUICK))
def test_stages_of_two_ranks(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, ranks=2)
