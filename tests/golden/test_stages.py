"""Pipeline stages, one after another, compute the bits of the whole model."""

from __future__ import annotations

from dataclasses import replace
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
from quire.models.weights.shares import shared_model
from quire.models.weights.stored import StoredParameters
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.providers import load_ops
from quire.ops.rank_group import RankGroup
from tests.arrays import numpy_dtype
from tests.golden.harness import PagedModel
from tests.golden.ranks import run_ranks
from tests.golden.test_tensor_parallel import prompts
from tests.golden.tiny_models import FEW_KINDS, MAX_POSITIONS, TINY_MODELS, of_each_kind

QUICK = ("llama", "gemma2", "olmo2", "gpt2", "qwen2-moe", "deepseek-v3")
"""Plain; tied, with softcaps; norms behind the sub-layers; biases; experts; latent attention."""


DEEP = ("smollm3", "llama4", "gemma3")
"""With three layers or more."""


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
        for stage in self._stages:
            own = [caches[layer] for layer in stage.config.layers]
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
        stored = SharedParameters(stored, RankShare(group.rank, group.ranks, model, {}))
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


def check(folder: Path, counts: tuple[int, ...], ranks: int = 1) -> None:
    if ranks == 1:
        pairs = [(logits(build(folder)), logits(build(folder, counts)))]
    else:
        pairs = run_ranks(
            ranks,
            lambda group: (logits(build(folder, (), group)), logits(build(folder, counts, group))),
        )
    for whole, stages in pairs:
        assert all(torch.equal(a, b) for a, b in zip(whole, stages, strict=True))


def layers(folder: Path) -> int:
    return model_config(resolve(str(folder)).config).num_hidden_layers


@pytest.mark.parametrize("name", of_each_kind(TINY_MODELS, *DEEP, kinds=FEW_KINDS))
def test_a_stage_for_each_layer(name: str, tiny_folder: Path) -> None:
    """Layers that share keys and values are on the last stage together."""
    cut = model_config(resolve(str(tiny_folder)).config).last_cut
    check(tiny_folder, (*[1] * cut, layers(tiny_folder) - cut))


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in TINY_MODELS],
)
def test_two_stages_of_two_ranks(name: str, tiny_folder: Path) -> None:
    first = model_config(resolve(str(tiny_folder)).config).last_cut
    check(tiny_folder, (first, layers(tiny_folder) - first), ranks=2)
