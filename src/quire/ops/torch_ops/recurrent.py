"""Recurrent layers in plain torch: causal convolution, gated delta rule, Mamba-2, gated norm.

Tokens follow each other one by one, in float32, so a token's result does not depend on how its
sequence is cut into steps. `metadata.StateSlots` says where states come from and go to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from quire.ops.metadata import AttentionMetadata, Convolution, DeltaRules, GatedNorm, ScanRules

_L2_EPS = 1e-6


def causal_conv1d(
    x: Tensor, conv: Convolution[Tensor], state: Tensor, meta: AttentionMetadata[Tensor]
) -> Tensor:
    """Convolve each channel causally: y[t] = bias + Σ weight[i] · x[t - width + 1 + i].

    Computed in float32, rounded once to x's dtype.

    Args:
        x: [T, columns]; the channels are its columns from `conv.first` on. "gated" takes three
            parts of `channels` columns each, b, c and v: it convolves b · v, rounded to x's dtype,
            and multiplies the result by c.
        state: float32 [num_slots, width - 1, channels]; the last inputs, the oldest first.

    Returns:
        [T, channels].
    """
    weight, bias, kind, first = conv
    width, channels = weight.shape
    inputs, gate = x[:, first : first + channels], None
    if kind == "gated":
        parts = x[:, first : first + 3 * channels].split(channels, dim=1)
        inputs, gate = parts[0] * parts[2], parts[1].float()
    out = x.new_empty(len(x), channels)
    for start, end, source, targets in _sequences(meta):
        before = state[source] if source >= 0 else state.new_zeros(width - 1, channels)
        rows = torch.cat((before, inputs[start:end].float()))
        y = torch.zeros_like(rows[width - 1 :]) if bias is None else bias.expand(end - start, -1)
        for i in range(width):
            y = y + weight[i] * rows[i : i + end - start]
        if kind == "silu":
            y = y * _sigmoid(y)
        out[start:end] = y if gate is None else y * gate[start:end]
        for row, slot in targets:
            state[slot] = rows[row - start + 1 : row - start + width]
    return out


def gated_delta_rule(
    qkv: Tensor,
    decay: Tensor,
    beta: Tensor,
    rules: DeltaRules[Tensor],
    state: Tensor,
    meta: AttentionMetadata[Tensor],
) -> Tensor:
    """Apply the gated delta rule (Yang, Kautz, Hatamizadeh 2024), a matrix S per head:

        S = α S + k (sigmoid(b) (v - (α S)ᵀ k))ᵀ        y = Sᵀ q / √key_dim

    with α = exp(-rate · softplus(a + bias)), one per head, or one per row of S as in Kimi Delta
    Attention; q and k have Euclidean norm 1.

    Args:
        qkv: [T, 2 · key_heads · key_dim + heads · value_dim]: queries, then keys, then values.
            A head of queries and keys serves heads / key_heads neighbouring heads of values.
        decay: [T, columns]; a is its columns from `rules.decay` on, as many as `bias` has.
        beta: [T, columns]; b is its `heads` columns from `rules.beta` on.
        state: float32 [num_slots, heads, key_dim, value_dim].

    Returns:
        [T, heads · value_dim] of qkv's dtype.
    """
    _, heads, key_dim, value_dim = state.shape
    rate, bias, key_heads, first, beta_first = rules
    keys = key_heads * key_dim
    q, k, v = qkv.float().split((keys, keys, heads * value_dim), dim=1)
    q, k = (_unit(x.unflatten(1, (key_heads, key_dim)), heads) for x in (q, k))
    q, v = q * key_dim**-0.5, v.unflatten(1, (heads, value_dim))
    a = decay[:, first : first + len(bias)].float() + bias
    alpha = torch.exp(-rate[:, None] * _softplus(a.unflatten(1, (heads, -1))))[..., None]
    b = _sigmoid(beta[:, beta_first : beta_first + heads].float())[..., None]

    def step(s: Tensor, t: int) -> tuple[Tensor, Tensor]:
        s = alpha[t] * s
        delta = b[t] * (v[t] - _product(k[t], s))
        s = s + k[t][..., None] * delta[:, None]
        return s, _product(q[t], s)

    return _scan(step, qkv, state, meta)


def mamba2_scan(
    xbc: Tensor,
    dt: Tensor,
    rules: ScanRules[Tensor],
    state: Tensor,
    meta: AttentionMetadata[Tensor],
) -> Tensor:
    """Run the state space of Mamba-2 (Dao and Gu 2024), a matrix S per head:

        S = exp(-rate · Δ) S + B (Δ x)ᵀ        y = Sᵀ C + skip · x

    with Δ = softplus(dt + bias), clamped to `rules.limits`.

    Args:
        xbc: [T, heads · head_dim + 2 · groups · state_dim]: x, then B, then C of each group.
            A group serves heads / groups neighbouring heads.
        dt: [T, columns]; its `heads` columns from `rules.first` on.
        state: float32 [num_slots, heads, state_dim, head_dim].

    Returns:
        [T, heads · head_dim] of xbc's dtype.
    """
    _, heads, state_dim, head_dim = state.shape
    rate, skip, bias, groups, first, limits = rules
    shared = groups * state_dim
    x, b, c = xbc.float().split((heads * head_dim, shared, shared), dim=1)
    x = x.unflatten(1, (heads, head_dim))
    b, c = (
        each.unflatten(1, (groups, state_dim)).repeat_interleave(heads // groups, dim=1)
        for each in (b, c)
    )
    delta = _softplus(dt[:, first : first + heads].float() + bias).clamp(*limits)
    alpha = torch.exp(-rate * delta)[..., None, None]
    change = delta[..., None] * x

    def step(s: Tensor, t: int) -> tuple[Tensor, Tensor]:
        s = alpha[t] * s + b[t][..., None] * change[t][:, None]
        return s, _product(c[t], s) + skip[:, None] * x[t]

    return _scan(step, xbc, state, meta)


def gated_norm(x: Tensor, gate: Tensor, norm: GatedNorm[Tensor]) -> Tensor:
    """Return norm(x) · f(gate), or norm(x · f(gate)); in float32, rounded once to x's dtype.

    The norm is x / rms(x) · weight of each group of the last dimension.

    Args:
        x: [T, columns].
        gate: [T, columns of gate]; those from `norm.first` on, one for `norm.each` columns of x.
    """
    weight, eps, kind, first, norm_first, each = norm
    y = x.float()
    f = gate[:, first : first + x.shape[1] // each].float().repeat_interleave(each, dim=1)
    if kind != "factor":
        f = f * _sigmoid(f) if kind == "silu" else _sigmoid(f)
    if not norm_first:
        y = y * f
    if weight is not None:
        parts = y.unflatten(1, (-1, weight.shape[-1]))
        y = (parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + eps) * weight).flatten(1)
    return (y * f if norm_first else y).to(x.dtype)


def _sequences(
    meta: AttentionMetadata[Tensor],
) -> Iterator[tuple[int, int, int, list[tuple[int, int]]]]:
    """Yield for each sequence that has rows: first row, end, slot that it begins with, and the rows
    after which the state is stored, each with its slot."""
    if meta.states is None:
        raise ValueError("the step has no state slots")
    sources, targets = meta.states.state_from.tolist(), meta.states.state_to.tolist()
    for span, source in zip(meta.spans, sources, strict=False):
        rows = range(span.start, span.end)
        if rows:
            yield span.start, span.end, source, [(r, targets[r]) for r in rows if targets[r] >= 0]


def _scan(
    step: Callable[[Tensor, int], tuple[Tensor, Tensor]],
    x: Tensor,
    state: Tensor,
    meta: AttentionMetadata[Tensor],
) -> Tensor:
    """Return y of s, y = step(s, t) for each token t of each sequence, as rows of x's dtype."""
    _, heads, _, columns = state.shape
    out = x.new_empty(len(x), heads * columns)
    for start, end, source, targets in _sequences(meta):
        slots = dict(targets)
        s = state[source].clone() if source >= 0 else torch.zeros_like(state[0])
        for t in range(start, end):
            s, y = step(s, t)
            out[t] = y.flatten()
            if t in slots:
                state[slots[t]] = s
    return out


def _product(row: Tensor, s: Tensor) -> Tensor:
    """Return row · s of each head: [heads, rows] and [heads, rows, columns] → [heads, columns].

    A sum of fixed shape, so that its order does not depend on the batch.
    """
    return (row[..., None] * s).sum(1)


def _sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)); torch's own rounds the last elements of a row otherwise."""
    return 1.0 / (1.0 + torch.exp(-x))


def _softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)), without overflow."""
    return x.clamp(min=0.0) + torch.log1p(torch.exp(-x.abs()))


def _unit(x: Tensor, heads: int) -> Tensor:
    """Return vectors [T, key_heads, key_dim] of norm 1, repeated for `heads`."""
    x = x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + _L2_EPS)
    return x.repeat_interleave(heads // x.shape[1], dim=1)
