"""The sampler as a whole: order of operations, batch invariance, sick rows, the fast path."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.core.config import LogprobsMode
from quire.core.errors import refusal_of
from quire.core.messages import TokenLogprobs
from quire.core.sampling_params import SamplingParams
from quire.ops.filters import FloatRow
from quire.ops.gumbel import uniforms
from quire.ops.interface import Ops
from quire.ops.reported import ReportedRow
from quire.ops.torch_ops import sampling
from quire.ops.torch_ops.provider import TorchOps
from quire.sampling.rng import draw_key
from quire.sampling.sampler import Sampler, SampleResult, SamplingBatch, _no_token
from quire.sampling.state import SamplingState
from tests.native import load_ops
from tests.unit.sampling.oracle import edited, probabilities

VOCAB = 509
PROMPT = [11, 12, 13, 11]
OUTPUT = [40, 41, 40, 42]
STOPS = (3,)

MENU: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"temperature": 0.0, "min_tokens": 9, "logit_bias": {7: 5.0}},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.5, "top_p": 0.9, "logprobs": 20},
    {"temperature": 0.9, "min_p": 0.05, "frequency_penalty": 0.4},
    {"temperature": 1.1, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1},
    {"temperature": 1.0, "allowed_token_ids": list(range(0, VOCAB, 3))},
    {"temperature": 1.0, "bad_words_token_ids": [[42, 8], [9]], "logprobs": 0},
]


def state(prompt: list[int] = PROMPT, output: list[int] = OUTPUT, **params: Any) -> SamplingState:
    tokens = np.zeros(64, dtype=np.int32)
    known = prompt + output
    tokens[: len(known)] = known
    params.setdefault("seed", 0)
    return SamplingState(
        SamplingParams(**params), tokens, np.array([len(known)]), len(prompt), STOPS
    )


def rows(seed: int, n: int, scale: float = 3.0) -> Tensor:
    return torch.from_numpy(
        np.random.default_rng(seed).normal(0, scale, (n, VOCAB)).astype(np.float32)
    )


def sample(ops: Ops, logits: Tensor, states: list[SamplingState]) -> SampleResult:
    return Sampler(ops).sample(logits, SamplingBatch(states))


@pytest.mark.parametrize("params", MENU)
def test_token_is_the_oracles(ops: Ops, params: dict[str, Any]) -> None:
    for seed in range(20):
        logits = rows(seed, 1)
        result = sample(ops, logits, [state(seed=seed, **params)])
        p = SamplingParams(**params)
        x = edited(logits[0].double().numpy(), p, PROMPT, OUTPUT, list(STOPS))
        if p.greedy:
            assert result.token_ids.tolist() == [int(x.argmax())]
            continue
        with np.errstate(divide="ignore"):
            scores = np.log(probabilities(x, p))
        noise = -np.log(-np.log1p(-uniforms(np.arange(VOCAB), draw_key(seed, len(OUTPUT)))))
        assert result.token_ids.tolist() == [int((scores + noise).argmax())]


def test_a_row_is_bit_identical_alone_and_in_any_batch(ops: Ops) -> None:
    n = len(MENU) * 3
    menu = [MENU[i % len(MENU)] for i in range(n)]
    logits = rows(5, n)
    alone = [sample(ops, logits[i : i + 1].clone(), [state(seed=i, **menu[i])]) for i in range(n)]
    for order_seed in range(5):
        order = np.random.default_rng(order_seed).permutation(n)[: n - order_seed].tolist()
        batch = sample(ops, logits[order], [state(seed=i, **menu[i]) for i in order])
        for row, i in enumerate(order):
            assert batch.token_ids[row] == alone[i].token_ids[0]
            assert batch.logprobs.get(row) == alone[i].logprobs.get(0)
        assert not batch.errors


def test_logits_are_not_changed_and_logprobs_are_the_models_own(ops: Ops) -> None:
    logits = rows(1, 1)
    before = logits.clone()
    result = sample(
        ops, logits, [state(temperature=2.0, top_k=3, logit_bias={5: 100.0}, logprobs=1)]
    )
    assert torch.equal(logits, before)
    assert result.token_ids.tolist() == [5]
    expected = before[0].double().log_softmax(-1)
    entry = result.logprobs[0]
    assert entry.token_ids == [5, int(expected.argmax())]
    assert entry.logprobs[0] == pytest.approx(float(expected[5]), rel=1e-12)
    assert entry.rank > 1


@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logits", "processed_logits"])
def test_values_in_other_modes_are_the_oracles(ops: Ops, mode: LogprobsMode) -> None:
    sampler = Sampler(ops, mode)
    for seed, params in enumerate(MENU):
        logits = rows(seed, 1)
        row = state(seed=seed, **{**params, "logprobs": 4, "logprob_token_ids": [40, 8]})
        result = sampler.sample(logits, SamplingBatch([row]))
        x = logits[0].double().numpy()
        if mode != "raw_logits":
            p = SamplingParams(**params)
            x = edited(x, p, PROMPT, OUTPUT, list(STOPS))
            if not p.greedy:
                x = np.where(probabilities(x, p) > 0, x / p.temperature, -np.inf)
        if mode == "processed_logprobs":
            x = x - x.max() - np.log(np.exp(x - x.max()).sum())
        entry, token = result.logprobs[0], int(result.token_ids[0])
        assert entry.token_ids == [token, *np.argsort(-x, kind="stable")[:4], 40, 8]
        assert entry.logprobs == pytest.approx(x[entry.token_ids].tolist(), rel=1e-5)
        assert math.isfinite(entry.logprobs[0])
        assert entry.rank == 1 + (x > x[token]).sum()
        assert token == sample(ops, logits, [row]).token_ids[0]


def test_tokens_asked_for_by_id_have_the_models_own_log_probabilities(ops: Ops) -> None:
    logits = rows(1, 2) * 40
    logits[1, 9] = -np.inf
    named = [9, 0, 5, 9]
    states = [state(temperature=0.0, logprobs=2), state(temperature=2.0, logprob_token_ids=named)]
    result = sample(ops, logits, states)
    entry, plain = result.logprobs[1], result.logprobs[0]
    assert (plain.num_named, len(plain.token_ids)) == (0, 3)
    assert (entry.num_named, entry.token_ids[1:]) == (4, named)
    expected = logits[1].double().log_softmax(-1)
    for token, logprob in zip(entry.token_ids, entry.logprobs, strict=True):
        assert logprob == pytest.approx(float(expected[token]), rel=1e-12)
    assert entry.logprobs[1] == -np.inf


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_p": 0.8},
        {"temperature": 1.3, "top_k": 5, "min_p": 0.02},
    ],
)
def test_tokens_follow_the_exact_distribution(ops: Ops, params: dict[str, Any]) -> None:
    """Chi-square over 2,000 draws, along positions and along seeds."""
    n, together = 2000, 500
    logits = rows(9, 1, scale=1.0)[:, :16]
    expected = probabilities(logits[0].double().numpy(), SamplingParams(**params)) * n
    unread = np.zeros(n, np.int32)
    for along in ("position", "seed"):
        counts = np.zeros(16)
        states = []
        for i in range(n):
            seed, position = (i, 0) if along == "seed" else (1234, i)
            drawn = SamplingParams(seed=seed, **params)
            states.append(SamplingState(drawn, unread, np.array([position]), 0))
        for first in range(0, n, together):
            found = sample(ops, logits.repeat(together, 1), states[first : first + together])
            counts += np.bincount(found.token_ids, minlength=16)
        support = expected > 0
        assert not counts[~support].any()
        chi2 = ((counts - expected)[support] ** 2 / expected[support]).sum()
        freedom = int(support.sum()) - 1
        # Wilson and Hilferty's normal approximation, at 1 in 10,000.
        limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
        assert chi2 < limit


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 100, VOCAB - 1])
def test_a_sick_row_is_its_own_error(ops: Ops, poison: float, at: int) -> None:
    logits = rows(2, len(MENU))
    healthy = sample(ops, logits, [state(**params) for params in MENU])
    for victim in range(len(MENU)):
        spoilt = logits.clone()
        spoilt[victim, at] = poison
        result = sample(ops, spoilt, [state(**params) for params in MENU])
        assert list(result.errors) == [victim]
        assert "NaN or infinity" in result.errors[victim]
        assert victim not in result.logprobs
        for row in range(len(MENU)):
            if row != victim:
                assert result.token_ids[row] == healthy.token_ids[row]
                assert result.logprobs.get(row) == healthy.logprobs.get(row)


def test_rows_that_are_all_drawn_need_no_argmax() -> None:
    def argmax(logits: Tensor) -> Any:
        raise AssertionError("a draw finds its own peak")

    logits, states = rows(2, 3), [state(seed=seed, temperature=0.7) for seed in range(3)]
    logits[1, 5] = math.nan
    ops = load_ops("reference")
    found = sample(ops.using(argmax=argmax), logits, states)
    expected = sample(ops, logits, [*states[:2], state(temperature=0.0)])
    assert found.token_ids[0] == expected.token_ids[0]
    assert found.errors == expected.errors
    assert list(found.errors) == [1]


def test_minus_infinity_is_fine_unless_it_is_everywhere(ops: Ops) -> None:
    logits = torch.full((2, VOCAB), -math.inf)
    logits[0, 77] = -1.0
    for params in ({"temperature": 0.0}, {"temperature": 1.0}, {"logit_bias": {7: 1.0}}):
        result = sample(ops, logits, [state(**params), state(**params)])
        assert result.token_ids[0] == 77
        assert list(result.errors) == [1]
        assert "-inf" in result.errors[1]


def test_masks_that_leave_nothing_are_that_requests_error(ops: Ops) -> None:
    nothing = {"allowed_token_ids": [5], "bad_words": ["5"], "bad_words_token_ids": [[5]]}
    result = sample(ops, rows(0, 2), [state(**nothing), state(temperature=0.0)])
    assert list(result.errors) == [0]
    refusal = refusal_of(result.errors[0])
    assert refusal.param == "allowed_token_ids"
    assert "allowed_token_ids and bad_words" in str(refusal)


def test_an_overflow_in_a_penalty_is_that_requests_error(ops: Ops) -> None:
    logits = rows(0, 2)
    logits[0, 11] = 3e38
    result = sample(ops, logits, [state(repetition_penalty=0.1), state()])
    assert list(result.errors) == [0]


def test_a_fault_inside_is_that_requests_error(ops: Ops, caplog: pytest.LogCaptureFixture) -> None:
    wrong = state(temperature=0.0, logit_bias={VOCAB: 1.0})
    unseeded = state(temperature=1.0, seed=None)
    result = sample(ops, rows(0, 3), [wrong, state(temperature=0.0), unseeded])
    assert sorted(result.errors) == [0, 2]
    assert "logit_bias" in result.errors[0]
    assert "seed" in result.errors[2]
    assert len(caplog.records) == 1  # only the one that is ours to mend


def test_plain_greedy_is_an_argmax_and_only_rows_that_need_an_operation_pay() -> None:
    seen: list[int] = []

    def argmax(logits: Tensor) -> tuple[sampling.TokenIds, FloatRow]:
        return sampling.argmax(logits)

    def spy(logits: Tensor, rows: list[sampling.SampleRow]) -> list[int]:
        seen.extend(row.row for row in rows)
        return sampling.sample(logits, rows)

    def report(logits: Tensor, rows: list[ReportedRow], mode: LogprobsMode) -> list[TokenLogprobs]:
        seen.extend(row.row + 100 for row in rows)
        return sampling.report(logits, rows, mode)

    ops = TorchOps().using(argmax=argmax, sample=spy, report=report)
    logits = rows(0, 5)
    sample(ops, logits, [state(temperature=0.0) for _ in range(5)])
    assert not seen
    states = [state(temperature=0.0, **extra) for extra in ({}, {"logprobs": 1}, {"min_tokens": 9})]
    sample(ops, logits, [state(), *states, state(temperature=0.0)])
    assert seen == [0, 3, 102]


def test_a_fault_of_the_operation_is_one_rows(caplog: pytest.LogCaptureFixture) -> None:
    def faulty(logits: Tensor, rows: list[sampling.SampleRow]) -> list[int]:
        if any(row.row == 1 for row in rows):
            raise RuntimeError("broken")
        return sampling.sample(logits, rows)

    logits = rows(0, 3)
    states = [state(seed=i) for i in range(3)]
    result = sample(TorchOps().using(sample=faulty), logits, states)
    assert list(result.errors) == [1]
    assert "broken" in result.errors[1]
    healthy = sample(TorchOps(), logits, states)
    assert [result.token_ids[i] for i in (0, 2)] == [healthy.token_ids[i] for i in (0, 2)]
    assert len(caplog.records) == 1


def test_first_of_equal_logits_wins(ops: Ops) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [300, 7, 299]] = 1.0
    assert sample(ops, logits, [state(temperature=0.0)]).token_ids.tolist() == [7]


@pytest.mark.parametrize("sick", [0, 1])
def test_one_of_two_rows_that_cannot_be_sampled_fails_alone(sick: int) -> None:
    table = load_ops("reference")

    def failing(logits: Tensor, rows: list[sampling.SampleRow]) -> Any:
        if any(row.row == sick for row in rows):
            raise RuntimeError("no such row")
        return table.sample(logits, rows)

    ops = table.using(sample=failing)
    states = [state(seed=seed, temperature=1.0) for seed in range(2)]
    result = sample(ops, rows(0, 2), states)
    assert list(result.errors) == [sick]
    assert "no such row" in result.errors[sick]
    alone = sample(table, rows(0, 2), states)
    assert result.token_ids[1 - sick] == alone.token_ids[1 - sick]


def test_a_row_that_its_penalty_makes_infinite_says_so(ops: Ops) -> None:
    logits = torch.full((1, VOCAB), 3e38)
    row = state(temperature=1.0, repetition_penalty=0.01)
    assert "NaN or infinity" in sample(ops, logits, [row]).errors[0]


def test_an_edit_that_makes_infinity_is_no_contradiction() -> None:
    """Some tokens are ruled out and one is infinite: the fields do not rule out every token."""

    class Edits:
        def apply(self, logits: np.ndarray) -> None:
            logits[:2] = -math.inf, math.inf

    row = sampling.SampleRow(0, SamplingParams(bad_words=["a"]), 5, Edits())  # type: ignore[arg-type]
    assert "NaN or infinity" in _no_token(np.zeros(3, np.float32), row)


@pytest.mark.parametrize("provider", ["reference", "cpu"])
def test_rows_behind_drafts_are_those_of_the_output_with_them(provider: str) -> None:
    """Each with its own random number, penalties and masks; to the bit, and more than once."""
    sampler, later = Sampler(load_ops(provider)), [42, 8, 40, 3, 7, 7]
    guessed, states, ahead = list[SamplingState](), list[SamplingState](), list[int]()
    for params in MENU:
        params = {"ignore_eos": True, **params, "seed": 11}
        counts = range(len(later) + 1)
        states += [state(output=OUTPUT + later[:count], **params) for count in counts]
        row = state(output=OUTPUT + later, **params)
        row._num_tokens -= len(later)
        guessed += [row] * len(counts)
        ahead += counts
    logits = rows(5, len(states))
    expected = sampler.sample(logits, SamplingBatch(states))
    for _ in range(2):
        found = sampler.sample(logits, SamplingBatch(guessed, ahead))
        assert found.token_ids.tolist() == expected.token_ids.tolist()
        assert found.logprobs == expected.logprobs
        assert not found.errors
