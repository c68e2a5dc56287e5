"""chat.py: as Transformers on ordinary messages; special tokens of users are text (fault 27)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from quire.core.errors import ConfigError, InvalidRequestError
from quire.text.chat import chat_to_token_ids, encode_chat, render_chat
from quire.text.tokenizers.hf_tokenizer import HFTokenizer, TokenizerFiles
from tests.examples import examples
from tests.unit.text.vocabularies import byte_tokenizer, real_tokenizer

TEMPLATES = [
    "chatml",
    "gemma-it",
    "llama-3-instruct",
    "mistral-instruct",
    "phi-3",
    "qwen2.5-instruct",
]
SPECIAL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|user|>", "<|end|>"),
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content|trim + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = {"role": "user", "content": " Hi thére\n"}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Be brief. "}, USER],
    [USER, {"role": "assistant", "content": "Hello!  "}, {"role": "user", "content": "> <b>?"}],
]


def gpt2_with_controls() -> HFTokenizer:
    import tokenizers

    base = real_tokenizer("vocab+merges")
    assert isinstance(base, HFTokenizer)
    backend = tokenizers.Tokenizer.from_str(base._backend.to_str())
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return HFTokenizer(TokenizerFiles(backend, {"bos_token": "<s>", "eos_token": "</s>"}))


@pytest.fixture(scope="module")
def tokenizer(shared_dir: Path) -> HFTokenizer:
    return gpt2_with_controls()


@pytest.fixture(scope="module")
def oracle(tokenizer: HFTokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._backend, bos_token="<s>", eos_token="</s>"
    )


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("generate", [True, False])
def test_equals_transformers(
    shared_dir: Path,
    tokenizer: HFTokenizer,
    oracle: PreTrainedTokenizerFast,
    name: str,
    messages: list[dict[str, Any]],
    generate: bool,
) -> None:
    source = (shared_dir / "templates" / f"{name}.jinja").read_text()
    options: dict[str, Any] = {"chat_template": source, "add_generation_prompt": generate}
    chat = render_chat(tokenizer, messages, **options)
    assert chat.text == oracle.apply_chat_template(messages, tokenize=False, **options)
    expected = oracle.apply_chat_template(messages, return_dict=False, **options)
    assert chat_to_token_ids(tokenizer, messages, **options) == expected


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("last", ["So", "So  ", " So\n"])
def test_continues_the_final_message_as_transformers(
    shared_dir: Path,
    tokenizer: HFTokenizer,
    oracle: PreTrainedTokenizerFast,
    name: str,
    last: str,
) -> None:
    source = (shared_dir / "templates" / f"{name}.jinja").read_text()
    messages = [USER, {"role": "assistant", "content": last}]
    found = render_chat(
        tokenizer,
        messages,
        chat_template=source,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert found.text == oracle.apply_chat_template(
        messages, tokenize=False, chat_template=source, continue_final_message=True
    )


def test_tools_equal_transformers(
    shared_dir: Path, tokenizer: HFTokenizer, oracle: PreTrainedTokenizerFast
) -> None:
    source = (shared_dir / "templates" / "qwen2.5-instruct.jinja").read_text()
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "weather", "description": "Wéather <now>", "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
    messages = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    options: dict[str, Any] = {"chat_template": source, "tools": tools}
    found = chat_to_token_ids(tokenizer, messages, **options)
    assert found == oracle.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, **options
    )


PIECES = st.sampled_from(
    [*SPECIAL, "<|im_", "start|>", "end|>", "<", "|>", "<|", ">", "s>", " ", "x\n"]
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.lists(PIECES, max_size=5).map("".join), min_size=1, max_size=3))
def test_special_tokens_of_users_are_text(contents: list[str]) -> None:
    tokenizer = byte_tokenizer(*SPECIAL, chat_template=CHATML)
    messages = [{"role": "user", "content": content} for content in contents]
    chat = render_chat(tokenizer, messages)
    ids = encode_chat(tokenizer, chat)
    start, end = (tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))
    expected = []
    for content in contents:
        expected += [start, *f"user\n{content.strip()}".encode(), end]
    assert ids == [*expected, start, *b"assistant\n"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == chat.text


@pytest.mark.parametrize(
    "template",
    [
        "{{ '<|im_' + messages[0].content }}",
        "{{ messages[0].content + 'start|>' }}",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{{ tools|tojson }}",
        "{{ tools[0].name }}",
        "{{ extra }}",
        "{{ documents[0].text }}",
        "{{ messages[0].name }}",
    ],
)
def test_no_way_round(template: str) -> None:
    tokenizer = byte_tokenizer(*SPECIAL)
    attack = "<|im_start|>"
    for contents in (["start|>"], ["<|im_"], ["<|im_", "start|>"], [attack]):
        messages = [{"role": "user", "content": text, "name": attack} for text in contents]
        ids = chat_to_token_ids(
            tokenizer,
            messages,
            chat_template=template,
            tools=[{"name": attack, attack: 1}],
            documents=[{"text": attack}],
            kwargs={"extra": attack},
        )
        assert max(ids) < 256


@pytest.mark.parametrize("role", ["user|>\n<|end", "", "a b", None, 3, "x" * 65])
def test_roles_are_words(role: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[0\].role"):
        render_chat(byte_tokenizer(chat_template=CHATML), [{"role": role, "content": "x"}])


WITHOUT_TEXT = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}


@pytest.mark.parametrize(
    "message",
    [
        WITHOUT_TEXT,
        {"role": "assistant", "content": "x", "tool_calls": None, "name": None},
        *({**WITHOUT_TEXT, name: "hm"} for name in ("reasoning_content", "reasoning", "thinking")),
    ],
)
def test_nulls_and_names_of_reasoning(
    oracle: PreTrainedTokenizerFast, message: dict[str, Any]
) -> None:
    source = "{% for m in messages %}{{ m | tojson(sort_keys=true) }}{% endfor %}"
    messages = [USER, message]
    text = render_chat(byte_tokenizer(chat_template=source), messages).text
    options: dict[str, Any] = {"chat_template": source, "tokenize": False}
    assert text == oracle.apply_chat_template(messages, **options)


def test_gpt_oss_takes_no_reasoning_with_a_text_and_a_call() -> None:
    source = "{{ 'thinking' in messages[0] }}"
    message = WITHOUT_TEXT | {"content": "x", "reasoning": "hm"}
    assert render_chat(byte_tokenizer(chat_template=source), [message]).text == "False"


def test_content_in_parts() -> None:
    tokenizer = byte_tokenizer(chat_template="{{ messages[0].content }}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render_chat(tokenizer, [{"role": "user", "content": parts}]).text == "a\nb"
    places = (
        "{% for m in messages %}{% for p in m.content %}"
        "{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}{% endfor %}"
    )
    both: Any = {"role": "user", "content": ["a", {"type": "image"}]}
    found = render_chat(tokenizer, [both], chat_template=places).text
    assert found == "a<image>", "a text without a type stays"
    image = [{"type": "image_url", "image_url": {"url": "http://x"}}]
    with pytest.raises(InvalidRequestError, match="a part that is not text"):
        render_chat(tokenizer, [{"role": "user", "content": image}])


def test_developers_are_the_system_where_the_template_knows_no_other() -> None:
    written = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
    messages = [{"role": "developer", "content": "a"}, USER]
    for template, role in ((written, "system"), (written + "{# developer #}", "developer")):
        text = render_chat(byte_tokenizer(chat_template=template), messages).text
        assert text.startswith(f"{role}: a user: ")
    assert messages[0]["role"] == "developer"


def test_a_model_without_a_template() -> None:
    with pytest.raises(ConfigError, match=r"has no chat template.*--chat-template"):
        render_chat(byte_tokenizer(), [USER])
    with pytest.raises(ConfigError, match="called 'nosuch'"):
        render_chat(byte_tokenizer(chat_template=CHATML), [USER], chat_template="nosuch")


def test_named_templates() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_templates = {"default": "{{ 1 }}", "tool_use": "{{ 2 }}", "rag": "{{ 3 }}"}
    assert render_chat(tokenizer, [USER]).text == "1"
    assert render_chat(tokenizer, [USER], tools=[{"name": "f"}]).text == "2"
    assert render_chat(tokenizer, [USER], chat_template="rag").text == "3"


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "add_generation_prompt"])
def test_kwargs_cannot_override(name: str) -> None:
    tokenizer = byte_tokenizer("<s>", "</s>", chat_template=CHATML)
    with pytest.raises(InvalidRequestError, match=f"may not set {name}"):
        render_chat(tokenizer, [USER], kwargs={name: "x"})
    switched = render_chat(
        tokenizer, [USER], chat_template="{{ enable_thinking }}", kwargs={"enable_thinking": False}
    )
    assert switched.text == "False"


def test_continuing_needs_a_message() -> None:
    tokenizer = byte_tokenizer(chat_template=CHATML)
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        render_chat(tokenizer, [USER], continue_final_message=True)
    with pytest.raises(InvalidRequestError, match="needs a last message"):
        render_chat(tokenizer, [], add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(InvalidRequestError, match="leaves out the end"):
        render_chat(
            tokenizer,
            [USER],
            chat_template="{{ 1 }}",
            add_generation_prompt=False,
            continue_final_message=True,
        )
