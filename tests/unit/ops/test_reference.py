"""The plain operations against torch's own functions, and bit-equality in every company."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.core.model_config import Activation
from quire.ops.metadata import KVCache
from quire.ops.torch_ops import reference
from quire.ops.torch_ops.activations import ACTIVATIONS, activation
from quire.ops.weights import GATED

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(32, 64), (33, 50), (64, 200), (384, 128), (768, 640), (1024, 512)]
"""(in, out): small, odd, wide and narrow, past the sizes where products change kernels."""


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("columns", "width"), SHAPES)
def test_linear_rows_do_not_depend_on_the_batch(
    dtype: torch.dtype, columns: int, width: int
) -> None:
    weight, bias = draw(width, columns, dtype=dtype), draw(width, seed=1, dtype=dtype)
    x = draw(150, columns, seed=2, dtype=dtype)
    whole = reference.linear(x, reference.pack_linear(weight, bias))
    for count in (1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 64, 65, 96, 127, 128, 149):
        assert torch.equal(
            reference.linear(x[:count], reference.pack_linear(weight, bias)), whole[:count]
        )
    order = torch.randperm(150, generator=torch.Generator().manual_seed(3))
    assert torch.equal(
        reference.linear(x[order], reference.pack_linear(weight, bias)), whole[order]
    )
    # Rows that begin at an odd address.
    assert torch.equal(reference.linear(x[1:34], reference.pack_linear(weight, bias)), whole[1:34])


def test_linear_equals_torch() -> None:
    x, weight, bias = draw(70, 48), draw(30, 48, seed=1), draw(30, seed=2)
    torch.testing.assert_close(
        reference.linear(x, reference.pack_linear(weight, bias)), F.linear(x, weight, bias)
    )
    torch.testing.assert_close(
        reference.linear(x, reference.pack_linear(weight)), F.linear(x, weight)
    )
    assert reference.linear(x[:0], reference.pack_linear(weight)).shape == (0, 30)


@pytest.mark.parametrize("epilogue", get_args(Activation))
def test_an_epilogue_is_the_operation_of_its_name(epilogue: reference.Epilogue) -> None:
    x, weight = draw(20, 48), draw(30, 48, seed=1)
    fused = reference.linear(x, reference.pack_linear(weight, epilogue=epilogue))
    product = reference.linear(x, reference.pack_linear(weight))
    assert torch.equal(fused, activation(product, epilogue))


def test_linear_keeps_a_bad_row_to_itself() -> None:
    x, weight = draw(20, 48), draw(30, 48, seed=1)
    clean = reference.linear(x, reference.pack_linear(weight))
    x[7] = torch.nan
    x[11] = torch.inf
    others = [i for i in range(20) if i not in (7, 11)]
    assert torch.equal(reference.linear(x, reference.pack_linear(weight))[others], clean[others])


def test_logits_are_float32() -> None:
    x, weight = draw(3, 16, dtype=torch.bfloat16), draw(40, 16, dtype=torch.bfloat16)
    logits = reference.logits(x, reference.pack_linear(weight))
    assert logits.dtype == torch.float32
    assert torch.equal(logits, reference.linear(x, reference.pack_linear(weight)).float())


def test_embedding_and_add() -> None:
    weight = draw(10, 4)
    ids = torch.tensor([3, 0, 3])
    assert torch.equal(reference.embedding(ids, weight), weight[ids])
    assert torch.equal(reference.add(weight, weight), 2 * weight)


@pytest.mark.parametrize("width", [16, 100, 1024])
def test_norms_equal_torch(width: int) -> None:
    x, residual = draw(9, width), draw(9, width, seed=1)
    weight, bias = draw(width, seed=2), draw(width, seed=3)
    torch.testing.assert_close(
        reference.rms_norm(x, weight, 1e-5), F.rms_norm(x, (width,), weight, 1e-5)
    )
    torch.testing.assert_close(
        reference.layer_norm(x, weight, bias, 1e-5),
        F.layer_norm(x.double(), (width,), weight.double(), bias.double(), 1e-5).float(),
    )
    normed, total = reference.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, reference.rms_norm(total, weight, 1e-5))
    normed, total = reference.add_layer_norm(x, residual, weight, bias, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, reference.layer_norm(total, weight, bias, 1e-5))


def test_rms_norm_rounds_before_and_after_the_weight() -> None:
    x, weight = draw(4, 32, dtype=torch.bfloat16), draw(32, seed=1, dtype=torch.bfloat16)
    scaled = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-6)
    expected = weight * scaled.to(torch.bfloat16)
    assert torch.equal(reference.rms_norm(x, weight, 1e-6), expected)


def activate(x: Tensor, kind: Activation) -> Tensor:
    """Return the activation of x; a gated one multiplies it by 1."""
    return activation(torch.cat([x, torch.ones_like(x)], -1) if kind in GATED else x, kind)


ROW_WISE: dict[str, Callable[[Tensor], Tensor]] = {
    "rms_norm": lambda x: reference.rms_norm(x, torch.ones(x.shape[-1], dtype=x.dtype), 1e-6),
    "layer_norm": lambda x: reference.layer_norm(
        x, torch.ones(x.shape[-1], dtype=x.dtype), torch.ones(x.shape[-1], dtype=x.dtype), 1e-5
    ),
    "scale": lambda x: reference.scale(x, 6.5),
    "xielu": lambda x: reference.xielu(x, 0.7, 1.3, 0.5),
    **{kind: partial(activate, kind=kind) for kind in ACTIVATIONS},
}


@pytest.mark.parametrize("op", ROW_WISE)
def test_rows_do_not_depend_on_the_batch(op: str) -> None:
    for dtype, width in product(DTYPES, (7, 33, 80, 1000)):
        x = 3 * draw(130, width, dtype=dtype)
        whole = ROW_WISE[op](x)
        for start, stop in ((0, 1), (0, 2), (3, 10), (1, 34), (5, 129)):
            part = ROW_WISE[op](x[start:stop].contiguous())
            assert torch.equal(part, whole[start:stop]), (dtype, width)


@pytest.mark.parametrize(
    ("op", "oracle"),
    [
        (ROW_WISE["silu_mul"], F.silu),
        (ACTIVATIONS["gelu"], F.gelu),
        (ACTIVATIONS["gelu_tanh"], lambda x: F.gelu(x, approximate="tanh")),
        (ACTIVATIONS["relu"], F.relu),
        (ACTIVATIONS["quick_gelu"], lambda x: x * torch.sigmoid(1.702 * x)),
    ],
)
def test_activations_equal_torch(
    op: Callable[[Tensor], Tensor], oracle: Callable[[Tensor], Tensor]
) -> None:
    x = torch.cat([4 * draw(5, 40), torch.tensor([[-200.0, -90.0, 0.0, 90.0] * 10])])
    torch.testing.assert_close(op(x), oracle(x.double()).float())


def test_silu_mul_multiplies_by_the_second_half() -> None:
    gate, up = draw(5, 12), draw(5, 12, seed=1)
    torch.testing.assert_close(
        activation(torch.cat([gate, up], dim=-1), "silu_mul"), F.silu(gate) * up
    )


def test_rotary_turns_pairs_half_a_head_apart() -> None:
    head_dim, rotary_dim, angle = 10, 6, 0.3
    half = rotary_dim // 2
    angles = torch.arange(8.0).unsqueeze(1) * angle * torch.arange(1.0, half + 1)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    q, k = draw(4, 3, head_dim), draw(4, 1, head_dim, seed=1)
    positions = torch.tensor([5, 0, 7, 1])
    turned, turned_k = reference.rotary(q, k, positions, cos_sin)
    assert turned_k.shape == k.shape
    assert torch.equal(turned[..., rotary_dim:], q[..., rotary_dim:])
    as_complex = torch.complex(q[..., :half], q[..., half:rotary_dim])
    turn = torch.polar(torch.ones(4, half), angles[positions]).unsqueeze(1)
    expected = as_complex * turn
    torch.testing.assert_close(turned[..., :half], expected.real)
    torch.testing.assert_close(turned[..., half:rotary_dim], expected.imag)


def test_write_kv_stores_each_token_in_its_slot() -> None:
    k_cache, v_cache = torch.zeros(6, 2, 8, 4), torch.zeros(6, 2, 8, 4)
    k, v = draw(5, 2, 4), draw(5, 2, 4, seed=1)
    slots = [3, 40, 8, 47, 0]
    reference.write_kv(k, v, KVCache(k_cache, v_cache), torch.tensor(slots))
    for token, slot in enumerate(slots):
        assert torch.equal(k_cache[slot // 8, :, slot % 8], k[token])
        assert torch.equal(v_cache[slot // 8, :, slot % 8], v[token])
    assert int((k_cache != 0).sum()) == k.numel()
