"""gguf_types.py and gguf_blocks.py: sizes and values, bit for bit as gguf-py has them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from quire.checkpoint.gguf_blocks import QUANTIZED, quantized_arrays
from quire.checkpoint.gguf_types import PLAIN, TENSOR_TYPES
from quire.core.dtypes import BFLOAT16

ROWS = 7


def test_sizes_are_those_of_gguf_py() -> None:
    for type_, (block_size, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        found = TENSOR_TYPES[type_.value]
        assert (found.name, found.block_size, found.block_bytes) == (
            type_.name,
            block_size,
            block_bytes,
        )


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_values_are_those_of_gguf_py(name: str) -> None:
    """Any bytes at all: every code, every scale, infinite and NaN ones too."""
    type_ = gguf.GGMLQuantizationType[name]
    layout = TENSOR_TYPES[type_.value]
    random = np.random.default_rng(1)
    raw = random.integers(0, 256, (ROWS * 60, layout.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, type_).reshape(ROWS, -1)
    found = quantized_arrays(raw.reshape(-1), layout, ROWS, 60 * layout.block_size)
    assert int(found.codes.max()) < 1 << found.bits
    assert len(found.codebook) == 1 << found.bits if found.codebook is not None else True
    values = found.dequantize()
    assert values.dtype == np.float32
    finite = np.isfinite(expected)
    assert finite.mean() > 0.5
    assert values[finite].tobytes() == expected[finite].tobytes()
    assert np.array_equal(np.isnan(values), np.isnan(expected))
    assert np.array_equal(values[~finite], expected[~finite], equal_nan=True)


def test_plain_types() -> None:
    raw = np.arange(64, dtype=np.uint8)
    for name, dtype in (("F32", np.float32), ("F16", np.float16), ("BF16", BFLOAT16)):
        assert raw.view(PLAIN[name]).dtype == dtype
