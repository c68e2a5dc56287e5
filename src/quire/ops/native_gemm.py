"""Linear layers on the native kernels: the pool of threads, packed weights, the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from msgspec.structs import astuple
from torch import Tensor

from quire import _native
from quire.ops.native import NativeKernels
from quire.ops.native_checks import indices
from quire.ops.packed_file import StoredLinear
from quire.ops.reference import Epilogue
from quire.ops.tuning import GemmTuning

WeightKind = Literal["f32", "f16", "bf16", "s8", "s8_a16", "u4"]

_KINDS: dict[WeightKind, int] = {
    "f32": _native.WEIGHT_F32,
    "f16": _native.WEIGHT_F16,
    "bf16": _native.WEIGHT_BF16,
    "s8": _native.WEIGHT_S8,
    "s8_a16": _native.WEIGHT_S8_A16,
    "u4": _native.WEIGHT_U4,
}
_NAMES = {code: kind for kind, code in _KINDS.items()}
_EPILOGUES: dict[Epilogue, int] = {
    "none": _native.NO_EPILOGUE,
    "silu_mul": _native.SILU_MUL,
    "gelu": _native.GELU,
    "gelu_tanh": _native.GELU_TANH,
    "relu": _native.RELU,
}
_FLOATS = {
    torch.float32: _native.FLOAT32,
    torch.bfloat16: _native.BFLOAT16,
    torch.float16: _native.FLOAT16,
}


class Pool(_native.Pool):
    """The threads that compute: `Pool(threads)`, the caller being the first of them.

    One an engine. A waiting thread spins for some 50 µs and then sleeps. Raises ValueError unless
    1 <= threads <= 1024.
    """


class PackedLinear:
    """epilogue(x @ weight.T + bias) with the weight packed once for the kernels.

    weight: [N, K] float32, bfloat16 or float16 on the CPU, or several of one dtype whose rows
        follow each other; they are copied and may be freed.
    bias: [N] or None, of any float dtype; added in float32 before the result is rounded.
    kind: "f32"; "f16" (weight rounded to float16, x not, arithmetic float32); "bf16" (weight and x
        are rounded to bfloat16, sums are float32); "s8" (W8A8: int8 weights with a scale a row, x
        quantized to int8 a row at each call, sums exact); "s8_a16" (W8A16: the same weights, x
        rounded to bfloat16, sums float32); "u4" (W4A8: 4-bit weights with a scale and an offset
        for each group along K, x as with "s8", the sums of a group exact).
    group: of "u4": 32, 64 or 128.
    epilogue: what is done to the product, rounded to the result's dtype: the same bits as the
        operation of that name on its own. "silu_mul": weight is [gate rows; up rows], and the
        result has N / 2 columns.

    A row of the result depends on its row of x alone, to the last bit: not on the number of rows,
    their order, or the number of threads. The layers of a pool share its scratch memory: one
    thread at a time calls `forward`. Raises ValueError for other dtypes, devices, shapes and
    groups, for empty weights, for "s8" with K above 65536, and for "silu_mul" with an odd N.
    """

    __slots__ = ("_kernels", "_pool", "_weight", "columns", "dtype", "epilogue", "kind", "shape")

    def __init__(
        self,
        kernels: NativeKernels,
        pool: Pool,
        weight: Tensor | Sequence[Tensor],
        bias: Tensor | None = None,
        *,
        kind: WeightKind,
        epilogue: Epilogue = "none",
        group: int = 128,
    ) -> None:
        parts = [_rows_of(part) for part in ([weight] if isinstance(weight, Tensor) else weight)]
        dtype, k = parts[0].dtype, parts[0].shape[1]
        for part in parts:
            if part.dtype != dtype or part.shape[1] != k:
                raise ValueError(f"weight has parts {_describe(parts[0])} and {_describe(part)}")
        n = sum(part.shape[0] for part in parts)
        bias = _bias(bias, n)
        packed = _native.PackedWeight(
            kernels.handle,
            pool,
            _KINDS[kind],
            _EPILOGUES[epilogue],
            [(part.data_ptr(), part.shape[0], part.stride(0)) for part in parts],
            _FLOATS[dtype],
            k,
            0 if bias is None else bias.data_ptr(),
            group,
        )
        self._keep(kernels, pool, packed, kind, (n, k), dtype, epilogue)

    def _keep(
        self,
        kernels: NativeKernels,
        pool: Pool,
        packed: _native.PackedWeight,
        kind: WeightKind,
        shape: tuple[int, int],
        dtype: torch.dtype,
        epilogue: Epilogue,
    ) -> None:
        self._kernels = kernels.handle
        self._pool = pool
        self._weight = packed
        self.kind: WeightKind = kind
        self.shape: tuple[int, int] = shape
        self.dtype: torch.dtype = dtype
        self.epilogue: Epilogue = epilogue
        self.columns = shape[0] // 2 if epilogue == "silu_mul" else shape[0]

    @classmethod
    def from_stored(
        cls,
        kernels: NativeKernels,
        pool: Pool,
        stored: StoredLinear,
        *,
        epilogue: Epilogue = "none",
    ) -> PackedLinear:
        """What `stored` gave, bias included. Raises ValueError where it has another epilogue."""
        kind, packed_epilogue, n, k = stored.shape[:4]
        if packed_epilogue != _EPILOGUES[epilogue]:
            raise ValueError(f"the stored weight is not packed for {epilogue!r}")
        dtype = getattr(torch, stored.dtype)
        linear = cls.__new__(cls)
        linear._keep(kernels, pool, stored.weight, _NAMES[kind], (n, k), dtype, epilogue)
        return linear

    @classmethod
    def from_int4(
        cls,
        kernels: NativeKernels,
        pool: Pool,
        q: Tensor,
        scale: Tensor,
        *,
        zero: Tensor | None = None,
        offset: Tensor | None = None,
        group: int,
        bias: Tensor | None = None,
        epilogue: Epilogue = "none",
        dtype: torch.dtype = torch.float32,
    ) -> PackedLinear:
        """A weight that is 4 bits already: (q - zero) * scale or q * scale + offset, as "u4".

        q: uint8 [N, K], 0 to 15. scale, and zero (whole numbers up to 2048) or offset: of any
        float or integer dtype, [N, ceil(K / group)]. Kept exactly where they come from float16,
        or from bfloat16 within a range of 2^32 a row; float32 is rounded to 11 significant bits.
        `dtype` is that of rows that are looked up.
        Raises ValueError for what does not fit.
        """
        if q.ndim != 2 or q.dtype != torch.uint8 or not q.is_cpu or q.numel() == 0:
            raise ValueError(f"q is {_describe(q)}; wanted a uint8 [N, K] on the CPU")
        if int(q.max()) > 15:
            raise ValueError(f"q reaches {int(q.max())}; 4 bits hold 0 to 15")
        if (zero is None) == (offset is None):
            raise ValueError("either zero or offset is wanted, not both")
        n, k = q.shape
        wanted = (n, -(-k // group))
        second = zero if offset is None else offset
        assert second is not None
        for name, t in (("scale", scale), ("zero or offset", second)):
            if t.shape != wanted or not t.is_cpu:
                raise ValueError(f"{name} is {_describe(t)}; wanted {list(wanted)} on the CPU")
        bias = _bias(bias, n)
        q, scale, second = (
            q.contiguous(),
            scale.to(torch.float32).contiguous(),
            second.to(torch.float32).contiguous(),
        )
        packed = _native.PackedWeight(
            pool,
            _EPILOGUES[epilogue],
            q.data_ptr(),
            scale.data_ptr(),
            second.data_ptr(),
            zero is not None,
            n,
            k,
            group,
            0 if bias is None else bias.data_ptr(),
        )
        linear = cls.__new__(cls)
        linear._keep(kernels, pool, packed, "u4", (n, k), dtype, epilogue)
        return linear

    @property
    def group(self) -> int:
        """Of "u4"; 0 for the other kinds."""
        return self._weight.shape[4] if self.kind == "u4" else 0

    def tune(self, tuned: Mapping[int, GemmTuning]) -> None:
        """Set what is tuned, by the most rows of x that it holds for; more rows than the largest
        have the kernel's own values. Results stay the same. Not while products run.

        Raises ValueError for values that no kernel can heed.
        """
        self._weight.tune([(rows, astuple(tuned[rows])) for rows in sorted(tuned)])

    @property
    def packed(self) -> _native.PackedWeight:
        """For operations that compute several weights in one call."""
        return self._weight

    @property
    def stored(self) -> StoredLinear:
        """What may be kept in a file, and be given in the weight's place."""
        return StoredLinear(self._weight, str(self.dtype).removeprefix("torch."))

    def __repr__(self) -> str:
        return f"PackedLinear({self.shape[0]}, {self.shape[1]}, kind={self.kind!r})"

    @property
    def nbytes(self) -> int:
        """Bytes that a forward pass reads, padding included."""
        return self._weight.nbytes

    def unpack(self) -> Tensor:
        """The weight as it is stored, rounded or quantized: float32 [N, K]."""
        out = torch.empty(self.shape)
        self._weight.unpack(out.data_ptr())
        return out

    def lookup(self, ids: Tensor) -> Tensor:
        """Rows `ids` (int64 [T]) as an embedding: [T, K] of the dtype that was packed; int8 is
        dequantized and rounded once.

        Raises ValueError for other ids, IndexError for one that is no row.
        """
        rows = indices("ids", ids)
        y = torch.empty(rows, self.shape[1], dtype=self.dtype)
        _native.packed_embedding(
            self._pool, self._weight, _FLOATS[self.dtype], y.data_ptr(), ids.data_ptr(), rows
        )
        return y

    def forward(
        self, x: Tensor, *, dtype: torch.dtype | None = None, out: Tensor | None = None
    ) -> Tensor:
        """[..., K] float32, bfloat16 or float16 → [..., columns] of `dtype`, x's unless given.

        `out` is the contiguous result, apart from x, if given. Raises ValueError for other
        dtypes, devices, shapes and layouts.
        """
        columns, shape = self.columns, x.shape
        x = self._rows(x)
        y = _output(out, (*shape[:-1], columns), dtype if dtype is not None else x.dtype)
        _native.linear(
            self._kernels,
            self._pool,
            self._weight,
            y.data_ptr(),
            _FLOATS[y.dtype],
            columns,
            *_place(x),
        )
        return y

    def prepare(self, x: Tensor) -> None:
        """What `forward` does to x before it multiplies, rounding or quantizing it: to be measured.

        Raises ValueError as `forward` does.
        """
        _native.prepare_linear(self._kernels, self._pool, self._weight, *_place(self._rows(x)))

    def _rows(self, x: Tensor) -> Tensor:
        """x as dense rows [rows, K]."""
        k = self.shape[1]
        if x.dtype not in _FLOATS or not x.is_cpu or not x.shape or x.shape[-1] != k:
            raise ValueError(f"x is {_describe(x)}; wanted a float [..., {k}] on the CPU")
        if x.ndim != 2:
            x = x.reshape(-1, k)
        return x if x.stride(1) == 1 else x.contiguous()


