"""Keys of config.json that Transformers computes with and Quire leaves unread: none may be.

Each key of a config class gets other values. If Quire reads the same model from them, Transformers
must compute the same, too.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from transformers import AutoConfig

from quire.core.errors import QuireError
from quire.core.model_config import ModelConfig
from quire.models.registry import model_config
from tests.truth.choices import ARCHITECTURES, draw
from tests.truth.compare import AUTO
from tests.truth.keys import Config

ELSEWHERE = {
    "is_causal",  # read by `resolve.pooling`
    "head_dim",  # of latent attention: Transformers fails or is wrong unless it is the usual one
}
_NO_ANSWER = {
    "architectures", "model_type", "dtype", "torch_dtype", "use_cache", "return_dict",
    "output_attentions", "output_hidden_states", "chunk_size_feed_forward",
}  # fmt: skip
_PROMPT = torch.arange(5, 35)[None]
LEAST = 1e-4
"""Smaller differences are roundings."""


def unread(
    kind: str, seed: int = 0, read: Callable[[Config], ModelConfig] = model_config
) -> list[str]:
    """Return the keys of a model type that change its answer, but not what Quire reads."""
    config, model, whole = _computable(kind, seed, read)
    expected = _answer(config)
    return [
        f"{key}: {value!r}"
        for key in sorted(whole.keys() - _NO_ANSWER - ELSEWHERE)
        for value in _others(config.get(key, whole[key]))
        if _reads(read, config | {key: value}) == model
        and _differs(config | {key: value}, expected)
    ]


def _computable(
    kind: str, seed: int, read: Callable[[Config], ModelConfig]
) -> tuple[Config, ModelConfig, Config]:
    """Return the first drawn config that both programs compute: its own keys, what Quire reads,
    and all keys of Transformers' class."""
    for index in count(list(ARCHITECTURES).index(kind), len(ARCHITECTURES)):
        case = draw(seed, index)
        model = _reads(read, case.config)
        layers = 0 if model is None else model.num_hidden_layers
        if case.task != "classify" and layers > 1 and model is not None:
            try:
                _answer(case.config)
                return case.config, model, _class_config(case.config).to_dict()
            except Exception:  # Transformers has many ways to refuse a config
                continue
    raise AssertionError("there is always another case")


def _reads(read: Callable[[Config], ModelConfig], config: Config) -> ModelConfig | None:
    try:
        return read(config)
    except QuireError:
        return None


def _differs(config: Config, expected: torch.Tensor) -> bool:
    try:
        found = _answer(config)
    except Exception:
        return False
    return found.shape != expected.shape or bool((found - expected).abs().max() > LEAST)


def _others(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, 2 * value or 2)
    elif isinstance(value, float):
        yield from (2 * value or 0.5, value / 2 or 2.0)
    elif isinstance(value, list):
        yield from (value[::-1], value[:-1])
    elif isinstance(value, str):
        yield from ("gelu", "relu")
    elif value is None:
        yield from (True, 2, 0.5)


def _class_config(config: Config) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return AutoConfig.from_pretrained(folder)


def _answer(config: Config) -> torch.Tensor:
    """Return float64 logits or states; a weight depends on its name and shape alone."""
    embeds = not config["architectures"][0].endswith(("ForCausalLM", "LMHeadModel"))
    auto = AUTO["embed" if embeds else "generate"]
    options = {"dtype": torch.float32, "experts_implementation": "eager"}
    model = auto.from_config(_class_config(config), **options).double().eval()
    with torch.inference_mode():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(crc32(name.encode()))
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            center = float(parameter.dim() == 1 and name.endswith("weight"))
            parameter.copy_(center + 0.3 * noise)
        found = model(_PROMPT, **({} if embeds else {"use_cache": False}))
    states: torch.Tensor = found.last_hidden_state if embeds else found.logits
    return states
