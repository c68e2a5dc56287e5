"""The names that --quantization takes, and how each rounds dense weights.

The front end reads the names too, so numpy is imported only for rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from quire.checkpoint.gguf_forms import fitting_form
from quire.core.quantization import CodeType, Form
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.core.dtypes import HostArray
    from quire.core.quantized import QuantizedWeight


class Rounder(Protocol):
    """Rounds weights to nearest in one format."""

    def form(self, columns: int) -> Form:
        """Return the form of quantized rows with this number of columns."""

    def quantize(self, weight: HostArray) -> QuantizedWeight:
        """Round a weight [N, K] of any float dtype.

        Raises:
            ValueError: a weight is not finite.
        """


@dataclass(frozen=True, slots=True)
class IntRounder:
    """Rounds to integers.

    Attributes:
        group: columns that share a scale; 0 for all.
        second: "" is symmetric with signed codes; "zero" has an integer zero point, "middle" the
            one in the middle; "offset" is added after scaling.
        act_order: groups of dummy weights are not runs of columns; rounding ignores it.
        float_activations: see `Form`.
    """

    bits: int
    group: int = 0
    second: Literal["", "zero", "middle", "offset"] = ""
    act_order: bool = False
    float_activations: bool = False

    def form(self, columns: int) -> Form:
        codes: CodeType = "uint8" if self.second else "int8"
        group, wide = self.group or columns, self.float_activations
        return Form(codes, self.bits, group, self.second, "", self.act_order, wide)

    def quantize(self, weight: HostArray) -> QuantizedWeight:
        from quire.quant.rounding import to_integers

        return to_integers(weight, self.form(weight.shape[1]))


@dataclass(frozen=True, slots=True)
class Float8Rounder:
    """Rounds to 8-bit floats.

    Attributes:
        block: rows and columns that share a scale; None for one scale per row.
        float_activations: see `Form`.
    """

    codes: Literal["float8_e4m3fn", "float8_e5m2"]
    block: tuple[int, int] | None = None
    float_activations: bool = True

    def form(self, columns: int) -> Form:
        group, wide = self.block[1] if self.block else columns, self.float_activations
        return Form(self.codes, 8, group, float_activations=wide)

    def quantize(self, weight: HostArray) -> QuantizedWeight:
        from quire.quant.rounding import to_float8

        return to_float8(weight, self.form(weight.shape[1]), self.block[0] if self.block else 1)


@dataclass(frozen=True, slots=True)
class CodebookRounder:
    """Codes of 4 bits; `scale` is the format of a group's scale."""

    codebook: str
    group: int
    scale: Literal["float32", "e8m0", "e4m3"] = "float32"

    def form(self, columns: int) -> Form:
        return Form("uint8", 4, self.group, codebook=self.codebook)

    def quantize(self, weight: HostArray) -> QuantizedWeight:
        from quire.quant.rounding import to_codebook

        return to_codebook(weight, self.form(weight.shape[1]), self.scale)


@dataclass(frozen=True, slots=True)
class GgufRounder:
    """A GGUF type, or the one that fits the rows."""

    type: str

    def form(self, columns: int) -> Form:
        return fitting_form(self.type, columns)

    def quantize(self, weight: HostArray) -> QuantizedWeight:
        from quire.quant import ggml

        return ggml.quantize(weight, self.type)


@dataclass(frozen=True, slots=True)
class Rounding:
    """The rounders of a name.

    Attributes:
        layers: for the layers' weights.
        head: for the output projection; None leaves it dense.
        about: one line for users.
    """

    layers: Rounder
    head: Rounder | None
    about: str


def _gguf(name: str) -> Rounding:
    """Return the rounding of a GGUF type; the output projection has more bits, as in llama.cpp."""
    head = "Q8_0" if name == "Q8_0" else "Q6_K"
    return Rounding(GgufRounder(name), GgufRounder(head), f"GGUF's {name}; the head in {head}")


_INT8 = IntRounder(8)
_INT8_W8A16 = IntRounder(8, float_activations=True)
_GPTQ = IntRounder(4, 128, "middle")
_ACT_ORDER = IntRounder(4, 128, "middle", act_order=True)

NAMES: dict[str, Rounding] = {
    "int8": Rounding(_INT8, _INT8, "W8A8, one scale per row"),
    "int8_w8a16": Rounding(_INT8_W8A16, _INT8_W8A16, "W8A16, one scale per row"),
    **{
        name: Rounding(
            IntRounder(4, group, "offset"),
            IntRounder(6, group, "offset"),
            f"W4A8, a scale and an offset per {group}; the head in 6 bits",
        )
        for name, group in {"int4": 128, "int4_g32": 32, "int4_g64": 64, "int4_g128": 128}.items()
    },
    "gptq": Rounding(_GPTQ, None, "GPTQ's format, symmetric, groups of 128"),
    "gptq_actorder": Rounding(_ACT_ORDER, None, "the same with columns out of order (dummy only)"),
    "awq": Rounding(IntRounder(4, 128, "zero"), None, "AWQ's format, zero points, groups of 128"),
    "fp8": Rounding(Float8Rounder("float8_e4m3fn"), None, "E4M3, one scale per row"),
    "fp8_w8a8": Rounding(
        Float8Rounder("float8_e4m3fn", float_activations=False),
        None,
        "E4M3, and rows too on GPUs that multiply it",
    ),
    "fp8_e5m2": Rounding(Float8Rounder("float8_e5m2"), None, "E5M2, one scale per row"),
    "fp8_block": Rounding(
        Float8Rounder("float8_e4m3fn", (128, 128)), None, "E4M3, one scale per 128 × 128"
    ),
    "mxfp4": Rounding(CodebookRounder("e2m1", 32, "e8m0"), None, "E2M1, a power of two per 32"),
    "nvfp4": Rounding(CodebookRounder("e2m1", 16, "e4m3"), None, "E2M1, an 8-bit float per 16"),
    "nf4": Rounding(CodebookRounder("nf4", 64), None, "bitsandbytes' nf4, one scale per 64"),
    "fp4": Rounding(CodebookRounder("fp4", 64), None, "bitsandbytes' fp4, one scale per 64"),
    **{
        name.lower(): _gguf(name)
        for name in (
            "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
            "IQ4_NL", "IQ4_XS",
        )
    },
}  # fmt: skip

RANDOM_ONLY = {"gptq_actorder"}
"""Names that only dummy weights can have."""


def rounding(name: str) -> Rounding:
    """Return how --quantization NAME rounds dense weights.

    Raises:
        KeyError: there is no such name.
    """
    return NAMES[name]
