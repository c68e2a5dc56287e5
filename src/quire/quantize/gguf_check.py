"""Check that a GGUF file describes the model that it is written for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from quire.checkpoint.gguf import GGUFTensor
from quire.checkpoint.gguf_config import hf_config
from quire.checkpoint.gguf_rope import factor_tensors
from quire.checkpoint.gguf_types import TYPES
from quire.checkpoint.gguf_writer import Value
from quire.core.errors import UnsupportedModelError
from quire.core.model_config import ModelConfig
from quire.models.registry import model_config
from quire.quantize.gguf_export import exported_tensors, metadata
from quire.system.records import dataclass

_OTHER = ("architecture", "dtype", "bos_token_id", "eos_token_ids", "max_position_embeddings")
"""Fields of a model that may differ: names, and what the tokenizer's keys or the tensors say."""


@dataclass(frozen=True, slots=True)
class _Description:
    """A file that is not written yet, as `hf_config` reads one."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    factors: Mapping[str, Any]

    def raw(self, name: str) -> Any:
        return self.factors[name].view(np.uint8)


def checked_metadata(
    model: ModelConfig, name: str, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Value]:
    """Return the metadata of a file for `model`, without its tokenizer.

    The keys are read back as if they stood in the file. A model that they do not describe is
    refused, whatever the reason.

    Args:
        shapes: of the model's tensors, see `exported_tensors`.

    Raises:
        UnsupportedModelError: GGUF has no such architecture, or cannot say how it differs.
    """
    keys = metadata(model, name)
    factors = factor_tensors(model.rope)
    described = {t.name: t.shape for t in exported_tensors(model, shapes)}
    described |= {name: values.shape for name, values in factors.items()}
    tensors = {n: GGUFTensor(n, TYPES["F32"], shape, 0, 0) for n, shape in described.items()}
    file = _Description(Path(name), dict(keys), tensors, factors)
    read = model_config(hf_config(file))
    if factors:  # of any frequencies, which readers need not know by a name
        read = replace(read, rope=model.rope)
    differing = list(_differences(model, read, ""))
    if differing:
        field, wanted, read = differing[0]
        raise UnsupportedModelError(
            f"GGUF cannot describe this model: its {field} is {wanted}, and readers would take "
            f"{read}.",
            fix="Write compressed-tensors instead.",
        )
    return keys


def _differences(one: Any, two: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield each field that differs, and both values."""
    if is_dataclass(one) and type(one) is type(two):
        for field in fields(one):
            if prefix or field.name not in _OTHER:
                left, right = (getattr(each, field.name) for each in (one, two))
                yield from _differences(left, right, f"{prefix}{field.name}.")
    elif isinstance(one, dict) and isinstance(two, dict):
        for name in one.keys() | two.keys():
            yield from _differences(one.get(name), two.get(name), f"{prefix}{name}.")
    elif isinstance(one, list | tuple) and isinstance(two, list | tuple) and len(one) == len(two):
        for i, (left, right) in enumerate(zip(one, two, strict=True)):
            yield from _differences(left, right, f"{prefix}{i}.")
    elif one != two and not (
        isinstance(one, int | float)
        and isinstance(two, int | float)
        and math.isclose(one, two, rel_tol=1e-6)
    ):
        yield prefix[:-1], one, two
