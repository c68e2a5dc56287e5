"""The native CPU kernels, by instruction set. Only `ops` imports `quire._native`.

The functions of the `native_*` modules take them: each checks what the kernels cannot (device,
dtype, shape, layout), and passes addresses on.
"""

from quire import _native
from quire.ops.isa import available_isas, cpu_features, emulated_isas

__all__ = ["NativeKernels", "available_isas", "cpu_features", "emulated_isas"]


class NativeKernels:
    """The kernels of one instruction set.

    `isa` is a name out of `available_isas()`; without one, the most capable is taken. Raises
    ValueError, naming what is available, for one that is unknown or that this machine lacks.
    """

    def __init__(self, isa: str | None = None) -> None:
        self._kernels = _native.table(isa if isa is not None else _native.detect()[-1])

    def __repr__(self) -> str:
        return f"NativeKernels({self.isa!r})"

    @property
    def handle(self) -> _native.Kernels:
        """Return the table that native functions take."""
        return self._kernels

    @property
    def isa(self) -> str:
        """Return the name of the instruction set."""
        return self._kernels.isa
