"""Routers: the experts that torch.topk chooses, ties included, and weights rounded once."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quire.core.layers import RouteSpec
from quire.ops.native.kernels import native_kernels
from quire.ops.torch_ops import moe as plain
from tests.kernels.fused_common import U, assert_same_bits, draw, each_dtype, new_generator
from tests.native import pool_of, route

KERNELS = native_kernels(None)

SPECS: dict[str, tuple[int, RouteSpec, bool]] = {
    "qwen3": (128, RouteSpec(8), False),
    "qwen2": (60, RouteSpec(4, renormalize=False), False),
    "one of many": (128, RouteSpec(1), False),
    "all": (4, RouteSpec(4, epsilon=0.5), False),
    "deepseek-v2": (160, RouteSpec(6, "softmax", False, 0, 8, 3, "max", 16.0), False),
    "deepseek-v3": (256, RouteSpec(8, "sigmoid", True, 1e-20, 8, 4, "top2", 2.5), True),
    "glm-4.5": (128, RouteSpec(8, "sigmoid", True, 1e-20), True),
    "ernie-4.5": (64, RouteSpec(2, least=0.25), True),
    "llama-4": (16, RouteSpec(1, "sigmoid", False), False),
    "pairs": (12, RouteSpec(4, "softmax", True, 0.0, 6, 2), False),
    "a group": (9, RouteSpec(3, "sigmoid", False, 0.0, 3, 1, "max"), True),
}
"""Name → experts, spec, whether there is a correction bias."""


def draw_logits(g: torch.Generator, rows: int, experts: int) -> Tensor:
    """Rows of which half have many ties: of logits, or of scores that are 0 or 1 in float32."""
    logits = draw(g, torch.float32, rows, experts, scale=3.0)
    logits[::4] = logits[::4].round()
    logits[1::4] *= 30.0
    return logits


def check(name: str, rows: int) -> None:
    """Native experts are the reference's; weights are within a rounding of float64's."""
    g, (count, spec, biased) = new_generator(), SPECS[name]
    logits = draw_logits(g, rows, count)
    bias = draw(g, torch.float32, count, scale=0.2).mul(16).round().div(16) if biased else None
    factors = None if biased else draw(g, torch.float32, count).abs()
    experts, weights = route(KERNELS, pool_of(3), logits, bias, spec, factors)
    expected, by_reference = plain.route(logits, bias, spec, factors)
    assert torch.equal(experts, expected)
    wide = logits.double()
    scores = wide.softmax(-1) if spec.scores == "softmax" else wide.sigmoid()
    exact = scores.gather(1, expected)
    if spec.renormalize:
        exact = exact / (exact.sum(-1, keepdim=True) + spec.epsilon).clamp(min=spec.least)
    exact = exact * spec.scale
    if factors is not None:
        exact = exact * factors.double()[expected]
    for found in (weights, by_reference):
        # Rounded once; the sums of doubles before it are 2^29 times as fine.
        assert bool(((found.double() - exact).abs() <= 1.001 * U * exact + 2.0**-149).all())
    assert_same_bits(route(KERNELS, pool_of(1), logits, bias, spec, factors)[1], weights)
    for row in (0, rows // 2, rows - 1):
        alone = route(KERNELS, pool_of(1), logits[row : row + 1].contiguous(), bias, spec, factors)
        assert torch.equal(alone[0][0], experts[row])
        assert_same_bits(alone[1][0], weights[row])


@pytest.mark.parametrize("name", SPECS)
def test_it_is_the_reference(name: str) -> None:
    check(name, 2000)


@pytest.mark.parametrize("rows", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_one_by_one_as_sparsemixer_does(rows: int) -> None:
    """Many experts are near the best, and some are equal; one row has NaN."""
    from transformers.models.phimoe.modeling_phimoe import sparsemixer

    g, spec = new_generator(), RouteSpec(2, band=0.02)
    logits = draw_logits(g, rows, 16)
    logits[::2] = 1.0 + 0.03 * logits[::2]
    logits[1::8] = -logits[1::8].abs()
    theirs, chosen = sparsemixer(logits, 0.01, False)
    experts, weights = route(KERNELS, pool_of(3), logits, None, spec)
    expected, by_reference = plain.route(logits, None, spec)
    for found in (experts, expected):
        assert torch.equal(found, chosen)
    assert bool(((weights - by_reference).abs() <= 2.001 * U * by_reference).all())
    # Float32 sums of 16 exponentials, each a few units off.
    assert bool(((weights - theirs).abs() <= 24 * U * theirs).all())
    assert 0.05 < float((weights < 0.5).float().mean()) < 0.95
    logits[7, 3] = torch.nan
    again = route(KERNELS, pool_of(1), logits, None, spec)
    assert again[0][7, 0] == 3
    assert again[1][7, 0].isnan()
    others = torch.arange(rows) != 7
    assert torch.equal(again[0][others], experts[others])
    assert_same_bits(again[1][others], weights[others])


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_it_is_the_reference_in_many_rows(name: str) -> None:
    check(name, 100_000)


GROUPS = {"n_group": 8, "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
ROUTERS: dict[str, tuple[str, int, dict[str, Any], RouteSpec]] = {
    "mixtral": ("MixtralTopKRouter", 8, {"num_experts_per_tok": 2}, RouteSpec(2)),
    "qwen3_moe": (
        "Qwen3MoeTopKRouter", 128, {"num_experts_per_tok": 8, "norm_topk_prob": True}, RouteSpec(8),
    ),
    "qwen2_moe": (
        "Qwen2MoeTopKRouter", 60, {"num_experts_per_tok": 4, "norm_topk_prob": False},
        RouteSpec(4, renormalize=False),
    ),
    "olmoe": (
        "OlmoeTopKRouter", 64, {"num_experts_per_tok": 8, "norm_topk_prob": False},
        RouteSpec(8, renormalize=False),
    ),
    "gpt_oss": (
        "GptOssTopKRouter", 32, {"num_experts_per_tok": 4}, RouteSpec(4),
    ),
    "granitemoe": ("GraniteMoeTopKRouter", 40, {"num_experts_per_tok": 8}, RouteSpec(8)),
    "ernie4_5_moe": (
        "Ernie4_5_MoeTopKRouter", 64,
        {"num_experts_per_tok": 1, "moe_norm_min": 1e-3, "moe_num_experts": 64},
        RouteSpec(1, least=1e-3),
    ),
    "glm4_moe": (
        "Glm4MoeTopkRouter", 128,
        {**GROUPS, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1},
        RouteSpec(8, "sigmoid", True, 1e-20, scale=2.5),
    ),
    "deepseek_v2": (
        "DeepseekV2TopkRouter", 160,
        {**GROUPS, "num_experts_per_tok": 6, "topk_method": "group_limited_greedy"},
        RouteSpec(6, "softmax", False, 0.0, 8, 4, "max", 2.5),
    ),
    "deepseek_v3": (
        "DeepseekV3TopkRouter", 256, {**GROUPS, "num_experts_per_tok": 8},
        RouteSpec(8, "sigmoid", True, 1e-20, 8, 4, "top2", 2.5),
    ),
}  # fmt: skip
"""Family of Transformers → its router's class, experts, configuration; and the spec."""


