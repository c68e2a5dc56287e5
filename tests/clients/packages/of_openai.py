"""The official package: every field that it has and that changes no answer, and each API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai

from tests.clients.tasks import CHAT, CLOSED_WEATHER, PARTS, QUESTION, SYSTEM, WEATHER, Cat, Den

FUNCTION: Any = {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}
TOOL: Any = {"type": "function", "function": FUNCTION}
STRICT_TOOL: Any = {
    "type": "function",
    "function": {**FUNCTION, "parameters": CLOSED_WEATHER, "strict": True},
}


def scenarios(url: str) -> Iterator[Callable[[], object]]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    chat = client.chat.completions

    def chat_fields_without_effect() -> None:
        chat.create(
            model="tiny",
            messages=CHAT,
            max_completion_tokens=16,
            store=True,
            metadata={"trace": "1"},
            verbosity="low",
            prompt_cache_key="key",
            prompt_cache_retention="24h",
            safety_identifier="someone",
            user="someone",
            service_tier="flex",
            modalities=["text"],
            prediction={"type": "content", "content": "The cat"},
            logit_bias={},
            reasoning_effort="low",
        )

    def chat_stream() -> None:
        options: Any = {"include_usage": True, "include_obfuscation": False}
        for _ in chat.create(
            model="tiny", messages=PARTS, max_tokens=16, stream=True, stream_options=options
        ):
            pass

    def chat_stream_helper() -> None:
        with chat.stream(model="tiny", messages=CHAT, max_tokens=16) as stream:
            stream.get_final_completion()

    def chat_tools() -> None:
        messages: list[Any] = [*CHAT]
        first = chat.create(
            model="tiny",
            messages=messages,
            tools=[TOOL],
            tool_choice="auto",
            parallel_tool_calls=False,
        )
        answer = first.choices[0].message
        [call] = answer.tool_calls or ()
        messages += [
            answer,
            {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"},
        ]
        chat.create(model="tiny", messages=messages, tools=[TOOL])
        as_dict = {**answer.model_dump(), "audio": None, "function_call": None, "annotations": []}
        chat.create(model="tiny", messages=[*CHAT, as_dict, messages[-1]], tools=[TOOL])  # type: ignore[list-item]

    def chat_tool_choices() -> None:
        named: Any = {"type": "function", "function": {"name": "get_weather"}}
        allowed: Any = {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [named]},
        }
        choices: list[Any] = ["required", "none", named, allowed]
        for choice in choices:
            chat.create(model="tiny", messages=CHAT, tools=[STRICT_TOOL], tool_choice=choice)

    def chat_legacy_functions() -> None:
        chat.create(model="tiny", messages=CHAT, functions=[FUNCTION], function_call="auto")
        said: Any = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
        chat.create(
            model="tiny",
            messages=[
                *CHAT,
                {"role": "assistant", "content": None, "function_call": said},
                {"role": "function", "name": "get_weather", "content": "12 degrees"},
            ],
            functions=[FUNCTION],
        )

    def chat_parse() -> None:
        chat.parse(model="tiny", messages=CHAT, response_format=Cat)
        chat.parse(model="tiny", messages=CHAT, response_format=Den)
        chat.parse(model="tiny", messages=CHAT, tools=[openai.pydantic_function_tool(Cat)])

    def chat_formats() -> None:
        formats: list[Any] = [
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER}},
        ]
        for wanted in formats:
            chat.create(model="tiny", messages=CHAT, response_format=wanted, max_tokens=64)

    def chat_history_of_other_servers() -> None:
        refusal: Any = {"type": "refusal", "refusal": "I will not."}
        chat.create(
            model="tiny",
            messages=[
                {"role": "developer", "content": SYSTEM},
                {"role": "user", "content": QUESTION, "name": "ann"},
                {"role": "assistant", "content": [refusal]},
                {"role": "user", "content": "Please."},
                {"role": "assistant", "content": "No.", "refusal": None},
                {"role": "user", "content": "Please!"},
            ],
            max_tokens=16,
        )

    def vllm_fields() -> None:
        chat.create(
            model="tiny",
            messages=CHAT,
            max_tokens=16,
            extra_body={
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "length_penalty": 1.0,
                "use_beam_search": False,
                "best_of": 1,
                "ignore_eos": False,
                "skip_special_tokens": True,
                "add_generation_prompt": True,
                "add_special_tokens": False,
                "include_stop_str_in_output": False,
                "guided_decoding_backend": None,
                "documents": [],
                "chat_template_kwargs": {"enable_thinking": False},
            },
        )

    def completions() -> None:
        client.completions.create(
            model="tiny",
            prompt="A cat",
            max_tokens=16,
            best_of=1,
            echo=False,
            logprobs=0,
            n=1,
            suffix="",
            user="someone",
            extra_body={"use_beam_search": False},
        )
        for _ in client.completions.create(
            model="tiny", prompt=["A", "B"], max_tokens=4, stream=True
        ):
            pass

    def embeddings() -> None:
        client.embeddings.create(model="tiny", input=["a cat", "a dog"], user="someone")

    def models() -> None:
        client.models.list()

    def responses() -> None:
        first = client.responses.create(
            model="tiny",
            input=QUESTION,
            instructions=SYSTEM,
            store=True,
            metadata={"trace": "1"},
            text={"verbosity": "low"},
            reasoning={"effort": "low", "summary": "auto"},
            include=["reasoning.encrypted_content"],
            service_tier="auto",
            truncation="auto",
            tool_choice="auto",
            max_output_tokens=32,
            prompt_cache_key="key",
            safety_identifier="someone",
        )
        client.responses.create(
            model="tiny", input="And then?", previous_response_id=first.id, max_output_tokens=32
        )

    def responses_with_tools() -> None:
        tool: Any = {"type": "function", **FUNCTION, "strict": False}
        hosted: Any = [{"type": "web_search"}, {"type": "code_interpreter", "container": "auto"}]
        items: list[Any] = [{"role": "user", "content": QUESTION}]
        first = client.responses.create(model="tiny", input=items, tools=[tool, *hosted])
        items += first.output
        [call] = [item for item in first.output if item.type == "function_call"]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "12"})
        with client.responses.stream(model="tiny", input=items, tools=[tool]) as stream:
            stream.get_final_response()

    def responses_parse() -> None:
        client.responses.parse(model="tiny", input=QUESTION, text_format=Cat)

    yield from (chat_fields_without_effect, chat_stream, chat_stream_helper, chat_tools)
    yield from (chat_tool_choices, chat_legacy_functions, chat_parse, chat_formats)
    yield from (chat_history_of_other_servers, vllm_fields, completions, embeddings, models)
    yield from (responses, responses_with_tools, responses_parse)
