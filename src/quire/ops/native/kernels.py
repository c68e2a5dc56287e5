"""The native CPU kernels, by instruction set. Only `ops` imports `quire._native`.

The classes of this folder hold the ops: each checks what the kernels cannot (dtype, shape, layout),
and passes addresses on.
"""

from __future__ import annotations

from quire import _native
from quire.ops.isa import available_isas, cpu_features, emulated_isas

__all__ = [
    "Kernels",
    "OnPool",
    "Pool",
    "available_isas",
    "cpu_features",
    "emulated_isas",
    "native_kernels",
]

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
    """Ops of one instruction set's kernels, on one pool of threads.

    Args:
        kernels: the instruction set.
        pool: threads that share the work; None computes on the caller.
    """

    def __init__(self, kernels: Kernels, pool: Pool | None = None) -> None:
        self._kernels = kernels
        self._pool = pool if pool is not None else Pool(1)
