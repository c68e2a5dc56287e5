"""Which requests of a failed step are computed in parts."""

from __future__ import annotations

import numpy as np

from quire.core.batch import ModelOutput, NewSequence, SchedulerOutput, block_columns, token_columns
from quire.core.sampling_params import SamplingParams
from quire.engine.isolate import compute_apart
from quire.executor.base import ForwardError


def test_only_requests_behind_a_lost_one_are_left_out() -> None:
    """Else two requests with cached prefixes, of which the pool holds one, would wait forever."""
    names = ["first", "gone", "behind"]
    new = [NewSequence(name, [1, 2, 3], 3, SamplingParams()) for name in names]
    step = SchedulerOutput(
        0, names, np.ones(3, np.int64), np.full(3, 2), block_columns([]), new, [], 3
    )
    computed: list[str] = []

    def compute(part: SchedulerOutput) -> ModelOutput:
        computed.extend(part.request_ids)
        return ModelOutput(token_columns([[5]] * len(part.request_ids)))

    output, lost = compute_apart(compute, step, ForwardError([], 0.0), {"gone"})
    assert computed == ["first"]
    assert lost == {"behind"}
    assert output.sampled_token_ids.tolist() == [[5], [-1], [-1]]


def test_loads_go_on_while_parts_are_computed() -> None:
    step = SchedulerOutput(
        0, ["a", "b"], np.ones(2, np.int64), np.zeros(2), block_columns([]), [], [], 2
    )

    def compute(part: SchedulerOutput) -> ModelOutput:
        if part.request_ids == ["a"]:
            raise ForwardError([7], 0.0, [8, 9]) from ValueError("a")
        return ModelOutput(token_columns([[5]]), failed_loads=[8], pending_loads=[9])

    output, _ = compute_apart(compute, step, ForwardError([6], 0.0, [7, 8, 9]))
    assert output.errors == {"a": "ValueError: a"}
    assert output.failed_loads == [6, 7, 8]
    assert output.pending_loads == [9]
