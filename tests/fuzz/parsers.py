"""Fuzzed answers for the tool and reasoning parsers: `python -m tests.fuzz.parsers`.

However a text is cut into pieces, the same is read of it; nothing raises; nothing is invented.
"""

from __future__ import annotations

import json
import sys
from random import Random

import msgspec

from quire.server.tools.deltas import CallDelta, Delta
from quire.server.tools.parser import OutputParser
from quire.server.tools.table import REASONING_PARSERS, TOOL_PARSERS, Parsers
from tests.fuzz.mutate import TEXTS, mutate_bytes, value

MARKS = sorted(
    {mark for known in TOOL_PARSERS.values() for mark in known.marks}
    | {mark for known in REASONING_PARSERS.values() for mark in known.marks}
    | {"</tool_call>", "<function=", "<parameter=", "</parameter>", "</function>", "<|call|>"}
    | {"<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|end|>", "to=functions.f", "```json\n"}
)
WORDS = [
    '{"name": "f", "arguments": ', '{"name": "f", "parameters": {"a": 1}}', "[f(a=1, b='x')", "]",
    "}", "{", "[", '"', "\\", ",", ";", ":", "(", ")", "=", "name", "f", " ", "\n", "1", "-1e9",
    "true", "None", "é", "😀", "analysis", "commentary", "final", "\\u00e9", "'", "assistant",
    "NaN", "1e999", '"\\ud800"', '{"name": "\\udfff", "arguments": "\\ud800"}',
    "<function=f><parameter=a>", "</parameter></function>", '<invoke name="f">', "</invoke>",
    '<parameter name="a">', '<｜DSML｜function_calls><｜DSML｜invoke name="f">', "</arg_value>",
    '<｜DSML｜parameter name="a" string="true">', "</｜DSML｜invoke>", "call:f{a:", "functions.f:0",
    "</minimax:tool_call>", "</seed:tool_call>",
]  # fmt: skip


def text(random: Random) -> str:
    """Marks, words and JSON, one behind the other; then some of it is damaged."""
    parts: list[str] = []
    for _ in range(random.randint(1, 12)):
        kind = random.random()
        if kind < 0.45:
            parts.append(random.choice(MARKS))
        elif kind < 0.8:
            parts.append(random.choice(WORDS))
        elif kind < 0.95:
            parts.append(json.dumps(value(random), ensure_ascii=random.random() < 0.5))
        else:
            parts.append(random.choice(TEXTS))
    whole = "".join(parts)
    if random.random() < 0.3:
        return mutate_bytes(random, whole.encode()).decode(errors="replace")
    return whole


Read = tuple[str, str, list[tuple[str, str]], list[str]]


def read(parser: OutputParser, pieces: list[str]) -> Read:
    """Content, reasoning, the calls' names and arguments, and what followed what."""
    content = reasoning = ""
    calls: list[tuple[str, str]] = []
    order: list[str] = []

    def take(delta: Delta) -> None:
        nonlocal content, reasoning
        content += delta.content
        reasoning += delta.reasoning
        for part in delta.parts:
            kind = "call" if isinstance(part, CallDelta) else part.kind
            begins = isinstance(part, CallDelta) and part.name is not None
            if begins or order[-1:] != [kind]:
                order.append(kind)
        for call in delta.calls:
            if call.name is not None:
                assert call.index == len(calls), "a call out of order"
                calls.append((call.name, ""))
            name, written = calls[call.index]
            calls[call.index] = name, written + call.arguments

    for piece in pieces:
        take(parser.push(piece))
    take(parser.end())
    assert parser.num_calls == len(calls)
    assert order.count("call") == len(calls), "a call was interrupted"
    return content, reasoning, calls, order


def case(random: Random) -> str:
    """One text, read whole and in pieces."""
    tools = random.choice([None, *TOOL_PARSERS.values()])
    reasoning = random.choice([None, *REASONING_PARSERS.values()])
    options = {
        "calls": random.random() < 0.8,
        "inside": random.random() < 0.3,
        "required": random.random() < 0.1,
        "named": "f" if random.random() < 0.05 else None,
    }

    def parser() -> OutputParser:
        return OutputParser(Parsers(tools, reasoning), **options)  # type: ignore[arg-type]

    whole = text(random)
    cuts = sorted(random.randint(0, len(whole)) for _ in range(random.choice([1, 3, 10])))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    expected = read(parser(), [whole])
    for each in (pieces, list(whole)):
        found = read(parser(), each)
        assert found == expected, f"{whole!r} in {each!r}: {found} is not {expected}"
    content, thoughts, calls, _ = expected
    msgspec.json.encode(expected)  # raises for a lone surrogate
    # Escapes may make one character of several, and a repaired call has brackets of its own.
    assert len(content) + len(thoughts) <= len(whole), f"{whole!r} gave {expected}"
    return "calls" if calls else "reasoning" if thoughts else "content" if content else "nothing"


if __name__ == "__main__":
    from tests.fuzz.replay import main

    sys.exit(main("tests.fuzz.parsers", case, 300_000))
