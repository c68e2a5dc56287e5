"""Rows 34 and 35: a KV cache that is too small."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.serving import serving
from tests.faults.requests import assert_refused, assert_unharmed

SMALL = ("--num-gpu-blocks-override", "24", "--block-size", "8")


def test_row_34_exhausted_is_preempted_and_finished(tiny_model: Path) -> None:
    prompts = [f"{i}: once upon a time" for i in range(12)]
    with serving(tiny_model, *SMALL) as server:
        canary = server.text()
        alone = [server.text(prompt=p, max_tokens=60, ignore_eos=True) for p in prompts]
        assert server.metric("num_preemptions_total") == 0

        def answer(prompt: str) -> str:
            return server.text(prompt=prompt, max_tokens=60, ignore_eos=True)

        with ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(answer, prompts))
        assert server.metric("num_preemptions_total") > 0
        assert together == alone
        assert_unharmed(server, canary)


def test_row_35_larger_than_the_whole_cache(tiny_model: Path) -> None:
    with serving(tiny_model, *SMALL) as server:
        canary = server.text()
        assert_refused(server.complete(prompt="a" * 192), "prompt", "192", "KV cache")
        lowered = server.complete(max_tokens=250, ignore_eos=True).json()
        assert lowered["warnings"][0]["param"] == "max_tokens"
        assert lowered["usage"]["total_tokens"] == 192
        assert server.complete(max_tokens=None).status_code == 200
        assert_unharmed(server, canary)
