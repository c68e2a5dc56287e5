"""Arrays that users hand over, of any library, read without importing that library.

DLPack describes an array in memory by a small struct. numpy's reader of it refuses bfloat16, so
this one reads the struct itself.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

_IN_HOST_MEMORY = (1, 3)
"""DLPack's numbers of the CPU, and of host memory that CUDA has pinned."""
_CODES = {0: "int", 1: "uint", 2: "float", 6: "bool"}
_BFLOAT = 4


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)


def host_array(value: Any) -> NDArray[Any]:
    """Return a numpy array as it is; copy an array of another library.

    Args:
        value: has `__dlpack__` or `__array__`: a torch tensor, for example, also one on a GPU.

    Raises:
        TypeError: it has neither, or its elements or its device are unknown.
    """
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):  # torch exports no tensor that requires a gradient
        value = value.detach()
    if hasattr(value, "__dlpack__"):
        device = value.__dlpack_device__()[0] if hasattr(value, "__dlpack_device__") else 1
        if device not in _IN_HOST_MEMORY:
            if not hasattr(value, "cpu"):
                raise TypeError("the array is not in host memory; copy it there first")
            value = value.cpu()
        return _copied(value.__dlpack__())
    if hasattr(value, "__array__"):
        return np.asarray(value)
    raise TypeError(f"{type(value).__name__} is no array: it has no __dlpack__ and no __array__")


def _copied(capsule: object) -> NDArray[Any]:
    """Return a copy of a DLPack capsule's array; the capsule stays its owner, and frees it."""
    tensor = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    dtype = np.dtype(_dtype(tensor))
    shape = tuple(tensor.shape[: tensor.ndim])
    if 0 in shape:
        return np.empty(shape, dtype)
    steps = tensor.strides[: tensor.ndim] if tensor.strides else None
    first, size = 0, dtype.itemsize * math.prod(shape)  # without strides the rows follow each other
    if steps is not None:
        steps = [step * dtype.itemsize for step in steps]
        ends = [(count - 1) * step for count, step in zip(shape, steps, strict=True)]
        first = sum(end for end in ends if end < 0)
        size = sum(map(abs, ends)) + dtype.itemsize
    begin = tensor.data + tensor.byte_offset + first
    memory = (ctypes.c_uint8 * size).from_address(begin)
    return np.ndarray(shape, dtype, memory, -first, steps).copy()


def _dtype(tensor: _DLTensor) -> DTypeLike:
    if tensor.lanes == 1 and (tensor.code, tensor.bits) == (_BFLOAT, 16):
        bfloat16: type = ml_dtypes.bfloat16
        return bfloat16
    name = _CODES.get(tensor.code)
    if tensor.lanes != 1 or name is None:
        kind = f"DLPack's code {tensor.code} with {tensor.bits} bits"
        raise TypeError(f"the type of its elements is unknown: {kind}")
    return name if name == "bool" else f"{name}{tensor.bits}"
