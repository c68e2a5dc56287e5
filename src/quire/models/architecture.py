"""What an architecture file says: how to read its config, and what its weights are called."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import field, replace
from typing import Any

from quire.core.layers import HeadForm
from quire.core.model_config import ModelConfig
from quire.models.parameters import Parameter
from quire.models.weights.stacks import Stacked
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Hugging Face's names for the decoder's parameters (see `models.parameters`).

    Both sides are stems: ".weight" or ".bias" follows. A stem with several names is their
    concatenation along the rows, in that order. In names of experts, "{}" is the expert's number.

    Attributes:
        top: stem → name or names, outside the layers.
        layer: stem within a layer → names within a layer.
        layer_prefix: what precedes the names of a layer; "{}" is its number.
        base_prefix: leads the names when the checkpoint is a causal LM; one saved from
            the bare model lacks it.
        transposed: stems whose weight is stored [in, out] (GPT-2's Conv1D).
        stacked: stem, or whole name of a bias, within a layer → the tensor of all experts, where a
            checkpoint has no tensors of each.
        apart: stem within a layer → other names of its parts, which a checkpoint may have.
        ignored: a regular expression for stored tensors that are not weights.
    """

    top: Mapping[str, str | tuple[str, ...]]
    layer: Mapping[str, tuple[str, ...]]
    layer_prefix: str
    base_prefix: str
    transposed: frozenset[str] = frozenset()
    stacked: Mapping[str, Stacked] = field(default_factory=dict)
    apart: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignored: str = r"(?!)"

    def but(
        self,
        layer: Mapping[str, tuple[str, ...]],
        top: Mapping[str, str | tuple[str, ...]] | None = None,
        **fields: Any,
    ) -> WeightNames:
        """Return the same with other names in `layer` and `top`, and other `fields`."""
        tops = {**self.top, **(top or {})}
        return replace(self, layer={**self.layer, **layer}, top=tops, **fields)

    def sources(self, parameter: str) -> tuple[str, ...]:
        """Return the stored names whose rows make up `parameter`; of experts, those of each.

        A parameter is named, for example, "layers.0.attn.qkv.weight".
        """
        stem, _, kind = parameter.rpartition(".")
        if not stem.startswith("layers."):
            names = self.top[stem]
            return tuple(
                f"{name}.{kind}" for name in ([names] if isinstance(names, str) else names)
            )
        _, number, stem = stem.split(".", 2)
        prefix = self.layer_prefix.format(number)
        if f"{stem}.{kind}" in self.layer:
            return tuple(prefix + name for name in self.layer[f"{stem}.{kind}"])
        return tuple(f"{prefix}{name}.{kind}" for name in self.layer[stem])

    def stored(self, parameter: Parameter) -> list[tuple[str, int]]:
        """Return the stored names with their rows; the last name holds all parts that are left."""
        names, count = self.sources(parameter.name), max(1, parameter.experts)
        parts = parameter.parts[: len(parameter.parts) // count]
        last = len(names) - 1
        rows = (*parts[:last], sum(parts[last:]))
        pairs = list(zip(names, rows, strict=True))
        return [(name.format(i), n) for i in range(count) for name, n in pairs]

    def stored_in(self, layers: Container[str], parameter: Parameter) -> list[tuple[str, int]]:
        """Return the same of a checkpoint, which may have the parts of one name apart.

        Args:
            layers: its tensors' names without "weight", "qweight" or another suffix.
        """
        found, stem = self.stored(parameter), parameter.stem.split(".", 2)[-1]
        if stem not in self.apart:
            return found
        apart = self.but({stem: self.apart[stem]}).stored(parameter)
        return apart if all(name.rpartition(".")[0] in layers for name, _ in apart) else found

    def is_transposed(self, parameter: str) -> bool:
        stem, _, kind = parameter.rpartition(".")
        inner = stem.split(".", 2)[-1] if stem.startswith("layers.") else stem
        return kind == "weight" and inner in self.transposed


@dataclass(frozen=True, slots=True)
class Architecture:
    """One family of models, from its module: `parse`, and `NAMES` and `MTP` if they differ from
    Llama's.

    Attributes:
        parse: config.json's content → `ModelConfig`; raises `CheckpointError` naming the field
            that is missing or wrong, `UnsupportedModelError` for what Quire does not compute.
        names: where the weights are.
        mtp: the form of the draft head that checkpoints may have behind their layers.
    """

    parse: Callable[[Mapping[str, Any]], ModelConfig]
    names: WeightNames
    mtp: HeadForm | None = None
