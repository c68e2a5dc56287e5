"""Arrays and tensors share memory, in every format of a model."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.dtypes import dtype_of
from quire.ops.torch_ops.arrays import array, numpy_dtype, tensor, torch_dtype
from quire.ops.torch_ops.provider import TorchOps

NAMES = (
    "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2",
    "int8", "uint8", "int32", "int64", "bool",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_both_ways_on_the_same_memory(name: str) -> None:
    dtype = dtype_of(name)
    values = np.arange(24, dtype=np.uint8).reshape(4, 6).astype(dtype)[::2, 1:3]
    held = tensor(values)
    assert str(held.dtype) == f"torch.{name}"
    assert numpy_dtype(torch_dtype(dtype)) == dtype
    back = array(held)
    assert back.dtype == dtype
    assert np.shares_memory(back, values)
    np.testing.assert_array_equal(back, values)
    assert array(held[:0]).shape == (0, 2)


def test_read_only_arrays_are_copied() -> None:
    values = np.zeros(2, np.float32)
    values.flags.writeable = False
    tensor(values)[0] = 1.0
    assert values[0] == 0.0


def test_ops_take_and_return_the_hosts_memory() -> None:
    ops, values = TorchOps(), np.ones((2, 3), dtype_of("bfloat16"))
    assert np.shares_memory(ops.numpy(ops.array(values)), values)
