"""What kernels read of a step's metadata: tables made on the host, once per step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.core.dtypes import HostArray
from quire.ops.metadata import AttentionMetadata, StateSlots

Make = Callable[..., HostArray]


def table(meta: AttentionMetadata[Tensor], device: torch.device, make: Make, *args: Any) -> Tensor:
    """Return make(meta, *args) on the device; made once per step."""
    known: dict[Any, Tensor] = meta.__dict__.setdefault("triton_tables", {})
    found = known.get((make, args))
    if found is None:
        found = torch.from_numpy(make(meta, *args)).to(device)
        known[make, args] = found
    return found


def longest(meta: AttentionMetadata[Tensor]) -> int:
    """Return most tokens of a sequence."""
    return int(meta.seq_lens[: meta.num_seqs].max(initial=0))


def tiles(meta: AttentionMetadata[Tensor], tokens: int) -> HostArray:
    """Return int32 [tiles, 5]: the rows in tiles of at most `tokens`, as `attention` reads them."""
    starts = meta.query_start_loc[: meta.num_seqs + 1].astype(np.int64)
    lengths = meta.seq_lens[: meta.num_seqs].astype(np.int64)
    rows = np.diff(starts)
    counts = -(-rows // tokens)
    sequence = np.repeat(np.arange(meta.num_seqs), counts)
    within = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = starts[sequence] + within * tokens
    columns = (
        first,
        np.minimum(starts[sequence + 1] - first, tokens),
        sequence,
        lengths[sequence] - rows[sequence] + within * tokens,
        lengths[sequence],
    )
    return np.stack(columns, axis=1).astype(np.int32)


def sequences(meta: AttentionMetadata[Tensor]) -> HostArray:
    """Return int32 [sequences, 3]: first row, end, slot of the state before; -1 for zeros."""
    starts = meta.query_start_loc[: meta.num_seqs + 1]
    columns = (starts[:-1], starts[1:], _slots(meta).state_from[: meta.num_seqs])
    return np.stack(columns, axis=1).astype(np.int32)


def state_rows(meta: AttentionMetadata[Tensor]) -> HostArray:
    """Return int32 [T, 2]: rows of the sequence before each row, and its slot of `sequences`."""
    first, end, source = sequences(meta).T
    within = np.arange(int(end[-1])) - np.repeat(first, end - first)
    return np.stack((within, np.repeat(source, end - first)), axis=1).astype(np.int32)


def targets(meta: AttentionMetadata[Tensor]) -> HostArray:
    """Return int64 [T]: the slot of the state after each row; -1 for none."""
    return _slots(meta).state_to.astype(np.int64)


def _slots(meta: AttentionMetadata[Tensor]) -> StateSlots:
    if meta.states is None:
        raise ValueError("the step has no state slots")
    return meta.states