def _place(x: Tensor) -> tuple[int, int, int, int]:
    """Address, dtype, stride and number of x's rows."""
    rows, k = x.shape
    return x.data_ptr(), _FLOATS[x.dtype], x.stride(0) if rows > 1 else k, rows


def _rows_of(weight: Tensor) -> Tensor:
    """The weight, or a copy of it, with each row contiguous."""
    if weight.ndim != 2 or not weight.is_cpu or weight.dtype not in _FLOATS:
        raise ValueError(f"weight is {_describe(weight)}; wanted a float [N, K] on the CPU")
    return weight if weight.stride(1) == 1 else weight.contiguous()


def _bias(bias: Tensor | None, n: int) -> Tensor | None:
    """The bias as contiguous float32 [n]. Raises ValueError for another shape or dtype."""
    if bias is None:
        return None
    if bias.shape != (n,) or not bias.is_cpu or not bias.is_floating_point():
        raise ValueError(f"bias is {_describe(bias)}; wanted a float [{n}] on the CPU")
    return bias.to(torch.float32).contiguous()


def _output(out: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A result tensor of the shape and dtype: `out`, once it is seen to fit, or a new one."""
    if dtype not in _FLOATS:
        raise ValueError(f"the result cannot be {dtype}; wanted a float of 16 or 32 bits")
    if out is None:
        return torch.empty(shape, dtype=dtype)
    if out.shape != shape or out.dtype != dtype or not out.is_cpu or not out.is_contiguous():
        raise ValueError(f"out is {_describe(out)}; wanted contiguous {dtype} {list(shape)}")
    return out


def _describe(t: Tensor) -> str:
    layout = "" if t.is_contiguous() else ", not contiguous"
    return f"{t.dtype} {list(t.shape)} on {t.device}{layout}"
