"""Which drafts count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire.core.batch import ModelOutput
from quire.core.messages import TokenLogprobs
from quire.core.sampling_params import SamplingParams
from quire.runner.drafts import accept, synthetic
from quire.runner.state import SequenceStates
from quire.sampling.sampler import SampleResult
from tests.unit.runner.test_state import new, step


def test_synthetic_acceptance_has_its_rates_over_seeds() -> None:
    agrees = synthetic([0.8, 0.1])

    def accepted(number: int, position: int) -> list[bool]:
        states: list[Any] = [
            SimpleNamespace(params=SimpleNamespace(seed=seed), num_output_tokens=position)
            for seed in [None, *range(1, 400)]
        ]
        return [agrees(state, number, 5, 7) for state in states]

    first = accepted(0, 3)
    assert accepted(0, 3) == first != accepted(0, 4)
    assert abs(sum(first) - 320) < 40  # five standard deviations
    assert abs(sum(accepted(1, 3)) - 40) < 30


END = 3


@pytest.mark.parametrize(
    ("drafts", "sampled", "errors", "taken", "right"),
    [
        ([4, 5, 6], [4, 5, 6, 7], (), 4, 3),
        ([4, 5, 6], [4, 9, 6, 7], (), 2, 1),
        ([END, 5, 6], [END, 5, 6, 7], (), 4, 3),  # too early to end
        ([4, END, 6], [4, END, 6, 7], (), 2, 2),
        ([4, 5, 6], [4, 5, 6, 7], (2,), 2, 2),  # the next step meets the error first
        ([4, 5, 6], [4, 5, 6, 7], (0, 3), 0, 0),
    ],
)
def test_what_counts_of_a_pass(
    drafts: list[int], sampled: list[int], errors: tuple[int, ...], taken: int, right: int
) -> None:
    """Of the second sequence; the first one has no drafts."""
    params = SamplingParams(stop_token_ids=[END], min_tokens=2)
    states, names = SequenceStates(2, 32, 4), ["plain", "drafted"]
    begun = step(
        {name: (0, 2, [block]) for block, name in enumerate(names)},
        [new(name, 1, 2, params=params) for name in names],
    )
    slots = states.begin(begun)
    states.token_ids[slots[1], 2:5] = drafts
    entry = TokenLogprobs([1], [0.0], 1)
    result = SampleResult(
        np.array([8, *sampled]),
        logprobs={row: entry for row in range(1, 5) if row - 1 not in errors},
        errors={1 + row: f"row {row}" for row in errors},
    )
    output = ModelOutput(np.full((2, 4), -1))
    accept(states, begun, np.arange(2), np.array([0, 3]), slots, result, output)
    assert output.sampled_token_ids.tolist() == [
        [8, -1, -1, -1], [*sampled[:taken], *[-1] * (4 - taken)]
    ]  # fmt: skip
    assert states.sampling[int(slots[1])].output.tolist() == sampled[:taken]
    assert states.sampling[int(slots[0])].output.tolist() == [8]
    assert output.drafted.tolist() == [[0, 3]]
    assert output.accepted.tolist() == [[0, right]]
    assert [len(found) for found in output.logprobs.values()] == [taken] * bool(taken)
    assert output.errors == ({"drafted": "row 0"} if 0 in errors else {})
