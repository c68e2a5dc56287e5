"""What kernels read of a step's metadata: tables made on the host, once per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.core.dtypes import HostArray
from quire.ops.device import Staged
from quire.ops.graphs import Graph
from quire.ops.metadata import AttentionMetadata, KVCache, StateSlots
from quire.ops.torch_ops.devices import TorchAccelerator
from quire.ops.triton import launch

Make = Callable[..., HostArray]
Args = tuple[Any, ...]
Metadata = AttentionMetadata[Tensor]
_NAME = "triton_tables"


class Tables:
    """The tables of one step, made when a kernel first asks for them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Make, Args], Any] = {}

    def get(self, meta: Metadata, device: torch.device, make: Make, args: Args) -> Tensor:
        key = make, args
        if key not in self._known:
            host = make(meta, *args)
            if meta.device.is_host:
                self._known[key] = torch.from_numpy(host).to(device)
            else:  # from pinned memory: CUDA waits for all that is queued before it copies other
                (self._known[key],) = meta.device.stage([host]).send()
        found: Tensor = self._known[key]
        return found

    def longest(self, meta: Metadata) -> int:
        return int(meta.seq_lens[: meta.num_seqs].max(initial=0))


class StagedTables(Tables):
    """Tables of a captured step, which later steps overwrite.

    The first `update` gives all of them their place, so that they cross in one copy.

    Args:
        most: most tokens that a sequence will have.
    """

    def __init__(self, device: TorchAccelerator, most: int) -> None:
        super().__init__()
        self._device = device
        self._most = most
        self._made: dict[tuple[Make, Args], HostArray] = {}
        self._staged: Staged | None = None

    def get(self, meta: Metadata, device: torch.device, make: Make, args: Args) -> Tensor:
        key = make, args
        if key not in self._known:
            self._made[key] = make(meta, *args)
            (self._known[key],) = self._device.stage([self._made[key]]).send()
        found: Tensor = self._known[key]
        return found

    def longest(self, meta: Metadata) -> int:
        return self._most

    def update(self, meta: Any) -> None:
        """See `FixedTables.update`."""
        for (make, args), host in self._made.items():
            host[:] = make(meta, *args)
        if self._staged is None:
            self._staged = self._device.stage([*self._made.values()])
            self._known = dict(zip(self._made, self._staged.send(), strict=True))
        else:
            self._staged.send()


class TableCapture:
    """See `ops.graphs.Capture`."""

    def __init__(self, device: TorchAccelerator) -> None:
        self._device = device

    def reads(self, caches: Sequence[KVCache[Any]]) -> bool:
        """An e4m3 cache is plain torch's on cards without such numbers."""
        kinds = {tensor.dtype for cache in caches for tensor in cache.tensors}
        return torch.float8_e4m3fn not in kinds or launch.card(self._device.torch).float8

    def fix(self, meta: Any, longest: int) -> StagedTables:
        fixed = StagedTables(self._device, longest)
        meta.__dict__[_NAME] = fixed
        return fixed

    def record(
        self, work: Callable[[], Sequence[Any]], reserve: int
    ) -> tuple[Graph, Sequence[Any]]:
        results: list[Tensor] = []
        graph = self._device.capture(lambda: results.extend(work()), reserve)
        return graph, [self._device.borrowed(result) for result in results]


def _of(meta: Metadata) -> Tables:
    found: Tables = meta.__dict__.setdefault(_NAME, Tables())
    return found


def table(meta: Metadata, device: torch.device, make: Make, *args: Any) -> Tensor:
    """Return make(meta, *args) on the device; made once per step."""
    return _of(meta).get(meta, device, make, args)


def longest(meta: Metadata) -> int:
    """Return most tokens of a sequence; of a captured step, most that it may have."""
    return _of(meta).longest(meta)


def tiles(meta: Metadata, tokens: int) -> HostArray:
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


def sequences(meta: Metadata) -> HostArray:
    """Return int32 [sequences, 3]: first row, end, slot of the state before; -1 for zeros."""
    starts = meta.query_start_loc[: meta.num_seqs + 1]
    columns = (starts[:-1], starts[1:], _slots(meta).state_from[: meta.num_seqs])
    return np.stack(columns, axis=1).astype(np.int32)


def state_rows(meta: Metadata) -> HostArray:
    """Return int32 [T, 2]: rows of the sequence before each row, and its slot of `sequences`."""
    first, end, source = sequences(meta).T
    within = np.arange(int(end[-1])) - np.repeat(first, end - first)
    return np.stack((within, np.repeat(source, end - first)), axis=1).astype(np.int32)


def targets(meta: Metadata) -> HostArray:
    """Return int64 [T]: the slot of the state after each row; -1 for none."""
    return _slots(meta).state_to.astype(np.int64)


def _slots(meta: Metadata) -> StateSlots:
    if meta.states is None:
        raise ValueError("the step has no state slots")
    return meta.states
