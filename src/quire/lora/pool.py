"""The adapters in memory: loaded in the background, and held while a sequence uses them.

    adapter     ── number ──►  a row in every layer's `LoraTable`
       ▲ read, again if it was evicted            ▲
    LoRARequest                              sequences that run

On a CPU, an adapter in memory needs no copy. For a GPU, it is copied when it gets its number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import RLock
from typing import NamedTuple

import numpy as np

from quire.core.dtypes import DType, HostArray, converted
from quire.core.errors import CheckpointError, QuireError
from quire.core.lora import LoRAConfig, LoRARequest
from quire.lora.peft import Delta, LoRATarget, read_adapter
from quire.ops.lora import LoraTable
from quire.system.records import dataclass

logger = logging.getLogger(__name__)


class _Part(NamedTuple):
    target: LoRATarget
    a: HostArray
    b: HostArray
    scale: float


class _Loaded(NamedTuple):
    parts: list[_Part]
    digest: bytes


@dataclass(slots=True)
class _Held:
    """An adapter in memory, and the number of sequences that use it."""

    number: int
    digest: bytes
    users: int = 0
    removed: bool = False


class AdapterPool:
    """At most `max_cpu_loras` adapters. The least recently used one that is not in use is evicted.

    It is thread-safe. Adapters are identified by their `lora_int_id`.

    Args:
        tables: stem of a layer → its adapters, with `max_cpu_loras` numbers.
        targets: module of the model → its layer and part.
        dtype: the model's dtype.
        cut: returns a layer's change as changes of the tables' parts.
    """

    def __init__(
        self,
        tables: Mapping[str, LoraTable],
        targets: Mapping[str, LoRATarget],
        limits: LoRAConfig,
        dtype: DType,
        cut: Callable[[Delta], list[Delta]] | None = None,
    ) -> None:
        self._cut = cut
        self._tables = tables
        self._targets = targets
        self._limits = limits
        self._dtype = dtype
        self._held: dict[int, _Held] = {}
        """Least recently used first."""
        self._free = list(range(limits.max_cpu_loras))[::-1]
        self._loading: dict[int, Future[_Loaded]] = {}
        self._thread = ThreadPoolExecutor(1, "quire-lora")  # starts with the first adapter
        self._lock = RLock()

    def add(self, request: LoRARequest, *, wait: bool = False) -> bytes | None:
        """Load an adapter. Return its digest when it is loaded; until then None, unless `wait`.

        If all adapters in memory are in use, it is read again when a sequence needs it.

        Raises:
            QuireError: it cannot be served; see `peft.read_adapter`.
        """
        with self._lock:
            name = request.lora_int_id
            if name in self._held:
                return self._held[name].digest
            future = self._begin(request)
            if not (wait or future.done()):
                return None
            future.exception()  # waits
            loaded = self._loading.pop(name).result()
            self._install(name, loaded)
            return loaded.digest

    def prefetch(self, request: LoRARequest) -> Future[_Loaded] | None:
        """Start loading an adapter that a sequence will need. Return None if no wait is needed, or
        if all others are in use; then the sequence's first step waits."""
        with self._lock:
            if request.lora_int_id in self._held:
                return None
            for name in [name for name, future in self._loading.items() if future.done()]:
                future = self._loading.pop(name)
                if future.exception() is None:
                    self._install(name, future.result())
            if request.lora_int_id in self._held:
                return None
            in_use = sum(held.users > 0 for held in self._held.values())
            if in_use + len(self._loading) >= self._limits.max_cpu_loras:
                return self._loading.get(request.lora_int_id)
            return self._begin(request)

    def acquire(self, request: LoRARequest) -> int:
        """Return the number of an adapter, valid until `release`; load it if needed.

        Raises:
            QuireError: it cannot be loaded.
        """
        with self._lock:
            name = request.lora_int_id
            if name not in self._held:
                future = self._begin(request)
                try:
                    loaded = future.result()
                finally:
                    self._loading.pop(name, None)
                self._install(name, loaded)
            held = self._held[name] = self._held.pop(name)
            held.users += 1
            return held.number

    def release(self, number: int) -> None:
        """Note that a sequence stopped using the adapter with this number."""
        with self._lock:
            name, held = next(
                (name, held) for name, held in self._held.items() if held.number == number
            )
            held.users -= 1
            if held.removed and not held.users:
                self._drop(name)

    def remove(self, name: int) -> None:
        """Free an adapter when no sequence uses it; ignore unknown ones."""
        with self._lock:
            self._loading.pop(name, None)
            held = self._held.get(name)
            if held is None:
                return
            held.removed = True
            if not held.users:
                self._drop(name)

    def held(self) -> dict[int, int]:
        """Return adapter in memory → number of sequences that use it. A removed adapter is listed
        while it is in use."""
        with self._lock:
            return {name: held.users for name, held in self._held.items()}

    def shutdown(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self, request: LoRARequest) -> Future[_Loaded]:
        found = self._loading.get(request.lora_int_id)
        if found is None:
            found = self._thread.submit(self._load, request)
            self._loading[request.lora_int_id] = found
        return found

    def _load(self, request: LoRARequest) -> _Loaded:
        """Read and convert the files, in the loading thread."""
        try:
            adapter = read_adapter(
                Path(request.lora_path), self._targets, self._limits.max_lora_rank
            )
        except (OSError, ValueError) as error:
            if isinstance(error, QuireError):
                raise
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise CheckpointError(f"The folder cannot be read: {reason}.") from error
        if request.digest and adapter.digest != request.digest:
            raise CheckpointError(
                f"The files of adapter {request.lora_name!r} have changed since it was loaded.",
                fix="Unload the adapter, and load it again.",
            )
        parts: list[_Part] = []
        for whole in adapter.deltas:
            if whole.target.stem not in self._tables:  # a layer of another pipeline stage
                continue
            parts += map(self._part, self._cut(whole) if self._cut else [whole])
        return _Loaded(parts, adapter.digest)

    def _part(self, delta: Delta) -> _Part:
        a, b = (converted(half, self._dtype) for half in (delta.a, delta.b))
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise CheckpointError(
                f"{delta.module} has values that {self._dtype} cannot hold.",
                fix="Use --dtype bfloat16 or --dtype float32.",
                param="--dtype",
            )
        # Copies, because the files are unmapped.
        return _Part(delta.target, a.copy(), b.copy(), delta.scale)

    def _install(self, name: int, loaded: _Loaded) -> None:
        """Give an adapter a number that is not in use, if there is one."""
        if not self._free:
            idle = next((other for other, held in self._held.items() if not held.users), None)
            if idle is None:
                return
            self._drop(idle)
        number = self._free.pop()
        for part in loaded.parts:
            table = self._tables[part.target.stem]
            table.set(number, part.target.part, part.a, part.b, part.scale)
        self._held[name] = _Held(number, loaded.digest)

    def _drop(self, name: int) -> None:
        held = self._held.pop(name)
        assert not held.users, f"adapter {name} is in use"
        for table in self._tables.values():
            table.clear(held.number)
        self._free.append(held.number)