def their_router(family: str, bias: Tensor) -> nn.Module:
    """Return their router, to be given logits: its product is one with the identity."""
    name, count, fields, _ = ROUTERS[family]
    config = SimpleNamespace(
        hidden_size=count, num_experts=count, num_local_experts=count, n_routed_experts=count,
        **fields,
    )  # fmt: skip
    module = import_module(f"transformers.models.{family}.modeling_{family}")
    router: nn.Module = getattr(module, name)(config)
    given = {"weight": torch.eye(count), "bias": torch.zeros(count)}
    given |= {"e_score_correction_bias": bias, "moe_statics.e_score_correction_bias": bias[None]}
    state = router.state_dict()
    router.load_state_dict({key: given[key] for key in state})
    return router


def close_calls(logits: Tensor, bias: Tensor | None, spec: RouteSpec) -> Tensor:
    """Return the rows in which a rounding of float32 may make two scores equal, or unequal."""
    wide = logits.double()
    scores = wide.softmax(-1) if spec.scores == "softmax" else wide.sigmoid()
    choice = scores if bias is None else scores + bias
    size = scores if bias is None else scores + bias.abs()
    groups = choice.unflatten(1, (spec.num_groups, -1))
    best = groups.topk(1 if spec.group_score == "max" else 2)
    best_size = size.unflatten(1, (spec.num_groups, -1)).gather(-1, best.indices)
    close = torch.zeros(len(logits), dtype=torch.bool)
    for values, sizes, parts in (
        (choice, size, choice),
        (best.values.sum(-1), best_size.sum(-1), best.values[:, :, 0]),
    ):
        ordered = values.sort(-1)
        gap, sized = ordered.values.diff(dim=-1), sizes.gather(-1, ordered.indices)
        near = gap < 2.0**-21 * (sized[:, 1:] + sized[:, :-1])
        # Equal sums of the same numbers stay equal.
        differ = (gap > 0) | (parts.gather(-1, ordered.indices).diff(dim=-1) != 0)
        close |= (near & differ).any(-1)
    return close


