"""The one protocol of quantization schemes.

    config.json ─ registry.method ─► Method ─ scheme(layer) ─► Scheme ─ read(tensors) ─► canonical

A method is a checkpoint's `quantization_config` for the whole model; a scheme is how the weight of
one linear layer is stored. A configuration can be checked, and memory be counted, before
any weight is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from quire.core.quantization import Form
from quire.core.quantized import QuantizedWeight

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

FLOATS = ("F32", "F16", "BF16")
"""Types of scales, as safetensors calls them."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One stored tensor of a layer's weight.

    Attributes:
        dtypes: the types it may have, by safetensors' names.
        shapes: the shapes it may have; none if only its reader can tell.
        optional: the weight can be read without it.
        raw: handed to the reader as stored (BF16 and 8-bit floats as bits); else as float32.
    """

    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...] = ()
    optional: bool = False
    raw: bool = False


class Scheme(Protocol):
    """How the weight [rows, columns] of a linear layer is stored."""

    def form(self, columns: int) -> Form:
        """Return the form that `read` returns."""

    def stored(self, rows: int, columns: int) -> dict[str, Stored]:
        """Return suffix behind "layer." → tensor, first the one that marks the layer as quantized.

        Raises:
            ValueError: a weight of this shape cannot be stored so; the message says why.
        """

    def read(self, tensors: Mapping[str, Array], rows: int, columns: int) -> QuantizedWeight:
        """The weight in the canonical form; `tensors` are those of `stored` that are there.

        Raises:
            ValueError: their values contradict each other; the message says how.
        """


class Method(Protocol):
    """A checkpoint's quantization, from its configuration.

    Attributes:
        name: as `quant_method` and --quantization have it.
    """

    name: str

    def scheme(self, layer: str) -> Scheme | None:
        """Return the scheme of a linear layer, such as "model.layers.0.self_attn.q_proj".

        None if it stays dense. A dense weight in the checkpoint overrides the scheme.
        """
