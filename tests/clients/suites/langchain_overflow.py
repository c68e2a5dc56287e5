"""A prompt that is too long, as langchain's models tell it, and what they fall back to."""

from __future__ import annotations

import os
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import FakeListChatModel
from langchain_openai import ChatOpenAI

URL = os.environ["QUIRE_URL"]
FIELDS: dict[str, Any] = {"model": os.environ["QUIRE_MODEL"], "api_key": "none", "max_retries": 0}
LONG = "a cat " * 40_000
MODELS: list[Any] = [
    ChatOpenAI(base_url=f"{URL}/v1", **FIELDS),
    ChatOpenAI(base_url=f"{URL}/v1", use_responses_api=True, **FIELDS),
    ChatAnthropic(base_url=URL, **FIELDS),
]


@pytest.mark.parametrize("model", MODELS, ids=["chat", "responses", "messages"])
def test_falls_back(model: Any) -> None:
    with pytest.raises(ContextOverflowError):
        model.invoke(LONG)
    with pytest.raises(ContextOverflowError):
        list(model.stream(LONG))
    other = FakeListChatModel(responses=["short"])
    guarded = model.with_fallbacks([other], exceptions_to_handle=(ContextOverflowError,))
    assert guarded.invoke(LONG).text == "short"
    assert guarded.invoke("a cat").text != "short"
