"""numpy arrays as torch's tensors, and the reverse, on the same memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quire.core.dtypes import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, DType, HostArray, dtype_of

# torch cannot take arrays of these dtypes from numpy; its own is the second.
_BY_BITS: dict[DType, tuple[type[np.generic], torch.dtype]] = {
    BFLOAT16: (np.int16, torch.bfloat16),
    FLOAT8_E4M3: (np.uint8, torch.float8_e4m3fn),
    FLOAT8_E5M2: (np.uint8, torch.float8_e5m2),
}


def torch_dtype(dtype: DType | torch.dtype) -> torch.dtype:
    """Return torch's dtype of the same name."""
    found: torch.dtype = getattr(torch, str(dtype).removeprefix("torch."))
    return found


def numpy_dtype(dtype: torch.dtype) -> DType:
    """Return numpy's dtype of the same name."""
    return dtype_of(str(dtype).removeprefix("torch."))


def tensor(values: HostArray | Tensor) -> Tensor:
    """Return the array as a tensor on the same memory; a read-only array is copied."""
    if isinstance(values, Tensor):
        return values
    if not values.flags.writeable:
        values = values.copy()
    if values.dtype in _BY_BITS:
        bits, dtype = _BY_BITS[values.dtype]
        return torch.from_numpy(values.view(bits)).view(dtype)
    return torch.from_numpy(values)


def array(values: Tensor) -> HostArray:
    """Return the tensor as an array: on the same memory, or a copy from a device's."""
    values = values.detach().cpu()
    dtype = numpy_dtype(values.dtype)
    if dtype in _BY_BITS:
        bits = torch.int16 if dtype == BFLOAT16 else torch.uint8
        return np.asarray(values.view(bits).numpy()).view(dtype)
    return np.asarray(values.numpy())
