"""Arrays of other libraries, read without importing these."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from quire.core.quantized import parts_of
from quire.system.user_arrays import host_array


class Exported:
    """An array of which only the export is known."""

    def __init__(self, array: Any, device: int = 1) -> None:
        self._array, self._device = array, device

    def __dlpack__(self) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_numpys_arrays_are_not_copied() -> None:
    assert host_array(ARRAY) is ARRAY
    assert parts_of(ARRAY)[0] is ARRAY


@pytest.mark.parametrize(
    "array",
    [
        ARRAY,
        ARRAY.transpose(2, 0, 1),
        ARRAY[:, ::2, 1:3],
        ARRAY[::-1, :, ::-2],
        ARRAY[:0],
        np.array(3.5),
        np.arange(5, dtype=np.int16),
        np.array([True, False]),
    ],
)
def test_an_export_gives_the_same_array(array: Any) -> None:
    found = host_array(Exported(array))
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)
    assert not np.shares_memory(found, array)


def test_torchs_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.linspace(-3, 3, 12).reshape(3, 4).bfloat16().requires_grad_()
    for given, same in ((tensor, tensor), (tensor.T, tensor.T), (Exported(tensor.data), tensor)):
        found = host_array(given)
        assert found.dtype == ml_dtypes.bfloat16
        assert found.astype(np.float32).tolist() == same.tolist()
    assert parts_of(tensor)[0].shape == (3, 4)


def test_an_array_interface_is_enough() -> None:
    class Interface:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return ARRAY

    assert np.array_equal(host_array(Interface()), ARRAY)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ([1.0], "list is no array"),
        ("a", "str is no array"),
        (Exported(ARRAY, device=2), "not in host memory"),
        (Exported(ARRAY.astype(np.complex64)), "unknown"),
    ],
)
def test_what_is_no_array_here(value: object, word: str) -> None:
    with pytest.raises(TypeError, match=word):
        host_array(value)


def test_a_weight_that_is_no_array_is_refused() -> None:
    with pytest.raises(TypeError, match="float is no array"):
        parts_of([1.0])  # type: ignore[list-item]
