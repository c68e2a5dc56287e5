"""langchain-tests' standard tests, for the three classes that people point at this server."""

from __future__ import annotations

import os
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

URL = os.environ["QUIRE_URL"]
MODEL = os.environ["QUIRE_MODEL"]


class _OpenAI:
    """What both kinds of tests ask of a class."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": MODEL,
            "base_url": f"{URL}/v1",
            "api_key": "none",
            "max_retries": 0,
            "stream_usage": True,  # the class asks for it of OpenAI's own address alone
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return False

    @property
    def model_override_value(self) -> str:
        return MODEL


class _Responses(_OpenAI):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}


class _Anthropic(_OpenAI):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": MODEL, "base_url": URL, "api_key": "none", "max_retries": 0}

    @property
    def supports_json_mode(self) -> bool:
        return False

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True


class _Unit(ChatModelUnitTests):
    @pytest.mark.xfail(reason="Its snapshot is a file of langchain's own repository.")
    def test_serdes(self, model: Any, snapshot: Any) -> None:
        super().test_serdes(model, snapshot)


class TestChatUnit(_OpenAI, _Unit): ...


class TestChat(_OpenAI, ChatModelIntegrationTests): ...


class TestResponsesUnit(_Responses, _Unit): ...


class TestResponses(_Responses, ChatModelIntegrationTests): ...


class TestMessagesUnit(_Anthropic, _Unit): ...


class TestMessages(_Anthropic, ChatModelIntegrationTests):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        """The class's own `max_tokens` is above the context of the embedded model."""
        return {**super().chat_model_params, "max_tokens": 512}
