"""instructor's modes for these APIs: whole, partial, iterated and retried answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import anthropic
import instructor
import openai
import pytest
from pydantic import AfterValidator, BaseModel

from tests.clients.tasks import CHAT, Cat, Den

URL = os.environ["QUIRE_URL"]
MODEL = os.environ["QUIRE_MODEL"]
OPENAI = ("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON", "RESPONSES_TOOLS")
ANTHROPIC = ("ANTHROPIC_TOOLS", "ANTHROPIC_JSON")
ASKED: dict[str, Any] = {"model": MODEL, "messages": CHAT}


@pytest.fixture(params=[*OPENAI, *ANTHROPIC])
def client(request: pytest.FixtureRequest) -> Any:
    mode = instructor.Mode[request.param]
    if request.param in ANTHROPIC:
        plain = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
        return instructor.from_anthropic(plain, mode=mode, max_tokens=512)
    return instructor.from_openai(
        openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0), mode=mode
    )


def test_whole(client: Any) -> None:
    cat = client.create(**ASKED, response_model=Cat, max_retries=1)
    assert (cat.name, cat.age, cat.mood) == ("cat", 3, "happy")


def test_nested(client: Any) -> None:
    den = client.create(**ASKED, response_model=Den, max_retries=1)
    assert [cat.name for cat in den.cats] == ["cat"]


def test_with_the_completion(client: Any) -> None:
    cat, answer = client.create_with_completion(**ASKED, response_model=Cat, max_retries=1)
    assert cat.name == "cat"
    assert answer.usage is not None


def test_partial(client: Any) -> None:
    *_, last = client.create_partial(**ASKED, response_model=Cat)
    assert last.name == "cat"


def test_iterable(client: Any) -> None:
    assert [cat.name for cat in client.create_iterable(**ASKED, response_model=Cat)] == ["cat"]


def test_simple_types(client: Any) -> None:
    assert client.create(**ASKED, response_model=int, max_retries=1) == 3
    choice = client.create(**ASKED, response_model=Literal["a", "b"], max_retries=1)
    assert choice == "a"


def test_retries_send_the_answer_back(client: Any) -> None:
    tries: list[str] = []

    def second(name: str) -> str:
        tries.append(name)
        if len(tries) == 1:
            raise ValueError("Another name, please.")
        return name

    class Named(BaseModel):
        name: Annotated[str, AfterValidator(second)]

    assert client.create(**ASKED, response_model=Named, max_retries=3).name == "cat"
    assert len(tries) == 2


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_async(mode: str) -> None:
    plain = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    client = instructor.from_openai(plain, mode=instructor.Mode[mode])
    assert asyncio.run(client.create(**ASKED, response_model=Cat, max_retries=1)).name == "cat"


def test_parallel_tools() -> None:
    plain = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    client = instructor.from_openai(plain, mode=instructor.Mode.PARALLEL_TOOLS)
    found = client.create(**ASKED, response_model=Iterable[Cat | Den])
    assert all(isinstance(each, Cat | Den) for each in found)
