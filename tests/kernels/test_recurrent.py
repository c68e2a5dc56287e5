"""The native ops of recurrent layers on every instruction set."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.ops.cpu import CpuOps
from quire.ops.metadata import AttentionMetadata, DeltaRules, GatedNorm
from quire.ops.native.kernels import available_isas
from quire.ops.plans.recorder import record
from tests.arrays import array, tensor
from tests.kernels import recurrent_oracle as oracle
from tests.kernels.fused_common import U, assert_close, assert_same_bits
from tests.kernels.recurrent_common import (
    Case,
    Part,
    check_slots,
    metadata,
    one,
    seed_torch,
)
from tests.kernels.recurrent_oracle import Bounded

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CONVOLUTIONS: list[tuple[Any, ...]] = [
    (70, 4, "silu"), (133, 3, "gated"), (5, 2, "none"), (64, 1, "silu"), (300, 16, "none")
]  # fmt: skip
"""Channels, width, kind."""
MATRICES: list[tuple[str, tuple[int, ...]]] = [
    ("gated_delta_rule", (2, 4, 16, 32)),
    ("gated_delta_rule", (1, 3, 21, 77)),
    ("gated_delta_rule", (1, 2, 128, 128)),
    ("kimi", (2, 2, 33, 40)),
    ("kimi", (1, 1, 128, 64)),
    ("mamba2_scan", (2, 4, 16, 64)),
    ("mamba2_scan", (1, 3, 35, 51)),
    ("mamba2_scan", (1, 2, 128, 80)),
]
"""Key heads or groups, heads, rows and columns of a state."""
OPS: list[tuple[str, tuple[Any, ...]]] = [
    ("causal_conv1d", (150, 4, "silu")), ("causal_conv1d", (66, 3, "gated")), MATRICES[1],
    ("gated_delta_rule", (2, 2, 64, 128)), MATRICES[3], MATRICES[6],
]  # fmt: skip
each_isa = pytest.mark.parametrize("isa", available_isas())


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed_torch()


@each_isa
@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.matrix
def test_convolution(isa: str, shape: tuple[Any, ...], dtype: torch.dtype) -> None:
    case = Case("causal_conv1d", 9, shape, dtype)
    state = case.state(2)
    want, rows = oracle.convolved(case, state, shape[2])
    got = case.native(CpuOps(isa, 2), one(9, 1, 0), state)
    assert_close(got, *want)
    assert torch.equal(state[0], rows[9:])


@each_isa
@pytest.mark.parametrize(("op", "shape"), MATRICES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.matrix
def test_matrix_state(isa: str, op: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    case = Case(op, 4, shape, dtype)
    state = case.state(2)
    state[1] *= 3
    s: Bounded = state[1].double(), torch.zeros_like(state[1].double())
    rows = []
    for t in range(4):
        s, y = (oracle.scan if op == "mamba2_scan" else oracle.delta)(case, t, s)
        rows.append(y)
    got = case.native(CpuOps(isa, 2), one(4, 1, 0), state)
    values, errors = (torch.stack(parts).flatten(1) for parts in zip(*rows, strict=True))
    assert_close(got, values, errors)
    assert_close(state[0], *s)


@each_isa
@pytest.mark.parametrize(("op", "shape"), OPS, ids=str)
def test_bits_do_not_depend_on_steps_and_threads(isa: str, op: str, shape: tuple[Any, ...]) -> None:
    """Each sequence alone and whole, with every state stored, against random steps of all."""
    lengths = [1, 23, 8, 3]
    dtype = random.choice(DTYPES)
    cases = [Case(op, n, shape, dtype) for n in lengths]
    cases = [case.like(cases[0]) for case in cases]
    alone = CpuOps(isa, 1)
    wanted, states = [], []
    for case in cases:
        state = case.state(case.tokens)
        meta = metadata([Part(case.tokens, -1, {r: r for r in range(case.tokens)})])
        wanted.append(case.native(alone, meta, state))
        states.append(state)
    for threads in (1, 2, 5):
        check_random_steps(CpuOps(isa, threads), cases, wanted, states)


@each_isa
@pytest.mark.parametrize(
    ("op", "rows", "columns"),
    [("gated_delta_rule", 128, 128), ("kimi", 30, 144), ("mamba2_scan", 30, 144)],
)
def test_states_that_no_cache_keeps_have_the_same_bits(
    isa: str, op: str, rows: int, columns: int
) -> None:
    """A step with 1 MiB of states stores them past the caches; one sequence alone does not."""
    count, ops = (1 << 18) // (rows * columns) + 1, CpuOps(isa, 2)
    case = Case(op, 2 * count, (1, 1, rows, columns), torch.float32)
    state = case.state(3 * count)
    alone = state.clone()
    parts = [Part(2, 3 * i, {0: 3 * i + 1, 1: 3 * i + 2}) for i in range(count)]
    got = case.native(ops, metadata(parts), state).split(2)
    for i, part in enumerate(parts):
        each = Case.of_rows([(case, 2 * i, 2 * i + 2)])
        assert_same_bits(got[i], each.native(ops, metadata([part]), alone))
    assert_same_bits(state, alone)


def check_random_steps(
    ops: Any, cases: list[Case], wanted: list[Tensor], states: list[Tensor]
) -> None:
    """Compute all sequences in random steps. Slots 2 i and 2 i + 1 are of sequence i."""
    state = cases[0].state(2 * len(cases))
    done, source = [0] * len(cases), [-1] * len(cases)
    while any(case.tokens > n for case, n in zip(cases, done, strict=True)):
        chosen = random.sample(range(len(cases)), random.randint(1, len(cases)))
        parts, taken = [], []
        for i in chosen:
            rows = random.randint(0, min(11, cases[i].tokens - done[i]))
            target = random.choice([2 * i, 2 * i + 1])
            stores = {rows - 1: target} if rows else {}
            other = 4 * i + 1 - target
            if rows > 1 and other != source[i] and random.random() < 0.5:
                stores[random.randrange(rows - 1)] = other
            parts.append(Part(rows, source[i], stores))
            taken.append((i, rows, stores))
        meta = metadata(parts)
        assert meta.states is not None
        check_slots(meta.states, meta.query_start_loc, len(state))
        batch = Case.of_rows([(cases[i], done[i], done[i] + rows) for i, rows, _ in taken])
        y = batch.native(ops, meta, state).split([rows for _, rows, _ in taken])
        for (i, rows, stores), part in zip(taken, y, strict=True):
            assert_same_bits(part, wanted[i][done[i] : done[i] + rows])
            for row, slot in stores.items():
                assert_same_bits(state[slot], states[i][done[i] + row])
            done[i] += rows
            source[i] = stores.get(rows - 1, source[i])


@pytest.mark.parametrize(("op", "shape"), OPS, ids=str)
def test_a_plan_has_the_bits_of_calls(op: str, shape: tuple[Any, ...]) -> None:
    ops = CpuOps(None, 2)
    case = Case(op, 7, shape, torch.bfloat16)
    state = array(case.state(6))
    first = metadata([Part(1, -1, {})])

    def function(table: Any, meta: AttentionMetadata, *rows: Any) -> Any:
        return case.call(table, meta, state, rows)

    plan = record(ops, function, (first, *(x[:1] for x in case.by_row)), 16)  # type: ignore[arg-type]
    for parts in (
        [Part(4, -1, {-1: 0}), Part(3, 2, {0: 1})],
        [Part(1, 0, {-1: 0}), Part(0, 3, {}), Part(1, 1, {-1: 5}), Part(5, 2, {1: 3, 4: 4})],
    ):
        meta, before = metadata(parts), state.copy()
        check_slots(meta.states, meta.query_start_loc, len(state))
        wanted = case.call(ops, meta, state, case.by_row)
        after = state.copy()
        state[:] = before
        got = plan.run((meta, *case.by_row))
        assert_same_bits(tensor(got), tensor(wanted))
        assert np.array_equal(state, after)
    with pytest.raises(IndexError, match="state slot 6"):
        plan.run((metadata([Part(7, -1, {2: 6})]), *case.by_row))
    with pytest.raises(IndexError, match="state slot 9 of sequence 0"):
        plan.run((metadata([Part(7, 9, {})]), *case.by_row))


@pytest.mark.parametrize(("op", "shape"), OPS, ids=str)
def test_nan_stays_in_its_sequence(op: str, shape: tuple[Any, ...]) -> None:
    ops, case = CpuOps(None, 2), Case(op, 9, shape, torch.float32)
    parts = [Part(2, 0, {-1: 0}), Part(4, 1, {-1: 1}), Part(3, 2, {-1: 2})]
    state = case.state(3)
    clean = state.clone()
    wanted = case.native(ops, metadata(parts), clean)
    for x in case.by_row:
        x[3] = np.nan
    got = case.native(ops, metadata(parts), state)
    for rows in (slice(0, 3), slice(6, 9)):
        assert_same_bits(got[rows], wanted[rows])
    assert got[3].isnan().all()
    assert_same_bits(state[[0, 2]], clean[[0, 2]])


@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["silu", "sigmoid", "factor"])
@pytest.mark.parametrize(("groups", "weights"), [(1, 1), (3, 1), (3, 3), (4, 0)])
@pytest.mark.matrix
def test_gated_norm(isa: str, dtype: torch.dtype, kind: Any, groups: int, weights: int) -> None:
    group, eps, ops = random.choice([8, 33, 128]), 1e-5, CpuOps(isa, 2)
    columns = groups * group
    x, gate = torch.randn(5, columns).to(dtype), torch.randn(5, columns + 4).to(dtype)
    weight = torch.randn(weights, group) if weights else None
    given = None if weight is None else array(weight)
    f = gate[:, 3 : 3 + columns].double()
    if kind != "factor":
        f = f * f.sigmoid() if kind == "silu" else f.sigmoid()
    for norm_first in (True, False):
        v = x.double() if norm_first else x.double() * f
        if weight is not None:
            v = v.unflatten(1, (groups, group))
            v = (v / (v.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()).flatten(1)
        want = v * f if norm_first else v
        norm = GatedNorm(given, eps, kind, 3, norm_first)
        got = ops.gated_norm(array(x), array(gate), norm)
        # The root of a sum of squares has half of the sum's relative error.
        relative = (group / 2 + 8) * U + oracle.GATE * (1 if norm_first else 2)
        assert_close(tensor(got), want, relative * want.abs())
        alone = [
            ops.gated_norm(array(x[i : i + 1]), array(gate[i : i + 1]), norm) for i in range(5)
        ]
        assert_same_bits(tensor(np.concatenate(alone)), tensor(got))


@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["silu", "sigmoid", "factor"])
@pytest.mark.parametrize("each", [8, 33, 128])
@pytest.mark.matrix
def test_gates_that_neighbours_share(isa: str, dtype: torch.dtype, kind: Any, each: int) -> None:
    x, gate, ops = torch.randn(5, 3 * each).to(dtype), torch.randn(5, 5).to(dtype), CpuOps(isa, 2)
    got = ops.gated_norm(array(x), array(gate), GatedNorm(None, 0.0, kind, 1, each=each))
    repeated = gate[:, 1:4].repeat_interleave(each, dim=1)
    want = ops.gated_norm(array(x), array(repeated), GatedNorm(None, 0.0, kind))
    assert_same_bits(tensor(got), tensor(want))


def test_what_does_not_fit() -> None:
    ops, case = CpuOps(None, 1), Case("gated_delta_rule", 3, (1, 2, 8, 16), torch.float32)
    state = array(case.state(2))
    qkv, gates, _ = case.by_row
    rate, bias, *more = (array(x) if isinstance(x, Tensor) else x for x in case.rules)
    meta, rules = one(3), DeltaRules(rate, bias, *more)
    for change, message in (
        ({"state": state.astype(np.float64)}, "state is float64"),
        ({"qkv": qkv[:, :-1].copy()}, "qkv is float32 .3, 47.; wanted 3 rows of 48"),
        ({"decay": gates[:2]}, "decay is float32 .2, 2.; wanted 3 rows"),
        ({"rules": rules._replace(rate=rate[:1])}, "rate is float32 .1, 1.; wanted float32 .2."),
        ({"rules": rules._replace(bias=bias[:1])}, "decay|bias"),
        ({"beta": gates[:, :1]}, "wanted columns 0 to 2"),
        ({"meta": one(4)}, "state_to is int64 .4."),
    ):
        given = {
            "qkv": qkv, "decay": gates, "beta": gates, "rules": rules, "state": state, "meta": meta
        } | change  # fmt: skip
        with pytest.raises(ValueError, match=message):
            ops.gated_delta_rule(**given)
    wide = np.zeros((3, 2 * 3 * 8 + 2 * 16), np.float32)
    with pytest.raises(ValueError, match="2 heads are no multiple of 3"):
        ops.gated_delta_rule(wide, gates, gates, DeltaRules(rate, bias, 3), state, meta)
