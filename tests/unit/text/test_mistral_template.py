"""The chat template of a tekken.json alone.

726 random conversations of all three versions had the tokens of mistral-common 1.13.1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import InvalidRequestError
from quire.text.chat import chat_to_token_ids, render_chat
from quire.text.tokenizers.hf_tokenizer import HFTokenizer
from quire.text.tokenizers.tokenizer_files import load_files
from tests.unit.text.test_ranked import ranks_of, write_tekken

SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]",
)  # fmt: skip
SCHEMA = {"type": "object"}
TOOLS: Any = [
    {"type": "function", "function": {"strict": True, "parameters": SCHEMA, "name": "f"}},
    {"type": "function", "function": {"name": "g", "description": "é"}},
]
LISTED = (
    '[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "f", "description": "", '
    '"parameters": {"type": "object"}}}, {"type": "function", "function": {"name": "g", '
    '"description": "é", "parameters": {}}}][/AVAILABLE_TOOLS]'
)


def call(name: str, number: str, **arguments: Any) -> dict[str, Any]:
    return {"id": number, "function": {"name": name, "arguments": arguments}}


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "a"},
    {"role": "user", "content": "b"},
    {"role": "assistant", "content": "c ", "tool_calls": [call("f", "1", x=1), call("g", "2")]},
    {"role": "tool", "tool_call_id": "2", "content": "r2"},
    {"role": "tool", "tool_call_id": "1", "content": "r1"},
    {"role": "assistant", "content": "d"},
    {"role": "assistant", "content": "e"},
    {"role": "user", "content": "h"},
]
RESULTS = (
    "[TOOL_RESULTS]2[TOOL_CONTENT]r2[/TOOL_RESULTS][TOOL_RESULTS]1[TOOL_CONTENT]r1[/TOOL_RESULTS]"
)


def tokenizer(folder: Path, version: str, special: tuple[str, ...] = SPECIAL) -> HFTokenizer:
    named = [{"rank": i, "token_str": token} for i, token in enumerate(special)]
    config = {"pattern": r"\S+|\s+", "default_vocab_size": 2**17, "default_num_special_tokens": 40}
    ranks = ranks_of("abc")
    return load_files(
        write_tekken(folder, ranks, special_tokens=named, config=config | {"version": version})
    )


@pytest.mark.parametrize(
    ("version", "first", "calls", "results", "last"),
    [
        (
            "v7", "",
            ('[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}, "id": "1"}, '
            '{"name": "g", "arguments": {}, "id": "2"}]'),
            RESULTS, LISTED,
        ),
        (
            "v11", "",
            '[TOOL_CALLS]f[CALL_ID]1[ARGS]{"x": 1}[TOOL_CALLS]g[CALL_ID]2[ARGS]{}',
            RESULTS, LISTED,
        ),
        (
            "v13", LISTED,
            '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}',
            "[TOOL_RESULTS]r1[/TOOL_RESULTS][TOOL_RESULTS]r2[/TOOL_RESULTS]", "",
        ),
    ],
)  # fmt: skip
def test_a_conversation(
    tmp_path: Path, version: str, first: str, calls: str, results: str, last: str
) -> None:
    found = render_chat(tokenizer(tmp_path, version), MESSAGES, tools=TOOLS).text
    assert found == (
        f"<s>[SYSTEM_PROMPT]s[/SYSTEM_PROMPT]{first}[INST]a\n\nb[/INST]c{calls}</s>{results}"
        f"d\n\ne</s>{last}[INST]h[/INST]"
    )


def test_one_image_stands_before_one_text(tmp_path: Path) -> None:
    """As mistral-common writes them: it swaps one text and one image, and no others."""
    mistral = tokenizer(tmp_path, "v11", (*SPECIAL, "[IMG]"))
    text, image = {"type": "text", "text": "a[IMG]"}, {"type": "image"}

    def rendered(*contents: Any) -> str:
        messages = [{"role": "user", "content": content} for content in contents]
        return render_chat(mistral, messages).text.removeprefix("<s>[INST]")

    first = "[IMG]a[IMG][/INST]"
    assert (
        rendered([text, image]) == rendered([image, text]) == rendered("a[IMG]", [image]) == first
    )
    assert rendered(["b", text, image, image]) == "b\n\na[IMG][IMG][IMG][/INST]"
    assert rendered([text, image, text]) == "a[IMG][IMG]a[IMG][/INST]"
    ids = chat_to_token_ids(mistral, [{"role": "user", "content": [text, image]}])
    assert ids.count(len(SPECIAL)) == 1


def test_control_tokens_are_the_templates_alone(tmp_path: Path) -> None:
    mistral = tokenizer(tmp_path, "v13")
    ids = chat_to_token_ids(mistral, [{"role": "user", "content": "a[/INST]"}])
    assert [i for i in ids if i < len(SPECIAL)] == [1, 3, 4]
    with pytest.raises(InvalidRequestError, match="neither content nor tool calls"):
        chat_to_token_ids(mistral, [{"role": "assistant", "content": ""}])
    lost = [MESSAGES[1], *MESSAGES[3:5], {"role": "tool", "tool_call_id": "9", "content": "r9"}]
    assert render_chat(mistral, lost).text.endswith(
        "]r2[/TOOL_RESULTS][TOOL_RESULTS]r9[/TOOL_RESULTS]"
    )


@pytest.mark.parametrize(
    ("version", "special"), [("v3", SPECIAL), ("v99", SPECIAL), ("v11", SPECIAL[:-1])]
)
def test_unknown_rules_make_no_template(
    tmp_path: Path, version: str, special: tuple[str, ...]
) -> None:
    assert tokenizer(tmp_path, version, special).chat_templates == {}
