"""The native CPU kernels, by instruction set. Only `ops` imports `quire._native`.

The functions of the `native_*` modules take them: each checks what the kernels cannot (device,
dtype, shape, layout), and passes addresses on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from quire import _native
from quire.ops.isa import available_isas, cpu_features, emulated_isas

__all__ = [
    "Kernels",
    "OnPool",
    "Pool",
    "available_isas",
    "cpu_features",
    "emulated_isas",
    "method",
    "native_kernels",
]

P = ParamSpec("P")
R = TypeVar("R")
Kernels = _native.Kernels
"""The kernels of one instruction set, which `isa` names."""
Pool = _native.Pool
"""The threads that compute, the caller being the first: one pool per engine. A waiting thread spins
for some 50 µs and then sleeps."""


def native_kernels(isa: str | None = None) -> Kernels:
    """Return the kernels of `isa`, a name in `available_isas()`; the most capable if None.

    Raises:
        ValueError: this machine cannot run `isa`, or nobody knows it; it names what is available.
    """
    return _native.table(isa if isa is not None else _native.detect()[-1])


class OnPool:
    """Ops of one instruction set's kernels, on one pool of threads."""

    _kernels: Kernels
    _pool: Pool


def method(op: Callable[Concatenate[Kernels, Pool, P], R]) -> Callable[Concatenate[OnPool, P], R]:
    """Return the method that runs `op` on its object's kernels and threads."""

    def run(self: OnPool, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return op(self._kernels, self._pool, *args, **kwargs)

    return run
