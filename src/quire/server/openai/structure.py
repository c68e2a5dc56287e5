"""Fields for a text's structure, under OpenAI's and vLLM's names."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import KINDS, StructuredOutputsParams
from quire.server.errors import invalid
from quire.server.openai.protocol import CommonRequest, ResponseFormat, StructuredOutputs

GUIDED = {f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")}
"""Field → the kind of structure that it sets."""
_OF_JSON = ("disable_any_whitespace", "whitespace_pattern", "disable_additional_properties")
_NAMES = {"response_format": "response_format.json_schema.schema"}
"""Field → the place of its structure, if that is another one."""


def structured_outputs(request: CommonRequest) -> StructuredOutputsParams | None:
    """Return the request's structure, from whichever field has it.

    Raises:
        ApiError: 400 if two fields are set, or one contradicts itself.
    """
    found: dict[str, dict[str, Any]] = {}
    if fields := _of_format(request.response_format):
        found["response_format"] = fields
    if request.structured_outputs is not None:
        found["structured_outputs"] = _of_outputs(request.structured_outputs)
    for name, kind in GUIDED.items():
        if (value := getattr(request, name)) is not None:
            found[name] = {kind: value, "whitespace_pattern": request.guided_whitespace_pattern}
    if not found:
        if request.guided_whitespace_pattern is not None:
            raise invalid(
                "guided_whitespace_pattern needs guided_json.", "guided_whitespace_pattern"
            )
        return None
    name, *others = found
    if others:
        raise invalid(f"{name} and {others[0]} both set the format of the text.", others[0])
    try:
        wanted = StructuredOutputsParams(**found[name])
        field = f"{name}.{wanted.kind}" if name == "structured_outputs" else _NAMES.get(name, name)
        return msgspec.structs.replace(wanted, field=field)
    except InvalidRequestError as error:
        raise invalid(str(error), name) from None


def _of_format(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    if wanted is None:
        return None
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise invalid("response_format.json_schema is missing.", "response_format.json_schema")
        return {"json": wanted.json_schema.schema}
    if wanted.json_schema is not None:
        raise invalid(
            f"response_format has a json_schema, but its type is {wanted.type}.",
            "response_format.json_schema",
        )
    return {"json_object": True} if wanted.type == "json_object" else None


def _of_outputs(wanted: StructuredOutputs) -> dict[str, Any]:
    return {name: getattr(wanted, name) for name in (*KINDS, *_OF_JSON)}
