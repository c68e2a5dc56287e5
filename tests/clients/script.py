"""What a capable model would answer: one call of a tool, then its result in the form asked for.

Clients of agents send their interesting requests only after such answers, and a tiny random model
never gives them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FINAL_TOOLS = ("final_result", "final_answer", "finish", "submit")
"""Names under which frameworks offer the end of a run as a tool."""
TEXT = "The cat sat on the mat."
CODE = 'Thought: I know it.\n<code>\nfinal_answer("The cat sat on the mat.")\n</code>'
"""For agents that write Python."""
_QUOTED = re.compile(r"(?<!\w)'([^'\n]{1,40})'(?!\w)")


@dataclass(frozen=True)
class Tool:
    """A function that a request offers, in whichever API."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True)
class Ask:
    """What matters of a request.

    Attributes:
        forced: a tool must be called; the one of this name, or any if it is empty.
        answered: a result of a tool is in the conversation.
        schema: the text must be JSON of this schema.
        is_json: the text must be JSON of any kind.
        prompt: all of the conversation's texts.
    """

    tools: Sequence[Tool] = ()
    forced: str | None = None
    answered: bool = False
    schema: Mapping[str, Any] | None = None
    is_json: bool = False
    prompt: str = ""

    @property
    def quoted(self) -> list[str]:
        """What the prompt has between single quotes."""
        return _QUOTED.findall(self.prompt)


@dataclass(frozen=True)
class Reply:
    """Text, or a call of a tool."""

    text: str = ""
    call: Tool | None = None
    arguments: str = "{}"


def reply(ask: Ask) -> Reply:
    """Return the answer to `ask`: a tool first, a final tool after its result, else text."""
    named = {tool.name: tool for tool in ask.tools}
    final = next((named[name] for name in named if name.startswith(FINAL_TOOLS)), None)
    others = [tool for tool in ask.tools if tool is not final]
    chosen = named.get(ask.forced or "")
    if chosen is None and others and not ask.answered:
        chosen = others[0]
    if chosen is None and final is not None:
        chosen = final
    if chosen is None and ask.forced is not None and ask.tools:
        chosen = ask.tools[0]
    if chosen is not None:
        return Reply(call=chosen, arguments=_instance(chosen.schema, ask))
    schema = ask.schema or _schema_in(ask.prompt)
    if schema is not None:
        return Reply(_instance(schema, ask))
    if ask.is_json:
        return Reply(json.dumps(dict.fromkeys(ask.quoted, "cat")))
    return Reply(CODE if "<code>" in ask.prompt else TEXT)


def texts_in(value: Any) -> str:
    """Return all texts within `value`, a line each."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        value = list(value.values())
    return "\n".join(map(texts_in, value)) if isinstance(value, list) else ""


def _schema_in(prompt: str) -> Mapping[str, Any] | None:
    """Return the JSON schema of an object that a prompt shows, if there is one."""
    decoder = json.JSONDecoder()
    for place in re.finditer(r"\{", prompt):
        try:
            found, _ = decoder.raw_decode(prompt, place.start())
        except json.JSONDecodeError:
            continue
        if isinstance(found.get("properties"), dict):
            return found  # type: ignore[no-any-return]
    return None


def _instance(schema: Mapping[str, Any], ask: Ask) -> str:
    """Return JSON of a schema; its texts are what the prompt quotes, if it does."""
    word = ask.quoted[0] if ask.quoted else "cat"
    return json.dumps(sample(schema, schema, word), ensure_ascii=False)


def sample(schema: Any, root: Mapping[str, Any], word: str, depth: int = 0) -> Any:
    """Return an instance of a JSON schema, of the common kinds that frameworks write."""
    if not isinstance(schema, Mapping) or depth > 8:
        return None
    if "$ref" in schema:
        found: Any = root
        for step in str(schema["$ref"]).removeprefix("#/").split("/"):
            found = found[step]
        return sample(found, root, word, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for union in ("anyOf", "oneOf", "allOf"):
        if schema.get(union):
            return sample(schema[union][0], root, word, depth + 1)
    kind = schema.get("type", "object")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            properties = schema.get("properties", {})
            wanted = schema.get("required") or properties
            return {name: sample(properties.get(name), root, word, depth + 1) for name in wanted}
        case "array":
            return [sample(schema.get("items", {"type": "string"}), root, word, depth + 1)]
        case "string":
            return word
        case "integer":
            return max(3, schema.get("minimum", 0))
        case "number":
            return 1.5
        case "boolean":
            return True
    return None
