"""Configurations travel to the core's process as msgpack, and into saved evidence as JSON."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from quire.core.layers import DeltaConfig, Mamba2Config, RecurrentConfig, ShortConvConfig
from quire.core.model_config import ModelConfig
from tests.unit.explain.made import ARGS, config

KINDS: list[RecurrentConfig | None] = [
    None,
    ShortConvConfig(width=3, channels=16),
    DeltaConfig(key_heads=2, value_heads=4, key_dim=8, value_dim=8, width=4),
    Mamba2Config(heads=4, head_dim=8, groups=2, state_dim=16, width=4),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_layer_comes_back(kind: RecurrentConfig | None) -> None:
    model = replace(config(ARGS).model, recurrent=kind)
    for codec in (msgspec.msgpack, msgspec.json):
        assert codec.decode(codec.encode(model), type=ModelConfig) == model


def test_a_whole_configuration_comes_back() -> None:
    whole = config(ARGS)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(whole), type=type(whole)) == whole
