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
