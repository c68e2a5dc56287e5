"""The ops of recurrent layers in float64, each with a bound on the error of float32 arithmetic.

A bound follows the computation: each rounding adds half a unit of what is rounded, and errors grow
as the absolute values of what they are multiplied by. `n` terms are summed with n · U at most.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.kernels.fused_common import U
from tests.kernels.recurrent_common import Case

GATE = 16 * U
"""Relative error of a sigmoid or softplus, and of the sum that it is applied to."""
Bounded = tuple[Tensor, Tensor]
"""Values and bounds."""


def softplus(x: Tensor) -> Tensor:
    return torch.nn.functional.softplus(x, threshold=1000)


def convolve(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Bounded:
    """Inputs [width - 1 + T, channels] → [T, channels]."""
    width, count = len(weight), len(rows) - len(weight) + 1
    y = torch.zeros_like(rows[width - 1 :]) if bias is None else bias.expand(count, -1).clone()
    size = y.abs()
    for i in range(width):
        term = weight[i] * rows[i : i + count]
        y, size = y + term, size + term.abs()
    return y, (width + 1) * U * size


def silu(y: Bounded) -> Bounded:
    """The slope of SiLU is at most 1.1."""
    value = torch.nn.functional.silu(y[0])
    return value, 1.1 * y[1] + GATE * value.abs()


def unit(x: Tensor) -> Bounded:
    """Vectors of norm 1 [..., dim]."""
    value = x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
    return value, (x.shape[-1] / 2 + 6) * U * value.abs()


def exp_of(x: Tensor, relative: float) -> Bounded:
    """exp(x) of an x with that relative error."""
    value = x.exp()
    return value, value * (relative * x.abs() + 4 * U)


def step(
    state: Bounded,
    alpha: Bounded,
    k: Bounded,
    q: Bounded,
    v: Tensor,
    beta: Bounded,
    delta_rule: bool,
) -> tuple[Bounded, Bounded]:
    """Return the state and y [heads, columns] after one token.

    Args:
        state: [heads, rows, columns].
        alpha: [heads, rows or 1, 1].
        k, q: [heads, rows].
        v: [heads, columns].
        beta: [heads, 1].
        delta_rule: what the state has for k is taken from v.
    """
    (s, s_error), (a, a_error) = state, alpha
    decayed = a * s
    decayed_error = a * s_error + (a_error + 2 * U * a) * s.abs()
    change, change_error = beta[0] * v, (beta[1] + U * beta[0].abs()) * v.abs()
    if delta_rule:
        m, m_error = _product(k, (decayed, decayed_error))
        change = beta[0] * (v - m)
        change_error = beta[0] * (m_error + 3 * U * (v.abs() + m.abs())) + beta[1] * (v - m).abs()
    outer = k[0][..., None] * change[:, None]
    outer_error = k[0].abs()[..., None] * change_error[:, None]
    outer_error = outer_error + (k[1] + 2 * U * k[0].abs())[..., None] * change.abs()[:, None]
    s = decayed + outer
    new = s, decayed_error + outer_error + U * (decayed.abs() + outer.abs())
    y, error = _product(q, new)
    # The kernel sums the two parts of the state apart.
    parts = torch.einsum("hr,hrc->hc", q[0].abs(), decayed.abs() + outer.abs())
    return new, (y, error + (s.shape[1] + 4) * U * parts)


def delta(case: Case, t: int, s: Bounded) -> tuple[Bounded, Bounded]:
    """Return the state after token t, and y [heads, columns]."""
    heads, key_dim, _ = case.shape
    qkv, gates, _, rate, bias = (x.double() for x in (*case.rows, *case.rules[:2]))
    key_heads = case.rules.key_heads
    keys = key_heads * key_dim
    q, k = (
        [part.repeat_interleave(heads // key_heads, dim=0) for part in unit(x)]
        for x in (
            qkv[t, :keys].view(key_heads, key_dim), qkv[t, keys : 2 * keys].view(key_heads, key_dim)
        )
    )  # fmt: skip
    scaled = q[0] * key_dim**-0.5, (q[1] + 3 * U * q[0].abs()) * key_dim**-0.5
    a = (gates[t, heads : heads + len(bias)] + bias).view(heads, -1, 1)
    alpha = exp_of(-rate[:, None, None] * softplus(a), GATE + _sums(gates, bias))
    beta = gates[t, :heads, None].sigmoid()
    v = qkv[t, 2 * keys :].view(heads, -1)
    return step(s, alpha, (k[0], k[1]), scaled, v, (beta, GATE * beta), True)


def scan(case: Case, t: int, s: Bounded) -> tuple[Bounded, Bounded]:
    """Return the state after token t, and y [heads, columns]."""
    heads, rows, columns = case.shape
    xbc, dt, rate, skip, bias = (x.double() for x in (*case.rows, *case.rules[:3]))
    groups, first, limits = case.rules[3:]
    shared = groups * rows
    x, b, c = xbc[t].split((heads * columns, shared, shared))
    b, c = (each.view(groups, rows).repeat_interleave(heads // groups, dim=0) for each in (b, c))
    relative = GATE + _sums(dt, bias)
    delta = softplus(dt[t, first : first + heads] + bias).clamp(*limits)[:, None]
    alpha = exp_of(-rate[:, None, None] * delta[..., None], relative)
    none = torch.zeros_like(b)
    x = x.view(heads, columns)
    s, (y, error) = step(s, alpha, (b, none), (c, none), x, (delta, relative * delta), False)
    more = skip[:, None] * x
    return s, (y + more, error + 2 * U * (more.abs() + y.abs()))


def _sums(x: Tensor, bias: Tensor) -> float:
    """Return the absolute error of x + bias, which is the relative one of its softplus."""
    return float(x.abs().max() + bias.abs().max()) * U


def _product(row: Bounded, s: Bounded) -> Bounded:
    values = torch.einsum("hr,hrc->hc", row[0], s[0])
    size = torch.einsum("hr,hrc->hc", row[0].abs(), s[0].abs())
    errors = torch.einsum("hr,hrc->hc", row[1], s[0].abs())
    errors = errors + torch.einsum("hr,hrc->hc", row[0].abs() + row[1], s[1])
    return values, errors + (s[0].shape[1] + 4) * U * size


def convolved(case: Case, state: Tensor, kind: str) -> tuple[Bounded, Tensor]:
    """Return what `causal_conv1d` makes of one sequence, and the rows that it reads."""
    (x,), (weight, bias, *_) = case.rows, case.rules
    parts = x[:, 5:].split(case.shape[1], dim=1)
    inputs = parts[0] if kind != "gated" else parts[0] * parts[2]
    rows = torch.cat((state[1], inputs.float()))
    want = convolve(rows.double(), weight.double(), None if bias is None else bias.double())
    if kind == "silu":
        want = silu(want)
    if kind == "gated":
        gate = parts[1].double()
        want = want[0] * gate, (want[1] + U * want[0].abs()) * gate.abs()
    return want, rows
