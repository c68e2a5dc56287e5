"""What the answer is held to where it has to be tool calls, or may be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.server.openai.protocol import FunctionDefinition, ToolDefinition

if TYPE_CHECKING:
    from quire.server.engine import Engine
    from quire.server.openai.tools import Reading


BLAME_SECONDS = 5.0
"""How long to look for the tool at fault: a request may have a thousand slow schemas."""
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def structure_of_calls(
    given: Sequence[ToolDefinition], reading: Reading, text: StructuredOutputsParams | None = None
) -> StructuredOutputsParams | None:
    """What `tool_choice` and `strict` hold the answer to.

    Args:
        text: what it is held to where it is no call.
    """
    tools = [tool.function for tool in given]
    if reading.named is not None:
        index = [tool.name for tool in tools].index(reading.named)
        return _arguments_schema(index, tools[index])
    if reading.required:
        calls = [_call_schema(tool, index) for index, tool in enumerate(tools)]
        most = {} if reading.parallel else {"maxItems": 1}
        schema = {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}
        return StructuredOutputsParams(json=schema, field="tools")
    beside = text is not None and reading.calls
    if not (reading.strict or beside) or reading.parsers.tools is None:
        return None
    if reading.parsers.tools.grammar is not None:
        functions = [
            {"name": tool.name, "schema": _parameters(tool) if tool.strict else None}
            for tool in tools
        ]
        written = {"type": "function_calls", "format": reading.parsers.tools.grammar}
        return StructuredOutputsParams(
            structural_tag={**written, "functions": functions}, field="tools"
        )
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
    tools: Sequence[ToolDefinition], engine: Engine, error: InvalidRequestError
) -> InvalidRequestError:
    """The error that names the tool whose schema cannot be served, where it is one of several."""
    if error.param == "tools":
        try:
            async with asyncio.timeout(BLAME_SECONDS):
                for index, tool in enumerate(tools):
                    await engine.check_structure(_arguments_schema(index, tool.function))
        except InvalidRequestError as found:
            return found
        except TimeoutError:
            pass
    return error


def _arguments_schema(index: int, function: FunctionDefinition) -> StructuredOutputsParams:
    field = f"tools[{index}].function.parameters"
    return StructuredOutputsParams(json=_parameters(function), field=field)


def _parameters(function: FunctionDefinition) -> dict[str, Any]:
    schema = function.parameters
    return dict(_NO_PARAMETERS) if schema is None else schema


def _schema(text: StructuredOutputsParams) -> Any:
    """That of a text in JSON."""
    if text.json_object:
        return {"type": "object"}
    return msgspec.json.decode(text.json) if isinstance(text.json, str) else text.json


def _call_schema(function: FunctionDefinition, index: int) -> dict[str, Any]:
    """One of a list's items, the `index`-th of several that these may be."""
    parameters = _moved(_parameters(function), f"#/items/anyOf/{index}/properties/parameters")
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema as a part of another, at `place`: its references to itself go with it."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(value, place) for name, value in schema.items()}
    target = moved.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        moved["$ref"] = place + target[1:]
    return moved
