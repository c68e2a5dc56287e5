"""Tests of the native kernels run them, and every suite has every architecture.

Whether an op has a native kernel depends on the model's shape. A tiny model with an odd head size
would silently test torch's attention instead.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
import torch

from quire.checkpoint.source import resolve
from quire.core.model_config import ModelConfig
from quire.models.decoder import Decoder
from quire.models.registry import ARCHITECTURES, HF_CLASSES, PAIRED, model_config, task
from quire.models.weights.dummy import RandomParameters
from quire.ops.interface import OP_NAMES, Ops
from quire.ops.providers import load_ops
from tests.arrays import numpy_dtype
from tests.e2e.tiny_model import CONFIG
from tests.fuzz import engines
from tests.golden import (
    test_gguf,
    test_pooling,
)
from tests.golden.harness import plan_of
from tests.golden.tiny_models import (
    KINDS,
    RECURRENT_MODELS,
    TINY_MODELS,
    of_each_kind,
    tiny_config,
)
from tests.truth import choices
from tests.unit.executor.configs import TINY

RECURRENT = {tiny.model_type for tiny in RECURRENT_MODELS.values()} - {"granitemoehybrid"}
"""`test_recurrent` has these; most other suites do not know states."""
DECODERS = {
    key for name, key in HF_CLASSES.items() if task({"architectures": [name]}) == "generate"
} - RECURRENT
WITHOUT_GGUF = {
        "opt", "granitemoehybrid", "gemma4_text", "glm", "cwm", "dots1", "exaone_moe", "gpt_neox",
        "granitemoeshared", "minimax_m2", "ministral", "phi", "solar_open", "vaultgemma", "youtu",
        "granite_swa", "granitemoe_swa", "hyperclovax",
        "afmoe", "flex_olmo", "hy_v3", "mellum",
    "apertus", "falcon", "gpt_bigcode", "gpt_neo", "gptj", "helium", "mistral4", "nanochat",
    "olmo",
}  # fmt: skip
"""llama.cpp, which defines GGUF's names, has no OPT; Quire does not read the others as GGUF."""


def test_every_decoder_has_a_tiny_model() -> None:
    assert {tiny.model_type for tiny in TINY_MODELS.values()} == DECODERS


def test_every_decoder_is_read_from_gguf() -> None:
    found = {TINY_MODELS[name].model_type for name in test_gguf.MODELS if name in TINY_MODELS}
    assert found == DECODERS - WITHOUT_GGUF


def test_kinds_have_what_any_model_has() -> None:
    """Each value of each field; of numbers, whether they are 0 or 1."""
    found = {
        name: facts(replace(model_config(tiny_config(name)), architecture=""))
        for name in TINY_MODELS
    }
    kinds = set().union(*(found[name] for name in KINDS))
    assert {name: new for name in TINY_MODELS if (new := found[name] - kinds)} == {}


def facts(value: object, name: str = "") -> set[tuple[str, object]]:
    """Return what a model has, as names and values."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = ((f".{field.name}", getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, dict):
        parts = ((f".{key}", part) for key, part in value.items())
    elif isinstance(value, tuple | list | frozenset) and value:
        parts = (("[]", part) for part in value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return {(name, min(abs(value), 2) // 1)}
    else:
        return {(name, str(value))}
    return set().union(*(facts(part, name + key) for key, part in parts))


def test_the_fuzzer_has_every_decoder() -> None:
    found = {shape["model_type"] for shape in engines.MODELS.values() if shape}
    assert found == DECODERS | RECURRENT


def test_every_architecture_is_held_against_transformers_reading() -> None:
    assert set(choices.ARCHITECTURES) == set(ARCHITECTURES.names()) - {*PAIRED}


def test_every_encoder_is_tested() -> None:
    """`test_image_embeddings` has those beside images."""
    assert set(ARCHITECTURES.names()) - DECODERS - RECURRENT - {*PAIRED} <= set(test_pooling.KINDS)


@pytest.mark.parametrize("name", of_each_kind())
def test_tiny_models_are_native(name: str) -> None:
    """In every dtype; float32 is tested with the golden tokens."""
    model = model_config(tiny_config(name))
    for dtype in (torch.bfloat16, torch.float16):
        record_plan(model, dtype)


@pytest.mark.parametrize("name", [name for name, shape in engines.MODELS.items() if shape])
def test_fuzzed_models_are_native(name: str, tmp_path: Path) -> None:
    folder = engines.write_model(tmp_path, name)
    record_plan(model_config(resolve(folder).config), torch.bfloat16)


@pytest.mark.parametrize(
    "model",
    [model_config(CONFIG), TINY, model_config(resolve("embedded").config)],
    ids=["e2e", "executor", "embedded"],
)
def test_other_models_of_tests_are_native(model: ModelConfig) -> None:
    record_plan(model, torch.float32)


def test_ops_outside_of_plans_are_native() -> None:
    """Sampling above all; those that a model calls are in its plan."""
    native = load_ops("cpu")
    same = {name for name in OP_NAMES if getattr(native, name) is getattr(Ops, name)}
    assert same == set()


def record_plan(model: ModelConfig, dtype: torch.dtype) -> None:
    """Record the plan of a model of this shape, which fails if an op has no native kernel."""
    ops = load_ops("cpu")
    max_len = min(512, model.max_position_embeddings)
    decoder = Decoder(model, RandomParameters(model, numpy_dtype(dtype), seed=0), max_len, ops)
    plan_of(decoder, ops, 16, dtype)
