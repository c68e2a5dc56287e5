"""Recurrent layers on the native kernels; `torch_ops.recurrent` documents each op in full.

A row's bits do not depend on the others, nor on how its sequence is cut into steps. Raises
ValueError for dtypes, shapes and layouts that do not fit, IndexError for a state slot that does not
exist.
"""

from __future__ import annotations

import numpy as np

from quire import _native
from quire.core.dtypes import FLOAT32, HostArray
from quire.ops.array import address
from quire.ops.metadata import AttentionMetadata, Convolution, DeltaRules, GatedNorm, ScanRules
from quire.ops.native.checks import INT32, INT64, contiguous, describe, matrix
from quire.ops.native.kernels import OnPool

_CONVOLUTIONS = {"none": 0, "silu": 1, "gated": 2}


class RecurrentKernels(OnPool):
    """The ops of recurrent layers."""

    def causal_conv1d(
        self,
        x: HostArray,
        conv: Convolution[HostArray],
        state: HostArray,
        meta: AttentionMetadata[HostArray],
    ) -> HostArray:
        weight, bias, kind, first = conv
        width, channels = weight.shape
        taken = columns("x", x, first, channels * (3 if kind == "gated" else 1))
        if bias is not None:
            expect_floats("bias", bias, (channels,))
        expect_floats("state", state, (len(state), width - 1, channels))
        y = np.empty((len(x), channels), x.dtype)
        _native.causal_conv1d(
            self._kernels, self._pool, contiguous("y", y, 2), taken,
            contiguous("weight", weight, 2), 0 if bias is None else address(bias), address(state),
            states_of(meta, len(x), len(state)), _CONVOLUTIONS[kind],
        )  # fmt: skip
        return y

    def gated_delta_rule(
        self,
        qkv: HostArray,
        decay: HostArray,
        beta: HostArray,
        rules: DeltaRules[HostArray],
        state: HostArray,
        meta: AttentionMetadata[HostArray],
    ) -> HostArray:
        slots, heads, rows, wide = state.shape
        expect_floats("state", state, state.shape)
        y = np.empty((len(qkv), heads * wide), qkv.dtype)
        _native.gated_delta_rule(
            self._kernels, self._pool, contiguous("y", y, 2), contiguous("qkv", qkv, 2),
            columns("decay", decay, rules.decay, len(rules.bias)),
            columns("beta", beta, rules.beta, heads), contiguous("rate", rules.rate, 1),
            contiguous("bias", rules.bias, 1), address(state), states_of(meta, len(qkv), slots),
            (heads, rows, wide, rules.key_heads),
        )  # fmt: skip
        return y

    def mamba2_scan(
        self,
        xbc: HostArray,
        dt: HostArray,
        rules: ScanRules[HostArray],
        state: HostArray,
        meta: AttentionMetadata[HostArray],
    ) -> HostArray:
        slots, heads, rows, wide = state.shape
        expect_floats("state", state, state.shape)
        y = np.empty((len(xbc), heads * wide), xbc.dtype)
        _native.mamba2_scan(
            self._kernels, self._pool, contiguous("y", y, 2), contiguous("xbc", xbc, 2),
            columns("dt", dt, rules.first, heads), contiguous("rate", rules.rate, 1),
            contiguous("skip", rules.skip, 1), contiguous("bias", rules.bias, 1), address(state),
            states_of(meta, len(xbc), slots), (heads, rows, wide, rules.groups), *rules.limits,
        )  # fmt: skip
        return y

    def gated_norm(self, x: HostArray, gate: HostArray, norm: GatedNorm[HostArray]) -> HostArray:
        weight, rows, y = norm.weight, matrix("x", x), np.empty(x.shape, x.dtype)
        if weight is not None:
            expect_floats("weight", weight, weight.shape)
        group = x.shape[1] if weight is None else weight.shape[-1]
        _native.gated_norm(
            self._kernels, self._pool, contiguous("y", y, 2), rows,
            columns("gate", gate, norm.first, x.shape[1] // norm.each),
            0 if weight is None else address(weight), 0 if weight is None else weight.size,
            group, norm.eps, _GATES.index(norm.kind), norm.norm_first, norm.each,
        )  # fmt: skip
        return y


_GATES = ("sigmoid", "silu", "factor")
"""In the order of `Gate` in csrc/cpu/fused.h."""


def columns(name: str, x: HostArray, first: int, count: int) -> _native.Matrix:
    """Return the view of `count` columns of x from `first` on."""
    if x.ndim != 2 or first < 0 or first + count > x.shape[1]:
        raise ValueError(f"{name} is {describe(x)}; wanted columns {first} to {first + count}")
    return matrix(name, x[:, first : first + count])


def expect_floats(name: str, x: HostArray, shape: tuple[int, ...]) -> None:
    if x.dtype != FLOAT32 or x.shape != shape or not x.flags.c_contiguous:
        raise ValueError(f"{name} is {describe(x)}; wanted contiguous float32 {list(shape)}")


def states_of(meta: AttentionMetadata[HostArray], rows: int, slots: int) -> _native.States:
    """Return the view of a step's sequences and their states."""
    if meta.states is None:
        raise ValueError("the step has no state slots, which recurrent layers need")
    given = {
        "query_start_loc": (meta.query_start_loc, INT32, meta.num_seqs + 1),
        "state_from": (meta.states.state_from, INT32, meta.num_seqs),
        "state_to": (meta.states.state_to, INT64, rows),
    }
    for name, (x, dtype, size) in given.items():
        if x.dtype != dtype or x.shape != (size,) or not x.flags.c_contiguous:
            raise ValueError(f"{name} is {describe(x)}; wanted contiguous {dtype} [{size}]")
    starts, sources, targets = (address(x) for x, _, _ in given.values())
    return _native.States(starts, sources, targets, meta.num_seqs, slots)
