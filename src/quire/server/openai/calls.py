"""The structure of answers that must or may be tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.server.openai.custom import Custom
from quire.server.openai.tool_types import FunctionDefinition
from quire.system.patience import patient_timeout

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM
    from quire.server.openai.tools import Reading


BLAME_SECONDS = 5.0
"""Longest search for the wrong tool: a request may have a thousand slow schemas."""
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}

_TYPED = {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}
"""Keywords that say which values a schema allows, other than objects."""


def structure_of_calls(
    tools: Sequence[FunctionDefinition],
    reading: Reading,
    text: StructuredOutputsParams | None = None,
) -> StructuredOutputsParams | None:
    """Return the structure that `tool_choice` and `strict` require.

    Args:
        text: the structure of an answer that is no call.
    """
    if reading.structure is not None:
        return reading.structure
    if reading.named is not None:
        index = [tool.name for tool in tools].index(reading.named)
        return _arguments_schema(index, tools[index], reading.customs)
    if reading.required:
        calls = [_call_schema(tool, index, "#/items/anyOf") for index, tool in enumerate(tools)]
        most = {} if reading.parallel else {"maxItems": 1}
        schema = {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}
        return StructuredOutputsParams(json=schema, field="tools")
    beside = text is not None and reading.calls
    if not (reading.strict or beside) or reading.parsers.tools is None:
        return None
    if text is not None and reading.parsers.tools.unmarked:
        calls = [
            _call_schema(tool, index, "#/anyOf", strict=bool(tool.strict))
            for index, tool in enumerate(tools)
        ]
        calls.append(_moved(_schema(text), f"#/anyOf/{len(tools)}"))
        return StructuredOutputsParams(json={"anyOf": calls}, field="tools")
    if reading.parsers.tools.grammar is not None:
        functions = [
            {"name": tool.name, "schema": _parameters(tool) if tool.strict else None}
            for tool in tools
        ]
        written = {
            "type": "function_calls",
            "format": reading.parsers.tools.grammar,
            "functions": functions,
            "otherwise": None if text is None else _schema(text),
        }
        return StructuredOutputsParams(structural_tag=written, field="tools")
    envelopes = reading.parsers.tools.envelopes
    tag: dict[str, Any] = {
        "triggers": list(dict.fromkeys(each.trigger for each in envelopes)),
        "structures": [
            {
                "begin": each.begin.replace("{index}", str(reading.called)).replace(
                    "{name}", tool.name
                ),
                "schema": _parameters(tool) if tool.strict else {"type": "object"},
                "end": each.end,
            }
            for each in envelopes
            for tool in tools
        ],
    }
    if text is not None and beside:
        tag["otherwise"] = _schema(text)
    return StructuredOutputsParams(structural_tag=tag, field="tools")


async def at_fault(
    tools: Sequence[FunctionDefinition],
    customs: Mapping[str, Custom],
    engine: AsyncLLM,
    error: InvalidRequestError,
) -> InvalidRequestError:
    """Return the error that names the tool whose schema cannot be served, if one is found."""
    if error.param == "tools":
        try:
            async with patient_timeout(BLAME_SECONDS):
                for index, tool in enumerate(tools):
                    await engine.check_structure(_arguments_schema(index, tool, customs))
        except InvalidRequestError as found:
            return found
        except TimeoutError:
            pass
    return error


def _arguments_schema(
    index: int, function: FunctionDefinition, customs: Mapping[str, Custom]
) -> StructuredOutputsParams:
    field = f"tools[{index}].function.parameters"
    if (custom := customs.get(function.name)) is not None:
        field = f"{custom.place}.format"
    return StructuredOutputsParams(json=_parameters(function), field=field)


def _parameters(function: FunctionDefinition) -> dict[str, Any]:
    """Return the schema of a function's arguments, which are an object in any case."""
    schema = function.parameters
    if schema is None:
        return dict(_NO_PARAMETERS)
    return schema if schema.keys() & _TYPED else {"type": "object", **schema}


def _schema(text: StructuredOutputsParams) -> Any:
    if text.json_object:
        return {"type": "object"}
    return msgspec.json.decode(text.json) if isinstance(text.json, str) else text.json


def could_be_call(text: StructuredOutputsParams | None) -> bool:
    """Return whether JSON of this schema may look like a call without marks."""
    schema = None if text is None else _schema(text)
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return True
    known = schema.get("properties")
    others = ("additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf")
    if not known or not isinstance(known, dict) or any(schema.get(name) for name in others):
        return True
    return "name" in known and not {"parameters", "arguments"}.isdisjoint(known)


def _call_schema(
    function: FunctionDefinition, index: int, place: str, *, strict: bool = True
) -> dict[str, Any]:
    """Return the schema of a call, the `index`-th of the alternatives at `place`."""
    schema = _parameters(function) if strict else {"type": "object"}
    parameters = _moved(schema, f"{place}/{index}/properties/parameters")
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """Return a schema as part of another, at `place`, with its own references adjusted."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(value, place) for name, value in schema.items()}
    target = moved.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        moved["$ref"] = place + target[1:]
    return moved
