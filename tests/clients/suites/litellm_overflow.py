"""A prompt that is too long, as litellm tells it, and what its router falls back to."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network

import litellm

URL = os.environ["QUIRE_URL"]
MODEL = os.environ["QUIRE_MODEL"]
LONG: list[Any] = [{"role": "user", "content": "a cat " * 40_000}]


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
def test_overflow(provider: str) -> None:
    base = URL if provider == "anthropic" else f"{URL}/v1"
    fields = {"api_base": base, "api_key": "none", "num_retries": 0, "max_tokens": 16}
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(f"{provider}/{MODEL}", LONG, **fields)


def test_overflow_of_a_stream() -> None:
    fields = {"api_base": f"{URL}/v1", "api_key": "none", "num_retries": 0}
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(f"openai/{MODEL}", LONG, **fields, stream=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_overflow_of_responses(provider: str, stream: bool) -> None:
    fields: dict[str, Any] = {"api_base": f"{URL}/v1", "api_key": "none", "num_retries": 0}
    with pytest.raises(litellm.ContextWindowExceededError):
        list(litellm.responses(LONG, f"{provider}/{MODEL}", **fields, stream=stream))


def test_the_router_falls_back() -> None:
    served = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none"}
    router = litellm.Router(
        model_list=[
            {"model_name": "small", "litellm_params": served},
            {"model_name": "large", "litellm_params": {**served, "mock_response": "short"}},
        ],
        context_window_fallbacks=[{"small": ["large"]}],
        num_retries=0,
    )
    answer = router.completion("small", LONG, max_tokens=16)
    assert answer.choices[0].message.content == "short"
