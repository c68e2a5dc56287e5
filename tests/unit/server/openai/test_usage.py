"""Counting a request's tokens."""

from __future__ import annotations

import msgspec

from quire.core.outputs import RequestMetrics, RequestOutput
from quire.server.openai.events import UsageCounter


def test_drafts_are_reported_where_there_were_some() -> None:
    counter = UsageCounter()
    for prompt, (drafted, accepted) in enumerate([(0, 0), (7, 5), (4, 1)]):
        metrics = RequestMetrics(num_draft_tokens=drafted, num_accepted_tokens=accepted)
        counter.add(prompt, RequestOutput("r", None, [1, 2], [], True, metrics=metrics))
        details = msgspec.to_builtins(counter.usage())["completion_tokens_details"]
        if prompt == 0:
            assert details == {"reasoning_tokens": 0}
    assert details == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 6,
        "rejected_prediction_tokens": 5,
    }