def check_theirs(family: str, rows: int) -> None:
    g, (_, count, _, spec) = new_generator(), ROUTERS[family]
    logits = draw(g, torch.float32, rows, count, scale=3.0)
    logits[::2] = logits[::2].round()  # ties
    bias = draw(g, torch.float32, count, scale=0.2).mul(16).round().div(16)
    router = their_router(family, bias)
    biased = any("correction" in name for name in router.state_dict())
    with torch.inference_mode():
        _, their_weights, theirs = router(logits)
    experts, weights = route(KERNELS, pool_of(3), logits, bias if biased else None, spec)
    clear = ~close_calls(logits, bias if biased else None, spec)
    by_expert = experts.sort(-1), theirs.sort(-1)
    assert torch.equal(by_expert[0].values[clear], by_expert[1].values[clear])
    assert int(clear.sum()) > 0.9 * rows
    ours = weights.gather(1, by_expert[0].indices)[clear]
    expected = their_weights.gather(1, by_expert[1].indices)[clear]
    # Theirs are of float32: 16 roundings at most, and that of a difference of two logits, which
    # exp multiplies by this difference.
    spread = (logits.amax(-1) - logits.amin(-1))[clear, None]
    assert bool(((ours - expected).abs() <= (16 + spread) * U * expected + 1e-30).all())


@pytest.mark.parametrize("family", ROUTERS)
def test_it_is_theirs(family: str) -> None:
    check_theirs(family, 2000)


@pytest.mark.slow
@pytest.mark.parametrize("family", ROUTERS)
def test_it_is_theirs_in_many_rows(family: str) -> None:
    check_theirs(family, 100_000)


@pytest.mark.parametrize("rows", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_it_is_llama_4s(rows: int) -> None:
    """Experts are the best logits, and weights their sigmoids: theirs has zeros for the others."""
    from transformers.models.llama4.modeling_llama4 import Llama4Router

    g, count, top_k = new_generator(), 16, 2
    logits = draw_logits(g, rows, count)
    router = Llama4Router(
        SimpleNamespace(hidden_size=count, num_local_experts=count, num_experts_per_tok=top_k)
    )
    router.load_state_dict({"weight": torch.eye(count)})
    with torch.inference_mode():
        scores, theirs = router(logits)
    experts, weights = route(KERNELS, pool_of(3), logits, None, RouteSpec(top_k, "sigmoid", False))
    assert torch.equal(theirs, logits)
    assert torch.equal(experts, logits.topk(top_k).indices)
    expected = scores.gather(1, experts)
    # Theirs is of float32: an exponential of a few units, a sum and a quotient.
    assert bool(((weights - expected).abs() <= 6 * U * expected + 2.0**-149).all())
    assert float(scores.scatter(1, experts, 0.0).max()) == 0.0


@each_dtype
def test_logits_of_any_dtype(dtype: torch.dtype) -> None:
    g, (count, spec, _) = new_generator(), SPECS["qwen3"]
    logits = draw(g, dtype, 200, count)  # of 16 bits: with ties
    experts, weights = route(KERNELS, pool_of(3), logits, None, spec)
    expected = route(KERNELS, pool_of(3), logits.float(), None, spec)
    assert torch.equal(experts, expected[0])
    assert_same_bits(weights, expected[1])


@pytest.mark.parametrize("name", SPECS)
def test_a_row_with_nan_is_sick_alone(name: str) -> None:
    """Its experts exist, its weights are NaN: so will its results be. Other rows are as before."""
    g, (count, spec, biased) = new_generator(), SPECS[name]
    logits, bias = draw_logits(g, 9, count), torch.zeros(count) if biased else None
    experts, weights = route(KERNELS, pool_of(1), logits, bias, spec)
    logits[4, count // 2] = torch.nan
    sick, sick_weights = route(KERNELS, pool_of(1), logits, bias, spec)
    others = torch.arange(9) != 4
    assert torch.equal(sick[others], experts[others])
    assert_same_bits(sick_weights[others], weights[others])
    assert bool(sick_weights[4].isnan().any())
    assert len(set(sick[4].tolist())) == spec.top_k
    assert 0 <= int(sick[4].min()) <= int(sick[4].max()) < count


def test_what_does_not_fit() -> None:
    def check(match: str, logits: Tensor, bias: Tensor | None, spec: RouteSpec) -> None:
        with pytest.raises(ValueError, match=match):
            route(KERNELS, pool_of(1), logits, bias, spec)

    logits = torch.zeros(3, 6)
    check("top_k is 7, for 6 experts", logits, None, RouteSpec(7))
    check("top_k is 4, for 3 experts", logits, None, RouteSpec(4, num_groups=2))
    check("6 experts do not form 4 equal groups", logits, None, RouteSpec(1, num_groups=4))
    check("groups of one expert", logits, None, RouteSpec(1, num_groups=6))
    check("logits is", logits.double(), None, RouteSpec(1))
    check("bias is", logits, torch.zeros(5), RouteSpec(1))
    check("bias is", logits, torch.zeros(6, dtype=torch.float64), RouteSpec(1))
    for wrong in ({"top_k": 0}, {"top_k": 1, "top_groups": 2}, {"top_k": 1, "top_groups": 0}):
        with pytest.raises(ValueError, match=r"at least one expert|cannot be chosen"):
            RouteSpec(**wrong)
    assert route(KERNELS, pool_of(1), logits[:0], None, RouteSpec(2))[0].shape == (0, 2)
