"""numpy <-> torch, which is an oracle of many tests, for bfloat16 and 8-bit floats as well."""

from quire.ops.torch_ops.arrays import array, numpy_dtype, tensor, torch_dtype

__all__ = ["array", "numpy_dtype", "tensor", "torch_dtype"]
