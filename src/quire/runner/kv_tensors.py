"""The tensors behind the paged KV cache."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from quire.core.config import ModelConfig
from quire.core.dtypes import BFLOAT16, DType
from quire.ops.interface import Ops
from quire.ops.memory import HUGE_PAGE, back
from quire.ops.metadata import KVCache

PAUSE = 7.0
"""Rests between two pages, in units of the time that one took: a step loses little of its cores."""


def allocate_kv_caches(
    ops: Ops,
    model: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: DType,
    *,
    scales: bool = False,
    units: Sequence[tuple[float, float]] | None = None,
) -> list[KVCache]:
    """Allocate keys and values of every layer, [num_blocks, num_kv_heads, block_size, head_dim].

    Layers that are not causal share one memory: no step needs what another has stored.

    With `scales`, and with dtype int8 always, there are also their scales, bfloat16 [num_blocks,
    num_kv_heads, block_size]. 8-bit floats without them are in `units` of k and v, a layer each;
    of 1 if None.

    On a CPU the memory is not written to: the operating system backs it with RAM where a token
    first lands, or ahead of that (`KVBacking`), in huge pages (`ops.memory`), of which each holds
    one tensor's part of many blocks. Scattered blocks of one layer share few pages, so that
    attention need not wait for their addresses. What a block holds before its first
    token means nothing, and is never read.
    """
    shape = (num_blocks, model.num_key_value_heads, block_size, model.head_dim)
    caches = []
    for layer in range(model.kv_layers):
        cache = KVCache(ops.empty(shape, dtype), ops.empty(shape, dtype))
        if scales or dtype == np.int8:
            k_scale, v_scale = (ops.empty(shape[:3], BFLOAT16) for _ in range(2))
            cache = cache._replace(k_scale=k_scale, v_scale=v_scale)
        elif units is not None and dtype.itemsize == 1:
            k_unit, v_unit = units[layer]
            cache = cache._replace(k_unit=k_unit, v_unit=v_unit)
        caches.append(cache)
    return caches if model.causal else [KVCache(*caches[0]) for _ in range(model.num_hidden_layers)]


class KVBacking:
    """Has the KV cache's next huge pages backed with RAM before a step writes to them.

    A page holds some 64 blocks' part of one tensor, so that a sequence which grows into new blocks
    grows into new pages of all layers at once: where the system is slow to give them (a virtual
    machine may take 5 ms a page) that one token would wait for all of them. They are asked for in
    a thread of its own while the pages before them are filled.

    Args:
        ops: on the host.
        caches: every layer's.
    """

    def __init__(self, ops: Ops, caches: list[KVCache]) -> None:
        arrays = {id(t): t for cache in caches for t in cache.tensors}.values()
        self._tensors = [ops.numpy(array) for array in arrays]
        block_bytes = max(t[0].nbytes for t in self._tensors)
        self._blocks_a_page = max(1, HUGE_PAGE // block_bytes)
        self._num_blocks = self._tensors[0].shape[0]
        self._lock = threading.Lock()
        self._wanted = self._backed = 0
        self._thread: threading.Thread | None = None

    def reach(self, block: int) -> None:
        """A step writes to `block`: the page behind the one it lies in will be wanted soon."""
        pages = block // self._blocks_a_page + 2
        wanted = min(pages * self._blocks_a_page, self._num_blocks)
        if wanted <= self._wanted:
            return
        with self._lock:
            self._wanted = wanted
            if self._thread is None:
                # No daemon: Python ends those wherever they are, also inside native code.
                self._thread = threading.Thread(target=self._run, name="kv-backing")
                self._thread.start()

    def wait(self) -> None:
        """Until all that was asked for is there."""
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
                    return  # the process ends, and waits for this thread
                if not back(tensor[first : min(first + self._blocks_a_page, end)]):
                    return  # then pages come as they are written to
                time.sleep(PAUSE * (time.monotonic() - started))
