"""The tensors behind the paged KV cache, and those of recurrent layers' states."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from quire.core.dtypes import BFLOAT16, FLOAT32, DType
from quire.core.kv_sharing import SharedKV
from quire.core.model_config import ModelConfig
from quire.layers.layer import Cache
from quire.ops.interface import Ops
from quire.ops.memory import HUGE_PAGE, SharedArrays, back
from quire.ops.metadata import KVCache, LayerStates

AHEAD_TOKENS = 4096
"""Tokens of a long prompt, whose memory is backed in advance."""
PAUSE = 7.0
"""Pause after each page, as a multiple of its time, so that a step loses little CPU time."""


def allocate_kv_caches(
    ops: Ops,
    model: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: DType,
    *,
    scales: bool = False,
    units: Sequence[tuple[float, float]] | None = None,
    shared: SharedKV | None = None,
) -> list[KVCache]:
    """Allocate keys and values of each of `model.kv_layers`,
    [num_blocks, num_kv_heads, block_size, head_dim].

    Latent attention has one tensor per layer, of latents. With `shared` the tensors hold the blocks
    of all replicas, in memory that these share.

    With `scales`, and always with int8, there are also scales, bfloat16 [num_blocks, num_kv_heads,
    block_size]. 8-bit floats without scales are in `units` of k and v, per layer with attention; 1
    if None. `KVCache` says what an int4 cache (uint8) has.

    On a CPU the memory is not written. The operating system backs it with RAM when a token is
    written, or earlier (`KVBacking`), in huge pages (`ops.memory`). A page holds one tensor's part
    of many blocks, so scattered blocks of a layer need few address translations. A block's content
    before its first token is undefined and never read.
    """
    empty = ops.empty
    if shared is not None:
        empty, num_blocks = SharedArrays(shared.path).empty, shared.count * shared.stride
    caches, attending = [], model.layers_with("attention")
    parts = 2 if model.latent is None else 1
    for layer in model.kv_layers:
        heads, dim = model.kv_shape(layer)
        packed, shape = dtype == np.uint8, (num_blocks, heads, block_size)
        tensors = [empty((*shape, dim // 2 if packed else dim), dtype) for _ in range(parts)]
        cache = KVCache(tensors[0], tensors[1] if parts == 2 else None)
        if packed:
            cache = cache._replace(k_signs=empty((*shape, dim // 8), dtype))
        if scales or dtype in (np.int8, np.uint8):
            found = [empty(shape, dtype if packed else BFLOAT16) for _ in range(parts)]
            cache = cache._replace(k_scale=found[0], v_scale=found[1] if parts == 2 else None)
        elif units is not None and dtype.itemsize == 1:
            k_unit, v_unit = units[attending.index(layer)]
            cache = cache._replace(k_unit=k_unit, v_unit=v_unit)
        caches.append(cache)
    return caches


def allocate_states(ops: Ops, model: ModelConfig, num_slots: int) -> list[LayerStates]:
    """Allocate the states of each recurrent layer.

    A slot's content before its first state is undefined and never read.
    """
    if model.recurrent is None:
        return []
    shapes = [(num_slots, *shape) for shape in model.recurrent.state]
    found = []
    for _ in model.layers_with("recurrent"):
        conv, *matrix = (ops.empty(shape, FLOAT32) for shape in shapes)
        found.append(LayerStates(conv, matrix[0] if matrix else conv))
    return found


def copy_blocks(caches: Iterable[KVCache], moves: Sequence[tuple[int, int]]) -> None:
    """Copy KV blocks of all layers to the blocks beside them in `moves`."""
    tensors: list[Any] = [tensor for cache in caches for tensor in cache.tensors] if moves else []
    for tensor in tensors:
        for source, target in moves:
            tensor[target] = tensor[source]


def in_layer_order(
    model: ModelConfig, kv_caches: Iterable[KVCache], states: Iterable[LayerStates] = ()
) -> list[Cache]:
    """Return the caches as `Decoder.forward` takes them: a layer that has none of its own gets
    another handle of its owner's."""
    owned = dict(zip(model.kv_layers, kv_caches, strict=True))
    left, found = iter(states), list[Cache]()
    for layer in model.layers:
        for kind in model.kinds(layer):
            if kind == "attention":
                owner = owned[model.kv_owner(layer)]
                found.append(owner if layer in owned else KVCache(*owner))
            elif kind == "recurrent":
                found.append(next(left))
    return found


class KVBacking:
    """Makes the system back the KV cache's next huge pages with RAM before a step writes to them.

    A page holds about 64 blocks' part of one tensor. So a growing sequence reaches new pages of all
    layers at once. If the system is slow (a virtual machine may take 5 ms per page), one token
    would wait for all of them. A separate thread requests them while the previous pages fill.

    Memory that replicas share is mostly on small pages, and ten times as slow to back. So a replica
    that computes prompts for others backs the pages of the next prompt in advance.

    Args:
        ops: ops on the host.
        caches: one per layer.
        shared: set if replicas share the memory.
        ahead: further blocks to back.
    """

    def __init__(
        self, ops: Ops, caches: list[KVCache], shared: SharedKV | None = None, ahead: int = 0
    ) -> None:
        arrays = {id(t): t for cache in caches for t in cache.tensors}.values()
        self._tensors = [ops.numpy(array) for array in arrays]
        block_bytes = max(t[0].nbytes for t in self._tensors)
        self._blocks_a_page = max(1, HUGE_PAGE // block_bytes)
        self._end = shared.first + shared.stride if shared else self._tensors[0].shape[0]
        self._ahead = ahead
        self._lock = threading.Lock()
        self._wanted = self._backed = shared.first if shared else 0
        self._thread: threading.Thread | None = None
        if ahead:
            self.reach(self._wanted)

    def reach(self, block: int) -> None:
        """Request the pages up to the one behind that of `block`, which a step writes."""
        pages = (block + self._ahead) // self._blocks_a_page + 2
        wanted = min(pages * self._blocks_a_page, self._end)
        if wanted <= self._wanted:
            return
        with self._lock:
            self._wanted = wanted
            if self._thread is None:
                # Not a daemon: Python ends those anywhere, even inside native code.
                self._thread = threading.Thread(target=self._run, name="kv-backing")
                self._thread.start()

    def wait(self) -> None:
        """Wait until all requested pages are backed."""
        if (thread := self._thread) is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._backed == self._wanted:
                    self._thread = None
                    return
                begin, self._backed = self._backed, self._wanted
            self._back(begin, self._backed)

    def _back(self, begin: int, end: int) -> None:
        for first in range(begin, end, self._blocks_a_page):
            for tensor in self._tensors:
                started = time.monotonic()
                if not threading.main_thread().is_alive():
                    return  # the process ends and waits for this thread
                if not back(tensor[first : min(first + self._blocks_a_page, end)]):
                    return  # pages are then backed on their first write
                time.sleep(PAUSE * (time.monotonic() - started))
