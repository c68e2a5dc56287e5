"""The canonical forms of GGUF's quantized types; `checkpoint.gguf_blocks` reads them."""

from __future__ import annotations

from quire.core.quantization import Form

GGUF_FORMS: dict[str, Form] = {
    "Q4_0": Form("uint8", 4, 32, "middle"),
    "Q4_1": Form("uint8", 4, 32, "offset"),
    "Q5_0": Form("uint8", 5, 32, "middle"),
    "Q5_1": Form("uint8", 5, 32, "offset"),
    "Q8_0": Form("int8", 8, 32),
    "Q2_K": Form("uint8", 2, 16, "offset"),
    "Q3_K": Form("uint8", 3, 16, "middle"),
    "Q4_K": Form("uint8", 4, 32, "offset"),
    "Q5_K": Form("uint8", 5, 32, "offset"),
    "Q6_K": Form("uint8", 6, 16, "middle"),
    "IQ4_NL": Form("uint8", 4, 32, codebook="iq4_nl"),
    "IQ4_XS": Form("uint8", 4, 32, codebook="iq4_nl"),
    "MXFP4": Form("uint8", 4, 32, codebook="e2m1x2"),
    "TQ1_0": Form("uint8", 2, 128, "middle"),
    "TQ2_0": Form("uint8", 2, 128, "middle"),
    "IQ1_S": Form("uint8", 4, 32, codebook="iq1"),
    "IQ1_M": Form("uint8", 4, 16, codebook="iq1"),
    "IQ2_XXS": Form("uint8", 4, 32, codebook="iq2"),
    "IQ2_XS": Form("uint8", 4, 16, codebook="iq2"),
    "IQ2_S": Form("uint8", 4, 16, codebook="iq2"),
    "IQ3_XXS": Form("uint8", 4, 32, codebook="iq3"),
    "IQ3_S": Form("uint8", 4, 32, codebook="iq3_s"),
}
"""Name of a type → its form."""

NARROWER = {
    "Q2_K": "IQ4_NL",
    "Q3_K": "IQ4_NL",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    "IQ4_XS": "IQ4_NL",
}


def fitting_form(name: str, columns: int) -> Form:
    """Return the form of rows of `columns` in type `name`. Rows that are not a multiple of 256 get
    a type with blocks of 32 that is at least as precise, as in `quant.ggml`."""
    return GGUF_FORMS[NARROWER.get(name, name) if columns % 256 else name]
