"""Beginnings that were seen before."""

from __future__ import annotations

import pytest

from quire.metrics import repeats
from quire.metrics.repeats import CHUNK, RepeatedPrefixes


def test_whole_chunks_of_a_prompt_that_came_before_count() -> None:
    seen = RepeatedPrefixes()
    prompt = list(range(5 * CHUNK + 7))
    assert seen.note(prompt) == 0
    assert seen.note(prompt) == 5 * CHUNK
    assert seen.note([*prompt[: 3 * CHUNK + 5], -1, *prompt]) == 3 * CHUNK
    assert seen.note([-2, *prompt]) == 0
    assert seen.note(prompt[: CHUNK + 1]) == CHUNK


def test_the_last_token_is_computed_always() -> None:
    seen = RepeatedPrefixes()
    prompt = list(range(2 * CHUNK))
    seen.note(prompt)
    assert seen.note(prompt) == CHUNK


def test_salts_share_nothing() -> None:
    seen = RepeatedPrefixes()
    prompt = list(range(2 * CHUNK + 1))
    seen.note(prompt, "a")
    assert seen.note(prompt, "b") == 0
    assert seen.note(prompt) == 0
    assert seen.note(prompt, "a") == 2 * CHUNK


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST_CHUNKS", 3)
    seen = RepeatedPrefixes()
    for i in range(10):
        seen.note([i] * (2 * CHUNK + 1))
    assert len(seen._seen) == 3
    assert seen.note([9] * (2 * CHUNK + 1)) == 2 * CHUNK
    assert seen.note([0] * (2 * CHUNK + 1)) == 0
