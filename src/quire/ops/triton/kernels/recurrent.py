"""Recurrent layers: causal convolution, gated delta rule, Mamba-2, gated norm.

A program of a matrix state owns some of its columns and takes the tokens of one sequence in turn,
in float32, so bits do not depend on how a sequence is cut into steps. No program reads a slot that
another one writes: a pass stores states in slots that it does not read.
"""

import triton
import triton.language as tl


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _softplus(x):
    """Return log(1 + exp(x)); the logarithm by the series of artanh, exact also near 1."""
    power = tl.exp(-tl.abs(x))
    s = power / (2.0 + power)
    square = s * s
    series = 1.0 / 15.0 + square * 0.0
    for n in tl.static_range(13, 0, -2):
        series = series * square + 1.0 / n
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) + 2.0 * s * series


@triton.jit
def _input(x, row, at, live, channels, x_stride, kind: tl.constexpr):
    """Return what is convolved of a row, as the state stores it."""
    values = tl.load(x + row * x_stride + at, live, 0.0)
    if kind == "gated":
        other = tl.load(x + row * x_stride + 2 * channels + at, live, 0.0)
        values = (values.to(tl.float32) * other.to(tl.float32)).to(values.dtype)
    return values.to(tl.float32)


@triton.jit
def causal_conv1d(
    x, weight, bias, state, rows, targets, out, channels, x_stride,
    width: tl.constexpr, kind: tl.constexpr, biased: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Some channels of one row.

    rows: int32 [T, 2]; how many rows of its sequence are before a row, and the slot of its state.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    live = at < channels
    within = tl.load(rows + row * 2)
    before = tl.where(live, within, -1)
    source = tl.load(rows + row * 2 + 1).to(tl.int64)
    target = tl.load(targets + row)
    total = tl.zeros((block,), tl.float32)
    if biased:
        total = tl.load(bias + at, live, 0.0)
    for i in tl.static_range(width):
        back = width - 1 - i
        here = before >= back
        value = _input(x, row - back, at, here, channels, x_stride, kind)
        if back > 0:
            known = (before >= 0) & (before < tl.where(source >= 0, back, 0))
            old = state + (source * (width - 1) + within + i) * channels + at
            value = tl.where(here, value, tl.load(old, known, 0.0))
        total = total + tl.load(weight + i * channels + at, live, 0.0) * value
        if i > 0:
            new = state + (target * (width - 1) + i - 1) * channels + at
            tl.store(new, value, at < tl.where(target >= 0, channels, 0))
    if kind == "silu":
        total = total * _sigmoid(total)
    elif kind == "gated":
        gate = tl.load(x + row * x_stride + channels + at, live, 0.0)
        total = total * gate.to(tl.float32)
    tl.store(out + row * channels + at, total.to(out.dtype.element_ty), live)


@triton.jit
def _unit(source, at, live):
    """Return a vector divided by its Euclidean norm."""
    values = tl.load(source + at, live, 0.0).to(tl.float32)
    return values * (1.0 / tl.sqrt_rn(tl.sum(values * values, 0) + 1e-6))


@triton.jit
def _matrix(state, slot, head, heads, row, column, rows: tl.constexpr, columns: tl.constexpr):
    """Return where elements of a head's state lie, and which of them exist; none in slot -1."""
    first = (slot * heads + head) * rows
    there = (row < tl.where(slot >= 0, rows, 0))[:, None] & (column < columns)[None, :]
    return state + (first + row[:, None]) * columns + column[None, :], there


@triton.jit
def gated_delta_rule(
    qkv, decay, beta, rate, bias, state, sequences, targets, out, qkv_stride, decay_stride,
    beta_stride, decay_first, beta_first, heads, key_heads, scale,
    key_dim: tl.constexpr, value_dim: tl.constexpr, by_row: tl.constexpr,
    block_key: tl.constexpr, block_value: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's state, over the tokens of one sequence.

    sequences: int32 [sequences, 3]; first row, end, slot of the state before it.
    """
    entry = sequences + tl.program_id(0) * 3
    head = tl.program_id(1)
    key_at = tl.arange(0, block_key)
    at = tl.program_id(2) * block_value + tl.arange(0, block_value)
    key_live, live = key_at < key_dim, at < value_dim
    source = tl.load(entry + 2).to(tl.int64)
    old, there = _matrix(state, source, head, heads, key_at, at, key_dim, value_dim)
    s = tl.load(old, there, 0.0)
    speed = tl.load(rate + head)
    key_head = head // (heads // key_heads)
    begin = tl.load(entry).to(tl.int64)
    for token in tl.range(0, tl.load(entry + 1) - tl.load(entry), num_stages=stages):
        row = begin + token
        tokens = qkv + row * qkv_stride
        q = _unit(tokens + key_head * key_dim, key_at, key_live) * scale
        k = _unit(tokens + (key_heads + key_head) * key_dim, key_at, key_live)
        v = tl.load(tokens + 2 * key_heads * key_dim + head * value_dim + at, live, 0.0)
        gates = decay + row * decay_stride + decay_first
        if by_row:
            index = head * key_dim + key_at
            a = tl.load(gates + index, key_live, 0.0).to(tl.float32)
            a = a + tl.load(bias + index, key_live, 0.0)
            s = tl.exp(-speed * _softplus(a))[:, None] * s
        else:
            a = tl.load(gates + head).to(tl.float32) + tl.load(bias + head)
            s = tl.exp(-speed * _softplus(a)) * s
        b = _sigmoid(tl.load(beta + row * beta_stride + beta_first + head).to(tl.float32))
        delta = b * (v.to(tl.float32) - tl.sum(k[:, None] * s, 0))
        s = s + k[:, None] * delta[None, :]
        y = tl.sum(q[:, None] * s, 0)
        target = tl.load(targets + row)
        new, there = _matrix(state, target, head, heads, key_at, at, key_dim, value_dim)
        tl.store(new, s, there)
        tl.store(out + (row * heads + head) * value_dim + at, y.to(out.dtype.element_ty), live)


@triton.jit
def mamba2_scan(
    xbc, dt, rate, skip, bias, state, sequences, targets, out, xbc_stride, dt_stride, first,
    heads, groups, least, most,
    state_dim: tl.constexpr, head_dim: tl.constexpr, block_state: tl.constexpr,
    block_head: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's state, over the tokens of one sequence."""
    entry = sequences + tl.program_id(0) * 3
    head = tl.program_id(1)
    state_at = tl.arange(0, block_state)
    at = tl.program_id(2) * block_head + tl.arange(0, block_head)
    state_live, live = state_at < state_dim, at < head_dim
    source = tl.load(entry + 2).to(tl.int64)
    old, there = _matrix(state, source, head, heads, state_at, at, state_dim, head_dim)
    s = tl.load(old, there, 0.0)
    speed, shift, straight = tl.load(rate + head), tl.load(bias + head), tl.load(skip + head)
    group = head // (heads // groups)
    begin = tl.load(entry).to(tl.int64)
    for token in tl.range(0, tl.load(entry + 1) - tl.load(entry), num_stages=stages):
        row = begin + token
        tokens = xbc + row * xbc_stride
        x = tl.load(tokens + head * head_dim + at, live, 0.0).to(tl.float32)
        shared = tokens + heads * head_dim + group * state_dim + state_at
        b = tl.load(shared, state_live, 0.0).to(tl.float32)
        c = tl.load(shared + groups * state_dim, state_live, 0.0).to(tl.float32)
        delta = _softplus(tl.load(dt + row * dt_stride + first + head).to(tl.float32) + shift)
        delta = tl.maximum(delta, least, propagate_nan=tl.PropagateNan.ALL)
        delta = tl.minimum(delta, most, propagate_nan=tl.PropagateNan.ALL)
        s = tl.exp(-speed * delta) * s + b[:, None] * (delta * x)[None, :]
        y = tl.sum(c[:, None] * s, 0) + straight * x
        target = tl.load(targets + row)
        new, there = _matrix(state, target, head, heads, state_at, at, state_dim, head_dim)
        tl.store(new, s, there)
        tl.store(out + (row * heads + head) * head_dim + at, y.to(out.dtype.element_ty), live)


@triton.jit
def gated_norm(
    x, gate, weight, out, width, columns, x_stride, gate_stride, weight_stride, first, eps,
    each, kind: tl.constexpr, normed: tl.constexpr, norm_first: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """One group of one row."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, block)
    at = tl.program_id(1) * width + lane
    live = (lane < width) & (at < columns)
    y = tl.load(x + row * x_stride + at, live, 0.0).to(tl.float32)
    factor = tl.load(gate + row * gate_stride + first + at // each, live, 0.0).to(tl.float32)
    if kind != "factor":
        factor = factor * _sigmoid(factor) if kind == "silu" else _sigmoid(factor)
    if not norm_first:
        y = y * factor
    if normed:
        gain = tl.load(weight + tl.program_id(1) * weight_stride + lane, live, 0.0)
        mean = tl.sum(tl.where(live, y * y, 0.0), 0) / width
        y = y * (1.0 / tl.sqrt_rn(mean + eps)) * gain
    if norm_first:
        y = y * factor
    tl.store(out + row * columns + at, y.to(out.dtype.element_ty), live)
