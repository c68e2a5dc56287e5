"""A mixture of experts on the native kernels: each expert in use is read once per step."""

from __future__ import annotations

import numpy as np

from quire import _native
from quire.core.dtypes import FLOAT32, DType, HostArray
from quire.core.layers import RouteSpec
from quire.ops.array import address
from quire.ops.native.checks import INT64, contiguous, describe, view
from quire.ops.native.gemm import packed_linear
from quire.ops.native.kernels import OnPool
from quire.ops.weights import LinearWeight


class MoeKernels(OnPool):
    """The ops of a mixture of experts."""

    def route(
        self,
        logits: HostArray,
        bias: HostArray | None,
        spec: RouteSpec,
        factors: HostArray | None = None,
    ) -> tuple[HostArray, HostArray]:
        """`Ops.route`. A row's bits do not depend on the others.

        Raises ValueError for dtypes, shapes and layouts that do not fit.
        """
        given, count = contiguous("logits", logits, 2), logits.shape[1]
        spec.check(count)
        for name, vector in (("bias", bias), ("factors", factors)):
            if vector is not None:
                _expect(name, vector, FLOAT32, (count,))
        experts = np.empty((len(logits), spec.top_k), INT64)
        weights = np.empty(experts.shape, FLOAT32)
        rules = (
            spec.scores == "sigmoid", spec.renormalize, spec.epsilon, spec.least, spec.num_groups,
            spec.top_groups, spec.group_score == "top2", spec.scale, spec.band,
        )  # fmt: skip
        _native.route(
            self._kernels, self._pool, address(experts), view(weights), given,
            0 if bias is None else address(bias), 0 if factors is None else address(factors), rules,
        )  # fmt: skip
        return experts, weights

    def moe(
        self,
        x: HostArray,
        experts: HostArray,
        weights: HostArray,
        gate_up: LinearWeight,
        down: LinearWeight,
        dtype: DType | None = None,
        weight_on_input: bool = False,
    ) -> HostArray:
        """`Ops.moe`. A row's bits do not depend on the others, nor on their number.

        Raises ValueError for dtypes, shapes and layouts that do not fit, IndexError for an expert
        that is not there.
        """
        rows = contiguous("x", x, 2)
        _expect("experts", experts, INT64, (len(x), *experts.shape[1:]))
        _expect("weights", weights, FLOAT32, experts.shape)
        y = np.empty(x.shape, x.dtype if dtype is None else dtype)
        _native.moe(
            self._kernels, self._pool, packed_linear(gate_up).packed, packed_linear(down).packed,
            contiguous("y", y, 2), rows, address(experts), view(weights), weight_on_input,
        )  # fmt: skip
        return y


def _expect(name: str, x: HostArray, dtype: DType, shape: tuple[int, ...]) -> None:
    if x.dtype != dtype or x.shape != shape or not x.flags.c_contiguous:
        raise ValueError(f"{name} is {describe(x)}; wanted contiguous {dtype} {list(shape)}")
