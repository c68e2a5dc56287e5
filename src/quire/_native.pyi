"""Native CPU kernels. Only `quire.ops.native` imports this module; addresses are not checked."""

from typing import final

FLOAT32: int
BFLOAT16: int
FLOAT16: int

@final
class Kernels:
    """One instruction set's kernels. The GIL is released while they run.

    `dtype` is one of the codes above and holds for every tensor of a call; pointers are
    addresses of the first element; strides are in elements, from row to row.
    """

    @property
    def isa(self) -> str: ...
    def rms_norm(
        self,
        dtype: int,
        y: int,
        x: int,
        weight: int,
        rows: int,
        cols: int,
        y_stride: int,
        x_stride: int,
        eps: float,
        /,
    ) -> None:
        """y = weight * (x / rms(x)) a row; `y` may be `x`."""

    def add_rms_norm(
        self,
        dtype: int,
        y: int,
        residual_out: int,
        x: int,
        residual: int,
        weight: int,
        rows: int,
        cols: int,
        y_stride: int,
        residual_out_stride: int,
        x_stride: int,
        residual_stride: int,
        eps: float,
        /,
    ) -> None:
        """residual_out = x + residual, y = weight * (residual_out / rms(residual_out)) a row.

        `residual_out` may be `residual` or `x`, and `y` may be the other one.
        """

def detect() -> list[str]:
    """Names of the instruction sets that this machine can run, least capable first."""

def features() -> dict[str, bool]:
    """Processor features that both the processor and the operating system offer."""

def table(name: str, /) -> Kernels:
    """The kernels of an instruction set.

    Raises ValueError, naming what is available, for one that is unknown or cannot run here.
    """
