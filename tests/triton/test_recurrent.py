"""Recurrent layers: against float64, and the same bits however sequences are cut into steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from quire.ops.metadata import AttentionMetadata, GatedNorm
from quire.ops.triton import recurrent
from tests.kernels import recurrent_oracle as oracle
from tests.kernels.fused_common import U, assert_close
from tests.kernels.recurrent_common import Case, Part, metadata, one, seed_torch

DTYPES = [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)]
MATRICES: list[tuple[str, tuple[int, ...]]] = [
    ("gated_delta_rule", (1, 2, 21, 37)), ("kimi", (2, 2, 16, 20)), ("mamba2_scan", (1, 3, 9, 35))
]  # fmt: skip
"""Key heads or groups, heads, rows and columns of a state."""
CONVOLUTIONS: list[tuple[Any, ...]] = [(70, 4, "silu"), (33, 3, "gated"), (5, 1, "none")]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed_torch()


def call(case: Case, meta: AttentionMetadata[Tensor], state: Tensor) -> Tensor:
    op = getattr(recurrent, case.op)
    found: Tensor = op(*case.rows, case.rules, state, meta)
    return found


@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_convolution(shape: tuple[Any, ...], dtype: torch.dtype) -> None:
    case, width = Case("causal_conv1d", 5, shape, dtype), shape[1]
    state = case.state(2)
    want, rows = oracle.convolved(case, state, shape[2])
    assert_close(call(case, one(5, 1, 0), state), *want)
    assert torch.equal(state[0], rows[len(rows) - width + 1 :])


@pytest.mark.parametrize(("op", "shape"), MATRICES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matrix_state(op: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    case = Case(op, 4, shape, dtype)
    state = case.state(2)
    s: oracle.Bounded = state[1].double(), torch.zeros_like(state[1].double())
    rows = []
    for t in range(4):
        s, y = (oracle.scan if op == "mamba2_scan" else oracle.delta)(case, t, s)
        rows.append(y)
    found = call(case, one(4, 1, 0), state)
    values, errors = (torch.stack(parts).flatten(1) for parts in zip(*rows, strict=True))
    assert_close(found, values, errors)
    assert_close(state[0], *s)


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("causal_conv1d", (33, 4, "silu")), ("gated_delta_rule", (1, 1, 9, 20)),
        pytest.param(*MATRICES[1], marks=pytest.mark.slow),
        pytest.param(*MATRICES[2], marks=pytest.mark.slow),
    ],
    ids=str,
)  # fmt: skip
def test_steps_change_no_bit(op: str, shape: tuple[Any, ...]) -> None:
    """Two sequences at once with every state stored; then in steps, beside each other."""
    long, short = (Case(op, n, shape, torch.float16) for n in (7, 2))
    short = short.like(long)
    whole, alone = long.state(7), short.state(2)
    wanted = call(long, metadata([Part(7, -1, {r: r for r in range(7)})]), whole)
    other = call(short, metadata([Part(2, -1, {0: 0, 1: 1})]), alone)
    state = long.state(4)
    for first, last, rows, source in ((0, 3, 1, -1), (3, 4, 1, 0), (4, 7, 0, 1)):
        target = 0 if source else 1
        beside = Part(rows, 2 if source == 0 else -1, {0: 3 if source == 0 else 2} if rows else {})
        meta = metadata([Part(last - first, source, {-1: target}), beside])
        done = {-1: 0, 0: 1, 1: 2}[source]
        batch = Case.of_rows([(long, first, last), (short, done, done + rows)])
        found = call(batch, meta, state)
        assert torch.equal(found[: last - first], wanted[first:last])
        assert torch.equal(found[last - first :], other[done : done + rows])
        assert torch.equal(state[target], whole[last - 1])
        if rows:
            assert torch.equal(state[2 + done], alone[done])


@pytest.mark.slow
def test_nan_stays_in_its_sequence() -> None:
    for op, shape in (("causal_conv1d", (33, 4, "silu")), *MATRICES):
        case = Case(op, 4, shape, torch.float32)
        state = case.state(4)
        clean = state.clone()
        parts = [Part(2, 0, {-1: 1}), Part(2, 2, {-1: 3})]
        wanted = call(case, metadata(parts), clean)
        state[2] = torch.nan
        found = call(case, metadata(parts), state)
        assert torch.equal(found[:2], wanted[:2])
        assert torch.equal(state[1], clean[1])
        assert found[2].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("groups", "weights", "kind"), [
    (3, 1, "sigmoid"), (3, 3, "silu"), (4, 0, "sigmoid"), (4, 0, "factor"),
])  # fmt: skip
def test_gated_norm(dtype: torch.dtype, groups: int, weights: int, kind: Any) -> None:
    group, eps = 17, 1e-5
    columns = groups * group
    x, gate = torch.randn(3, columns).to(dtype), torch.randn(3, columns + 4).to(dtype)
    weight = torch.randn(weights, group) if weights else None
    f = gate[:, 3 : 3 + columns].double()
    if kind != "factor":
        f = f * f.sigmoid() if kind == "silu" else f.sigmoid()
    for norm_first in (True, False):
        v = x.double() if norm_first else x.double() * f
        if weight is not None:
            v = v.unflatten(1, (groups, group))
            v = (v / (v.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()).flatten(1)
        want = v * f if norm_first else v
        norm = GatedNorm(weight, eps, kind, 3, norm_first)
        found = recurrent.gated_norm(x, gate, norm)
        relative = (group / 2 + 8) * U + oracle.GATE * (1 if norm_first else 2)
        assert_close(found, want, relative * want.abs())
        alone = recurrent.gated_norm(x[1:2], gate[1:2], norm)
        assert torch.equal(alone[0], found[1])
    if weight is None:  # neighbours share an element of the gate
        shared = recurrent.gated_norm(x, gate[:, :groups], GatedNorm(None, eps, kind, each=group))
        repeated = gate[:, :groups].repeat_interleave(group, dim=1)
        assert torch.equal(shared, recurrent.gated_norm(x, repeated, GatedNorm(None, eps, kind)))
