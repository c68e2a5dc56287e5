"""A small budget of what `python -m tests.fuzz.openapi` does for longer."""

from __future__ import annotations

import logging

import pytest

from tests.fuzz import openapi

REQUESTS = 4
"""For each operation, right ones and wrong ones."""


def test_answers_are_as_the_document_says(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="quire")
    statuses = openapi.fuzz(REQUESTS, seed=0)
    assert statuses[200] > REQUESTS
    assert statuses[400] > 4 * REQUESTS
    assert not any(status >= 500 for status in statuses)
