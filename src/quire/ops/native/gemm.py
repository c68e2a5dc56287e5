"""Linear layers on the native kernels: the pool of threads, packed weights, the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Self, TypedDict, Unpack, cast, get_args

import numpy as np
from msgspec.structs import astuple

from quire import _native
from quire.core.dtypes import FLOAT8_E4M3, FLOAT8_E5M2, FLOAT32, DType, HostArray, dtype_of
from quire.ops.array import address
from quire.ops.native.checks import (
    DTYPE_CODES,
    dense_rows,
    describe,
    float_bias,
    indices,
    result,
    view,
)
from quire.ops.native.codes import GROUPS, CodeKind, GroupedCodes
from quire.ops.native.kernels import Kernels, Pool
from quire.ops.packed_file import StoredLinear
from quire.ops.tuning import GemmTuning
from quire.ops.weights import GATED, Epilogue, LinearWeight

WeightKind = Literal["f32", "f16", "bf16", "s8", "s8_a16", "u4", "u6"]
"""What weights can be rounded to while they are packed."""
PackedKind = WeightKind | CodeKind | Literal["f8_e4m3", "f8_e5m2"]

_KINDS: dict[PackedKind, int] = {
    kind: getattr(_native, f"WEIGHT_{kind.upper()}")
    for literal in get_args(PackedKind)
    for kind in get_args(literal)
}
_NAMES = {code: kind for kind, code in _KINDS.items()}
_EPILOGUES = _native.EPILOGUES
_EPILOGUE_NAMES = {code: cast(Epilogue, name) for name, code in _EPILOGUES.items()}


Source = tuple[HostArray, HostArray, HostArray | None, HostArray | None, HostArray | None]
"""Codes, scales, zeros or offsets, codebook, permutation."""


class Form(TypedDict, total=False):
    """Options of every packed weight; see `PackedLinear`."""

    bias: HostArray | None
    epilogue: Epilogue
    experts: int


class PackedLinear:
    """epilogue(x @ weight.T + bias) with the weight packed once for the kernels.

    weight: [N, K] float32, bfloat16 or float16, or several of one dtype whose rows
        follow each other; they are copied and may be freed.
    bias: [N] or None, of any float dtype; added in float32 before the result is rounded.
    kind: "f32"; "f16" (weight rounded to float16, x not, arithmetic float32); "bf16" (weight and x
        are rounded to bfloat16, sums are float32); "s8" (W8A8: int8 weights with a scale a row, x
        quantized to int8 a row at each call, sums exact); "s8_a16" (W8A16: the same weights, x
        rounded to bfloat16, sums float32); "u4" (W4A8: 4-bit weights with a scale and an offset
        for each group along K, x as with "s8", the sums of a group exact); "u6" (the same with 6
        bits). The other kinds are made by `from_codes` and `from_float8` alone.
    group: of "u4" and "u6": 16, 32, 64 or 128.
    epilogue: what is done to the product, rounded to the result's dtype: the same bits as the
        operation of that name on its own. If it is gated ("silu_mul", "gelu_tanh_mul",
        "gelu_mul" …), weight is [gate rows; up rows], and the result has N / 2 columns.
    experts: how many have their N / experts rows in the weight, one after the other, each in the
        form of a weight of its own. More than one are for `native.moe`, or are heads, for
        `native.latent`.

    A row of the result depends on its row of x alone, to the last bit: not on the number of rows,
    their order, or the number of threads. The layers of a pool share its scratch memory: one
    thread at a time calls `forward`. Raises ValueError for other dtypes, shapes and
    groups, for empty weights, for "s8" with K above 65536, for a gated epilogue with an odd N, and
    for an N that `experts` do not divide.
    """

    __slots__ = ("_kernels", "_pool", "_weight", "columns", "dtype", "epilogue", "kind", "shape")

    def __init__(
        self,
        kernels: Kernels,
        pool: Pool,
        weight: HostArray | Sequence[HostArray],
        bias: HostArray | None = None,
        *,
        kind: WeightKind,
        epilogue: Epilogue = "none",
        group: int = 128,
        experts: int = 1,
    ) -> None:
        parts = [
            dense_rows(part) for part in ([weight] if isinstance(weight, np.ndarray) else weight)
        ]
        dtype, k = parts[0].dtype, parts[0].shape[1]
        for part in parts:
            if part.dtype != dtype or part.shape[1] != k:
                raise ValueError(f"weight has parts {describe(parts[0])} and {describe(part)}")
        n = sum(part.shape[0] for part in parts)
        bias = float_bias(bias, n)
        packed = _native.PackedWeight(
            kernels,
            pool,
            _KINDS[kind],
            _EPILOGUES[epilogue],
            [(address(part), part.shape[0], part.strides[0] // part.itemsize) for part in parts],
            DTYPE_CODES[dtype],
            k,
            0 if bias is None else address(bias),
            group,
            experts,
        )
        self._keep(kernels, pool, packed, dtype)

    def _keep(
        self, kernels: Kernels, pool: Pool, packed: _native.PackedWeight, dtype: DType
    ) -> Self:
        kind, epilogue, n, k = packed.shape[:4]
        self._kernels, self._pool, self._weight = kernels, pool, packed
        self.dtype, self.shape = dtype, (n, k)
        self.kind: PackedKind = _NAMES[kind]
        self.epilogue: Epilogue = _EPILOGUE_NAMES[epilogue]
        self.columns = n // self.experts // (2 if self.epilogue in GATED else 1)
        return self

    @classmethod
    def from_stored(
        cls, kernels: Kernels, pool: Pool, stored: StoredLinear, *, epilogue: Epilogue = "none"
    ) -> PackedLinear:
        """Return the weight in `stored`, with its bias. Raises ValueError for another epilogue."""
        linear = cls.__new__(cls)._keep(kernels, pool, stored.weight, dtype_of(stored.dtype))
        if linear.epilogue != epilogue:
            raise ValueError(f"the stored weight is not packed for {epilogue!r}")
        return linear

    @classmethod
    def from_int8(
        cls,
        kernels: Kernels,
        pool: Pool,
        codes: HostArray,
        scale: HostArray,
        *,
        kind: Literal["s8", "s8_a16"] = "s8",
        input_scale: float = 0.0,
        dtype: DType = FLOAT32,
        **form: Unpack[Form],
    ) -> PackedLinear:
        """Return a packed weight codes · scale, int8 [N, K] and float32 [N], unchanged.

        x is quantized with `input_scale`, round(x / input_scale), unless that is 0. `dtype` is that
        of rows that are looked up. Raises ValueError for what does not fit.
        """
        n = len(codes)
        if codes.dtype != np.int8 or scale.shape != (n,):
            raise ValueError(f"codes are {describe(codes)}, scales {describe(scale)}")
        source = (codes, scale, None, None, None)
        return _pack_codes(
            kernels, pool, kind, source, input_scale=input_scale, dtype=dtype, **form
        )

    @classmethod
    def from_codes(
        cls,
        kernels: Kernels,
        pool: Pool,
        weight: GroupedCodes,
        *,
        dtype: DType = FLOAT32,
        **form: Unpack[Form],
    ) -> PackedLinear:
        """Return a packed weight from one that is already quantized in groups.

        Scales and offsets are kept exactly where they come from float16, or from bfloat16 within
        a range of 2^32 a row; float32 is rounded to 11 significant bits, as are zero points.
        `dtype` is that of rows that are looked up. Raises ValueError for what does not fit.
        """
        codes, second = weight.codes, _native.NO_SECOND
        if codes.ndim != 2 or codes.dtype != np.uint8 or codes.size == 0:
            raise ValueError(f"codes are {describe(codes)}; wanted a uint8 [N, K]")
        largest = int(codes.max())
        if largest >> weight.bits:
            raise ValueError(f"codes reach {largest}; {weight.bits} bits hold less")
        if weight.group not in GROUPS:
            raise ValueError(f"a group of weights has {', '.join(map(str, GROUPS))}")
        n, k = codes.shape
        if weight.zeros is not None:
            second = _native.ZERO_POINTS
        elif weight.offsets is not None:
            second = _native.OFFSETS
        wanted = (n, -(-k // weight.group))
        for name, t in (
            ("scale", weight.scale),
            ("zeros", weight.zeros),
            ("offsets", weight.offsets),
        ):
            if t is not None and t.shape != wanted:
                raise ValueError(f"{name} are {describe(t)}; wanted {list(wanted)}")
        seconds = weight.offsets if weight.zeros is None else weight.zeros
        source = (codes, weight.scale, seconds, weight.codebook, weight.permutation)
        return _pack_codes(
            kernels, pool, weight.kind, source, groups=(weight.group, second, weight.zero),
            input_scale=weight.input_scale, dtype=dtype, **form,
        )  # fmt: skip

    @classmethod
    def from_float8(
        cls,
        kernels: Kernels,
        pool: Pool,
        codes: HostArray,
        scale: HostArray,
        *,
        group: int,
        dtype: DType = FLOAT32,
        **form: Unpack[Form],
    ) -> PackedLinear:
        """Return a packed weight of 8-bit floats, codes · scale, exactly; NaN stays NaN. W8A16: x
        is rounded to bfloat16, sums are float32.

        codes: [N, K], float8_e4m3fn or float8_e5m2. scale: float32 [N, 1] with a `group` of 0,
        else [N, ceil(K / group)] with 32, 64 or 128. `dtype` is that of rows that are looked up.
        Raises ValueError for what does not fit.
        """
        n, k = codes.shape
        kind: PackedKind = "f8_e4m3" if codes.dtype == FLOAT8_E4M3 else "f8_e5m2"
        if kind == "f8_e5m2" and codes.dtype != FLOAT8_E5M2:
            raise ValueError(f"codes are {describe(codes)}; wanted 8-bit floats")
        if scale.shape != (n, 1 if group == 0 else -(-k // group)):
            raise ValueError(f"scale is {describe(scale)}, for {[n, k]} in groups of {group}")
        source = (codes.view(np.uint8), scale, None, None, None)
        groups = (group, _native.NO_SECOND, 0)
        return _pack_codes(kernels, pool, kind, source, groups=groups, dtype=dtype, **form)

    @property
    def group(self) -> int:
        """Return how many weights share a scale; 0 if each row has one scale."""
        return self._weight.shape[4] if self.kind.startswith(("u", "f8")) else 0

    @property
    def experts(self) -> int:
        """Return the number of experts in the weight; 1 for a linear layer."""
        return self._weight.shape[10]

    def tune(self, tuned: Mapping[int, GemmTuning]) -> None:
        """Set what is tuned, by the most rows of x that it holds for; more rows than the largest
        have the kernel's own values. Results stay the same. Not while products run.

        Raises ValueError for values that no kernel can heed.
        """
        self._weight.tune([(rows, astuple(tuned[rows])) for rows in sorted(tuned)])

    @property
    def packed(self) -> _native.PackedWeight:
        """Return the native weight, for operations on several weights."""
        return self._weight

    @property
    def stored(self) -> StoredLinear:
        """Return the weight as it is stored in a file; `from_stored` takes it."""
        return StoredLinear(self._weight, str(self.dtype))

    def __repr__(self) -> str:
        return f"PackedLinear({self.shape[0]}, {self.shape[1]}, kind={self.kind!r})"

    @property
    def nbytes(self) -> int:
        """Return the bytes that a forward pass reads, padding included."""
        return self._weight.nbytes

    def unpack(self) -> HostArray:
        """Return the stored weight, rounded or quantized, as float32 [N, K]."""
        out = np.empty(self.shape, FLOAT32)
        self._weight.unpack(address(out))
        return out

    def lookup(self, ids: HostArray) -> HostArray:
        """Return rows `ids` (int64 [T]) of an embedding as [T, K] in the dtype that was packed;
        int8 is dequantized and rounded once.

        Raises ValueError for other ids, IndexError for one that is no row.
        """
        rows = indices("ids", ids)
        y = np.empty((ids.size, self.shape[1]), self.dtype)
        _native.embedding(self._pool, None, view(y), rows, None, self._weight, 0, 0)
        return y

    def forward(
        self, x: HostArray, *, dtype: DType | None = None, out: HostArray | None = None
    ) -> HostArray:
        """Return [..., columns] of `dtype`, or x's, for x [..., K]: float32, bfloat16 or float16.

        `out` is the contiguous result, apart from x, if given. Raises ValueError for other
        dtypes, shapes and layouts.
        """
        shape = x.shape
        x = self._rows(x)
        y = result(out, (*shape[:-1], self.columns), dtype if dtype is not None else x.dtype)
        _native.linear(self._kernels, self._pool, self._weight, view(y), view(x))
        return y

    def prepare(self, x: HostArray) -> None:
        """Round or quantize x as `forward` does before it multiplies; for measurements.

        Raises ValueError as `forward` does.
        """
        rows = self._rows(x)
        _native.prepare_linear(self._kernels, self._pool, self._weight, view(rows))

    def _rows(self, x: HostArray) -> HostArray:
        """Return x as dense rows [rows, K]."""
        k = self.shape[1]
        if x.dtype not in DTYPE_CODES or not x.shape or x.shape[-1] != k:
            raise ValueError(f"x is {describe(x)}; wanted a float [..., {k}]")
        if x.ndim != 2:
            x = x.reshape(-1, k)
        return x if x.strides[1] == x.itemsize else np.ascontiguousarray(x)


def _pack_codes(
    kernels: Kernels,
    pool: Pool,
    kind: PackedKind,
    source: Source,
    *,
    groups: tuple[int, int, int] = (0, _native.NO_SECOND, 0),
    input_scale: float = 0.0,
    dtype: DType,
    bias: HostArray | None = None,
    epilogue: Epilogue = "none",
    experts: int = 1,
) -> PackedLinear:
    """Return a packed weight with unchanged codes.

    Args:
        groups: their size, what a group has besides its scale, and the zero of all groups.
    """
    codes, scale, second, codebook, permutation = source
    n, k = codes.shape
    bias = float_bias(bias, n)
    if permutation is not None:
        if not np.array_equal(np.sort(permutation), np.arange(k)):
            raise ValueError("the permutation does not have every column once")
        permutation = permutation.astype(np.int32)
    kept = [
        None if t is None else np.ascontiguousarray(t)
        for t in (
            codes,
            scale.astype(FLOAT32, copy=False),
            None if second is None else second.astype(FLOAT32, copy=False),
            codebook,
            permutation,
        )
    ]
    packed = _native.PackedWeight(
        pool,
        (
            _KINDS[kind], _EPILOGUES[epilogue], n, k, *groups, permutation is not None,
            bias is not None, input_scale, experts,
        ),
        tuple(0 if t is None else address(t) for t in kept),
        0 if bias is None else address(bias),
    )  # fmt: skip
    return PackedLinear.__new__(PackedLinear)._keep(kernels, pool, packed, dtype)


def packed_linear(weight: LinearWeight) -> PackedLinear:
    """Return a weight of this provider. Raises TypeError for another provider's."""
    if not isinstance(weight, PackedLinear):
        raise TypeError(f"native kernels have no product with a {type(weight).__name__}")
    return weight
