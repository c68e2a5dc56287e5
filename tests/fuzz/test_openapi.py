"""A small budget of what `python -m tests.fuzz.openapi` does for longer."""

from __future__ import annotations

import logging

import pytest
import schemathesis

from tests.fuzz import openapi


@pytest.mark.parametrize("requests", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_answers_are_as_the_document_says(requests: int, caplog: pytest.LogCaptureFixture) -> None:
    """`requests` for each operation, right ones and wrong ones; `make test` has one of the two."""
    caplog.set_level(logging.CRITICAL, logger="quire")
    statuses = openapi.fuzz(requests, seed=0, in_turn=requests == 1)
    assert statuses[200] > requests
    assert statuses[400] > 4 * requests
    assert not any(status >= 500 for status in statuses)


MESSAGES = [{"role": "user", "content": "a"}]
STREAMS = {
    "/v1/completions": {"prompt": "a", "max_tokens": 3, "logprobs": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/responses": {"input": "a", "max_output_tokens": 3},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3},
}


def test_events_of_streams_are_as_the_document_says() -> None:
    """Found by `tests.fuzz.openapi`: a stream's schema was read as each event's."""
    with openapi.served() as url:
        document = schemathesis.openapi.from_url(f"{url}/openapi.json")
        operations = [result.ok() for result in document.get_all_operations()]
        for path, fields in STREAMS.items():
            [operation] = [o for o in operations if (o.path, o.method) == (path, "post")]
            body = {"model": openapi.MODEL, "stream": True, **fields}
            case = operation.Case(body=body, media_type="application/json")
            response = case.call()
            assert response.headers["content-type"] == ["text/event-stream; charset=utf-8"]
            case.validate_response(response, checks=openapi.CHECKS)
