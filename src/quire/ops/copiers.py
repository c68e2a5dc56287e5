"""Copiers of KV blocks, for the arrays of any provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from quire.ops.array import Array
from quire.ops.block_copy import BlockCopier

if TYPE_CHECKING:
    from quire.ops.torch_ops.staged_copy import StagedCopier


def open_copier(arrays: Sequence[Array], threads: int) -> BlockCopier | StagedCopier:
    """Return a copier for a provider's arrays [num_blocks, …] where they are."""
    on_host = [array for array in arrays if isinstance(array, np.ndarray)]
    if len(on_host) == len(arrays):
        return BlockCopier(on_host, threads)
    from quire.ops.torch_ops.staged_copy import open_tensor_copier

    return open_tensor_copier(arrays, threads)
