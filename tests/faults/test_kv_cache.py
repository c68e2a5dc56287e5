"""Rows 34 and 35: a KV cache that is too small."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.serving import Server, serving
from tests.faults.requests import assert_refused, assert_unharmed

SMALL = ("--num-gpu-blocks-override", "24", "--block-size", "8")


@pytest.fixture(scope="module")
def small(tiny_model: Path) -> Iterator[Server]:
    with serving(tiny_model, *SMALL) as running:
        yield running


def test_row_34_exhausted_is_preempted_and_finished(small: Server) -> None:
    prompts = [f"{i}: once upon a time" for i in range(12)]
    canary = small.text()

    def answer(prompt: str) -> str:
        return small.text(prompt=prompt, max_tokens=60, ignore_eos=True)

    alone = list(map(answer, prompts))
    assert small.metric("num_preemptions_total") == 0
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(answer, prompts))
    assert small.metric("num_preemptions_total") > 0
    assert together == alone
    assert_unharmed(small, canary)


def test_row_35_larger_than_the_whole_cache(small: Server) -> None:
    canary = small.text()
    assert_refused(small.complete(prompt="a" * 192), "prompt", "192", "KV cache")
    lowered = small.complete(max_tokens=250, ignore_eos=True).json()
    assert lowered["warnings"][0]["param"] == "max_tokens"
    assert lowered["usage"]["total_tokens"] == 192
    assert small.complete(max_tokens=None).status_code == 200
    assert_unharmed(small, canary)
