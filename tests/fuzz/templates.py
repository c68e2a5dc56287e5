"""Fuzzed chat templates and conversations: `python -m tests.fuzz.templates`.

A template, whatever it is, renders or is refused with its reason, within its budget. What a
message holds never becomes a control token.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

from quire.core.errors import ConfigError, InvalidRequestError
from quire.text import template_budget
from quire.text.chat import encode_chat, render_chat
from tests.fuzz.mutate import TEXTS, mutate_bytes, value
from tests.unit.text.vocabularies import byte_tokenizer

SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>", "[INST]")
TOKENIZER = byte_tokenizer(*SPECIAL)
CONTROLS = {TOKENIZER.token_to_id(token) for token in SPECIAL}
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMED = (
    "<s>{%- for m in messages if m.role != 'system' -%}[INST] {{ m['content'] | trim }} "
    "{%- if tools and loop.last %}{{ tools | tojson(indent=2) }}{% endif %}{%- endfor -%}"
)
MACRO = (
    "{% macro say(m, depth=0) %}{{ m.role ~ ':' ~ m.content }}{% endmacro %}"
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{{ say(m) }}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.arguments | items "
    "| list }}{% endfor %}{% endif %}{% endfor %}{{ ns.n }}"
)
TEMPLATES = [CHATML, TRIMMED, MACRO]
PIECES = [
    "{{ ", " }}", "{% ", " %}", "for x in range(99999)", "endfor", "if ", "endif", "messages", "x",
    "| join", "| tojson", "| string", "* 99999", "** 9", "~", "+ [1]", "['role']", ".__class__",
    ".format(1)", "raise_exception('no')", "set x = ", "macro m()", "endmacro", "m()", "dict()",
    "%-100d", "| replace('a', 'aaaa')", "strftime_now('%Y')", "loop.index", "| sort", "| list",
    "break", "recursive", "generation", "dict(a=1)", "| upper", "is defined", "[::-1]", "1 // 0",
]  # fmt: skip


def template(random: Random) -> str:
    """One of the known ones, damaged, or pieces in no order."""
    if random.random() < 0.3:
        return "{{ " + " ".join(random.choices(PIECES, k=random.randint(1, 10))) + " }}"
    source = random.choice(TEMPLATES)
    for _ in range(random.randint(1, 3)):
        at = random.randint(0, len(source))
        source = source[:at] + random.choice(PIECES) + source[at:]
    if random.random() < 0.5:
        source = mutate_bytes(random, source.encode()).decode(errors="replace")
    return source


def content(random: Random) -> str:
    """A message that would like to be more."""
    parts: list[str] = []
    for _ in range(random.randint(0, 5)):
        token = random.choice(SPECIAL)
        cut = random.randint(0, len(token))
        parts.append(random.choice([token, token[:cut], token[cut:], *random.choices(TEXTS, k=3)]))
    return "".join(parts)


def conversation(random: Random) -> list[dict[str, Any]]:
    roles = ["system", "user", "assistant", "tool"]
    return [
        {"role": random.choice(roles), "content": content(random)}
        for _ in range(random.randint(1, 4))
    ]


def controls(source: str, messages: list[dict[str, Any]]) -> int:
    """The control tokens of a rendered conversation."""
    ids = encode_chat(TOKENIZER, render_chat(TOKENIZER, messages, chat_template=source))
    return sum(token in CONTROLS for token in ids)


def case(random: Random) -> str:
    """One conversation under a known template, or under one that is wrong."""
    messages = conversation(random)
    if random.random() < 0.5:
        source = random.choice([CHATML, TRIMMED])
        harmless = [{**message, "content": "x"} for message in messages]
        assert controls(source, messages) == controls(source, harmless), messages
        return "known"
    kwargs = {"x": value(random)} if random.random() < 0.3 else {}
    try:
        render_chat(TOKENIZER, messages, chat_template=template(random), kwargs=kwargs)
    except (InvalidRequestError, ConfigError):
        return "refused"
    return "rendered"


if __name__ == "__main__":
    from tests.fuzz.replay import main

    template_budget.MAX_STEPS = 100_000  # else the worst take seconds each
    sys.exit(main("tests.fuzz.templates", case, 200_000))
