"""gguf_types.py: sizes and values, bit for bit as gguf-py has them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from quire.checkpoint.gguf_types import READABLE, TENSOR_TYPES


def test_sizes_are_those_of_gguf_py() -> None:
    for type_, (block_size, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        found = TENSOR_TYPES[type_.value]
        assert (found.name, found.block_size, found.block_bytes) == (
            type_.name,
            block_size,
            block_bytes,
        )


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0"])
def test_quantised_values_are_those_of_gguf_py(name: str) -> None:
    type_ = gguf.GGMLQuantizationType[name]
    random = np.random.default_rng(1)
    raw = random.integers(0, 256, TENSOR_TYPES[type_.value].block_bytes * 500, dtype=np.uint8)
    blocks = raw.reshape(500, -1)
    blocks[:, 1] &= 0x7B  # keep the scales finite
    expected = gguf.dequantize(blocks, type_).reshape(-1)
    found = READABLE[name](raw)
    assert found.dtype == np.float32
    assert found.tobytes() == expected.astype(np.float32).tobytes()


def test_plain_values() -> None:
    raw = np.arange(64, dtype=np.uint8)
    assert READABLE["F32"](raw).tobytes() == raw.tobytes()
    assert READABLE["F16"](raw).dtype == np.float16
    assert READABLE["BF16"](raw).dtype == np.uint16
