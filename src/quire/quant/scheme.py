"""The protocols of quantization methods and schemes.

    config.json ─ registry.method ─► Method ─ scheme(layer) ─► Scheme ─ read(tensors) ─► canonical

A method is a checkpoint's `quantization_config` for the whole model. A scheme describes how the
weight of one linear layer is stored. Both are complete before any weight is read, so configuration
and memory can be checked first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from quire.core.quantization import Form
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.core.dtypes import HostArray
    from quire.core.quantized import QuantizedWeight
Shape = tuple[int, ...]

FLOATS = ("F32", "F16", "BF16")
"""Dtypes of scales, with safetensors' names."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One stored tensor of a layer's weight.

    Attributes:
        dtypes: its possible dtypes, with safetensors' names.
        shapes: its possible shapes; empty if only the reader can check it.
        optional: whether it may be missing.
        raw: the reader gets it as stored (BF16 and 8-bit floats as bits); else as float32.
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
        """Return suffix after "layer." → tensor.

        Raises:
            ValueError: a weight of this shape cannot be stored this way; the message says why.
        """

    def read(self, tensors: Mapping[str, HostArray], rows: int, columns: int) -> QuantizedWeight:
        """Return the weight in its canonical form; `tensors` are the existing ones of `stored`.

        Raises:
            ValueError: their values contradict each other; the message says how.
        """


class Method(Protocol):
    """A checkpoint's quantization, from its configuration.

    Attributes:
        name: its name in `quant_method` and --quantization.
    """

    name: str

    def scheme(self, layer: str) -> Scheme | None:
        """Return the scheme of a linear layer, such as "model.layers.0.self_attn.q_proj".

        None if it stays dense. A dense weight in the checkpoint overrides the scheme.
        """
