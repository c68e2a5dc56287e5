"""The reference ops of recurrent layers against Transformers' functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.lfm2.configuration_lfm2 import Lfm2Config
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.nemotron_h import modeling_nemotron_h as nemotron
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from quire.ops.metadata import Convolution, GatedNorm, ScanRules
from quire.ops.torch_ops import recurrent
from tests.kernels.recurrent_common import Delta, Scan, one, seed_torch

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
"""Sums of some hundred float32 terms near 1 in another order, over tens of dependent steps."""


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed_torch()


@pytest.mark.parametrize("silu", [True, False])
def test_convolution_is_that_of_transformers(silu: bool) -> None:
    x, weight, bias = torch.randn(9, 24), torch.randn(24, 4), torch.randn(24)
    state, inputs = torch.randn(2, 3, 24), torch.cat((torch.randn(9, 5), x), dim=1)
    kind: Any = "silu" if silu else "none"
    want = qwen3_next.causal_conv1d_update(
        x.T[None], state[1].T[None].clone(), weight, bias, "silu" if silu else None
    )
    conv = Convolution(weight.T.contiguous(), bias, kind, 5)
    got = recurrent.causal_conv1d(inputs, conv, state, one(9, 1, 0))
    torch.testing.assert_close(got, want[0].T, **CLOSE)
    assert torch.equal(state[0], x[-3:])
    fresh = recurrent.causal_conv1d(inputs, conv._replace(bias=None), state, one(9))
    want = qwen3_next.causal_conv1d_fn(x.T[None], weight, None, "silu" if silu else None)
    torch.testing.assert_close(fresh, want[0].T, **CLOSE)


def test_gated_convolution_is_that_of_lfm2() -> None:
    config = Lfm2Config(
        hidden_size=16, conv_L_cache=3, conv_bias=True, num_hidden_layers=1, layer_types=["conv"]
    )
    layer = Lfm2ShortConv(config, 0)
    layer.out_proj = torch.nn.Identity()
    x = torch.randn(7, 16)
    with torch.no_grad():
        want = layer(x[None])[0]
        conv = Convolution(layer.conv.weight[:, 0].T.contiguous(), layer.conv.bias, "gated")
        got = recurrent.causal_conv1d(layer.in_proj(x), conv, torch.zeros(1, 2, 16), one(7))
    torch.testing.assert_close(got, want, **CLOSE)


@pytest.mark.parametrize("tokens", [1, 70])
@pytest.mark.parametrize("per_row", [False, True])
def test_delta_rule_is_that_of_transformers(tokens: int, per_row: bool) -> None:
    case = Delta.random(tokens, (4, 4, 16, 8) if per_row else (2, 6, 16, 8), per_row=per_row)
    q, k, v = case.qkv.split((case.key_heads * 16, case.key_heads * 16, case.heads * 8), dim=1)
    b, a = case.gates[:, : case.heads], case.gates[:, case.heads : case.heads + len(case.bias)]
    g = torch.nn.functional.softplus(a + case.bias).unflatten(1, (case.heads, -1))
    g = -case.rate[:, None] * g
    state = case.state(2)
    given: dict[str, Any] = {
        "query": q.view(1, tokens, -1, 16), "key": k.view(1, tokens, -1, 16),
        "value": v.view(1, tokens, -1, 8), "g": g[None] if per_row else g[None, ..., 0],
        "beta": b.sigmoid()[None], "initial_state": state[1:].clone(),
        "output_final_state": True, "use_qk_l2norm_in_kernel": True,
    }  # fmt: skip
    if per_row:
        forms = [kimi.recurrent_kimi_delta_attention, kimi.chunk_kimi_delta_attention]
    else:
        forms = [
            qwen3_next.torch_recurrent_gated_delta_rule,
            qwen3_next.torch_chunk_gated_delta_rule,
        ]
    got = recurrent.gated_delta_rule(
        case.qkv, case.gates, case.gates, case.rules, state, one(tokens, 1, 0)
    )
    for form in forms:
        want, last = form(**given)
        torch.testing.assert_close(got.view_as(want), want, **CLOSE)
        torch.testing.assert_close(state[:1], last, **CLOSE)


@pytest.mark.parametrize("limits", [(0.0, float("inf")), (0.3, 0.9)])
def test_scan_is_that_of_transformers(limits: tuple[float, float]) -> None:
    case = Scan.random(37, (2, 6, 16, 8))
    x, b, c = case.xbc.split((48, 32, 32), dim=1)
    state = case.state(2)
    want, last = mamba2.mamba2_chunk_scan(
        x.view(1, 37, 6, 8), case.dt[None, :, 2:], -case.rate, b.view(1, 37, 2, 16),
        c.view(1, 37, 2, 16), chunk_size=16, D=case.skip, dt_bias=case.bias, dt_softplus=True,
        initial_states=state[1:].transpose(2, 3), dt_limit=limits, return_final_states=True,
    )  # fmt: skip
    rules = ScanRules(case.rate, case.skip, case.bias, 2, 2, limits)
    got = recurrent.mamba2_scan(case.xbc, case.dt, rules, state, one(37, 1, 0))
    torch.testing.assert_close(got.view_as(want), want, **CLOSE)
    torch.testing.assert_close(state[:1], last.transpose(2, 3), **CLOSE)


def _norm(case: str) -> tuple[Tensor, Tensor]:
    """Return Transformers' gated norm of 5 rows of 24 elements in groups of 8, and ours."""
    x, gate, weight = torch.randn(5, 24), torch.randn(5, 24), torch.randn(24)
    wide = torch.cat((torch.randn(5, 3), gate, torch.randn(5, 1)), dim=1)
    if case == "nemotron":
        norm = nemotron.NemotronHRMSNormGated(24, 8, 1e-5)
        norm.weight.data = weight
        ours = GatedNorm(weight.view(3, 8), 1e-5, "silu", 3, norm_first=False)
        got = recurrent.gated_norm(x, wide, ours)
        return norm(x, gate), got
    norm = {
        "qwen3_next": qwen3_next.Qwen3NextRMSNormGated, "kimi": kimi.KimiLinearRMSNormGated
    }[case](8, 1e-5)  # fmt: skip
    norm.weight.data = weight[:8]
    ours = GatedNorm(weight[None, :8], 1e-5, "silu" if case == "qwen3_next" else "sigmoid", 3)
    got = recurrent.gated_norm(x, wide, ours)
    return norm(x.view(-1, 8), gate.view(-1, 8)).view(5, 24), got


@pytest.mark.parametrize("case", ["qwen3_next", "kimi", "nemotron"])
def test_gated_norm_is_that_of_transformers(case: str) -> None:
    with torch.no_grad():
        want, got = _norm(case)
    torch.testing.assert_close(got, want, **CLOSE)
