"""Prompts, or parts of them, that were seen before."""

from __future__ import annotations

from random import Random

import pytest

from quire.core.lora import LoRARequest
from quire.core.options import NO_OPTIONS, RequestOptions
from quire.core.outputs import RequestMetrics
from quire.core.sampling_params import SamplingParams
from quire.metrics import repeats
from quire.metrics.repeats import CHUNK, MOST, RepeatedPrefixes, Repeats
from quire.metrics.stats import EngineStats


def test_whole_chunks_of_a_prompt_that_came_before_count() -> None:
    seen = RepeatedPrefixes()
    prompt = list(range(5 * CHUNK + 7))
    assert seen.note(prompt) == Repeats()
    assert seen.note(prompt) == Repeats(leading=5 * CHUNK)
    assert seen.note([*prompt[: 3 * CHUNK + 5], -1, *prompt]).leading == 3 * CHUNK
    assert seen.note([-2, *prompt]).leading == 0
    assert seen.note(prompt[: CHUNK + 1]) == Repeats(leading=CHUNK)


def test_the_last_token_is_computed_always() -> None:
    seen = RepeatedPrefixes()
    prompt = list(range(2 * CHUNK))
    seen.note(prompt)
    assert seen.note(prompt).leading == CHUNK


def test_salts_share_nothing() -> None:
    seen = RepeatedPrefixes()
    prompt = list(range(2 * CHUNK + 1))
    seen.note(prompt, "a")
    assert seen.note(prompt, "b") == Repeats(salted=2 * CHUNK)
    assert seen.note(prompt) == Repeats(salted=2 * CHUNK)
    assert seen.note(prompt, "a") == Repeats(leading=2 * CHUNK)


@pytest.mark.parametrize("longer", [0, 1, 16, 37])
def test_text_behind_another_beginning_is_shifted(longer: int) -> None:
    """A timestamp or a name has not always as many tokens."""
    seen = RepeatedPrefixes()
    draw = Random(3)
    body = [draw.randrange(1000) for _ in range(12 * CHUNK)]
    first, second = ([n] * (20 + more) + body for n, more in ((1001, 0), (1002, longer)))
    assert seen.note(first) == Repeats()
    again = seen.note(second)
    assert again.leading == again.salted == 0
    assert len(body) - 2 * MOST <= again.shifted <= len(body)
    assert seen.note(second).shifted == 0


def test_a_prefix_and_repetitions_within_a_prompt_are_not_shifted() -> None:
    """Seen: of a common prefix, the cache serves blocks that are shorter than a chunk."""
    draw = Random(4)
    for prefix in range(CHUNK, 3 * CHUNK, 7):
        seen = RepeatedPrefixes()
        common = [draw.randrange(1000) for _ in range(prefix)]
        for _ in range(3):
            assert seen.note(common + [draw.randrange(1000) for _ in range(60)]).shifted == 0
    assert RepeatedPrefixes().note([5] * 1000).shifted == 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST_CHUNKS", 3)
    seen = RepeatedPrefixes()
    for i in range(10):
        seen.note([i] * (2 * CHUNK + 1))
    assert len(seen._chains) == 3
    assert len(seen._pieces) <= 3
    assert seen.note([9] * (2 * CHUNK + 1)).leading == 2 * CHUNK
    assert seen.note([0] * (2 * CHUNK + 1)).leading == 0


def test_what_cannot_share_blocks_repeats_nothing() -> None:
    """Adapters and images make other blocks; log-probabilities of prompts need them computed."""
    prompt, plain = list(range(2 * CHUNK + 1)), SamplingParams()
    stats = EngineStats()
    one, other = (
        RequestOptions(lora_request=LoRARequest(name, n, name)) for n, name in enumerate("ab", 1)
    )
    cat = (plain, NO_OPTIONS, [b"a cat"])
    whole = (plain, RequestOptions(skip_reading_prefix_cache=True))
    for asked in ((), (plain, one), (plain, other), cat, whole):
        record, asks = stats.on_arrival(prompt, *asked)
        assert (record.shared_tokens, asks.salted_tokens, asks.shifted_tokens) == (0, 0, 0)
    assert not stats.on_arrival(prompt, SamplingParams(prompt_logprobs=0)).record.shared_tokens
    for asked in ((), (plain, other), cat):
        assert stats.on_arrival(prompt, *asked).record.shared_tokens == 2 * CHUNK


def test_repeated_tokens_are_counted_with_the_cached_ones() -> None:
    """A request that has arrived and waits is no miss yet."""
    stats = EngineStats()
    stats.on_arrival(list(range(200)))
    record = stats.on_arrival(list(range(200))).record
    assert stats.repeated_tokens == 0
    stats.on_first_token(RequestMetrics(), 200, 192, record.shared_tokens)
    assert stats.repeated_tokens == 192
