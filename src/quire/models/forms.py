"""Which linear weights of a model are quantized, and to what form; torch-free, and without reading
any weight."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from quire.core.model_config import ModelConfig
from quire.core.quantization import Form
from quire.models.layout import head_name, parameters
from quire.models.parameters import Parameter
from quire.models.registry import weight_names
from quire.models.weights.sources import match
from quire.quant.names import Rounding
from quire.quant.scheme import Method

if TYPE_CHECKING:
    from quire.checkpoint.weights import Weights

Forms = dict[str, list[Form | None]]
"""Linear weight → the form of each of its parts, None for a dense one; of experts that are alike,
those of one. Weights that are dense altogether have no entry."""


def linear_names(model: ModelConfig) -> frozenset[str]:
    """Return the names of the parameters used in products: a tied embedding, but no other table."""
    head = head_name(model)
    return frozenset(p.name for p in parameters(model) if p.kind == "linear" or p.name == head)


def stored_forms(weights: Weights, model: ModelConfig, method: Method | None) -> Forms:
    """Return the forms of a checkpoint's tensors, from its headers.

    Raises:
        CheckpointError: its tensors do not fit the model.
    """
    linear, found = linear_names(model), defaultdict[str, list[Form | None]](list)
    names = weight_names(model)
    for piece in match(weights, parameters(model), names, method).pieces:
        if piece.parameter in linear:
            found[piece.parameter].append(piece.form)
    experts = {p.name: p.experts for p in parameters(model) if p.experts}
    return {
        name: _of_one(forms, experts.get(name, 1)) for name, forms in found.items() if any(forms)
    }


def _of_one(forms: list[Form | None], experts: int) -> list[Form | None]:
    """Return the forms of the first expert, if all experts have the same."""
    first = forms[: len(forms) // experts]
    return first if forms == first * experts else forms


def said_forms(model: ModelConfig, method: Method) -> Forms:
    """Return the forms that a checkpoint's configuration states, without reading its files."""
    names = weight_names(model)

    def form(parameter: Parameter, source: str) -> Form | None:
        scheme = method.scheme(source.removesuffix(".weight"))
        return None if scheme is None else scheme.form(parameter.shape[1])

    found = {
        p.name: [form(p, source) for source in names.sources(p.name)]
        for p in parameters(model)
        if p.kind == "linear"
    }
    return {name: forms for name, forms in found.items() if any(forms)}


def rounded_forms(model: ModelConfig, rounding: Rounding) -> Forms:
    """Return the forms of the dense linear weights that `rounding` quantizes."""
    names, head, linear = weight_names(model), head_name(model), linear_names(model)
    found: Forms = {}
    for parameter in parameters(model):
        rounder = rounding.head if parameter.name == head else rounding.layers
        if parameter.name in linear and rounder is not None:
            count = len(names.sources(parameter.name))
            found[parameter.name] = [rounder.form(parameter.shape[1])] * count
    return found
