"""The layers that only pass their weights to an operation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from quire.layers.embedding import Embedding
from quire.layers.linear import Linear
from quire.layers.mlp import MLP
from quire.layers.norm import LayerNorm, RMSNorm
from quire.ops.providers import load_ops
from quire.ops.weights import Epilogue

OPS = load_ops("reference")


def test_linear() -> None:
    x, weight, bias = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)
    torch.testing.assert_close(
        Linear(OPS.pack_linear(weight, bias)).forward(OPS, x), F.linear(x, weight, bias)
    )
    torch.testing.assert_close(Linear(OPS.pack_linear(weight)).forward(OPS, x), F.linear(x, weight))


def test_embedding_adds_learned_positions_from_their_offset() -> None:
    weight, table = torch.randn(9, 4), torch.randn(12, 4)
    ids, positions = torch.tensor([8, 1]), torch.tensor([0, 9])
    plain = Embedding(weight).forward(OPS, ids, positions)
    assert torch.equal(plain, weight[ids])
    learned = Embedding(weight, table[2:]).forward(OPS, ids, positions)
    assert torch.equal(learned, weight[ids] + table[positions + 2])


def test_norms() -> None:
    x, residual, weight, bias = (torch.randn(3, 8), torch.randn(3, 8), *torch.randn(2, 8))
    for norm, oracle in (
        (RMSNorm(weight, 1e-5), lambda t: F.rms_norm(t, (8,), weight, 1e-5)),
        (LayerNorm(weight, bias, 1e-5), lambda t: F.layer_norm(t, (8,), weight, bias, 1e-5)),
    ):
        torch.testing.assert_close(norm.forward(OPS, x), oracle(x))
        normed, total = norm.add_forward(OPS, x, residual)
        torch.testing.assert_close(normed, oracle(x + residual))
        assert torch.equal(total, x + residual)


def test_gated_mlp() -> None:
    x, gate, up, down = (torch.randn(*s) for s in ((3, 8), (6, 8), (6, 8), (8, 6)))
    gate_up = Linear(OPS.pack_linear(torch.cat([gate, up]), epilogue="silu_mul"))
    mlp = MLP(gate_up, Linear(OPS.pack_linear(down)))
    expected = (F.silu(x @ gate.T) * (x @ up.T)) @ down.T
    torch.testing.assert_close(mlp.project(OPS, x), expected)


@pytest.mark.parametrize(
    ("activation", "oracle"),
    [
        ("relu", F.relu),
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    ],
)
def test_plain_mlp(activation: Epilogue, oracle: object) -> None:
    x, up, down = torch.randn(3, 8), torch.randn(6, 8), torch.randn(8, 6)
    assert callable(oracle)
    mlp = MLP(Linear(OPS.pack_linear(up, epilogue=activation)), Linear(OPS.pack_linear(down)))
    torch.testing.assert_close(mlp.project(OPS, x), oracle(x @ up.T) @ down.T)
