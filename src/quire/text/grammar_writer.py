"""Write llguidance's grammars for a request's structure.

This is Python code, and a large schema may take a tenth of a second. So a grammar worker runs it
and sends the result to the engine core.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.call_grammars import FunctionCalls, write_calls
from quire.text.composition import Grammar, Specials, StructuralTag, alone, composed
from quire.text.json_schema import SchemaError, check_schema, prepared
from quire.text.structures import MAX_WRITTEN_BYTES, refused
from quire.text.tag_formats import FormattedTag, newer_form
from quire.text.tag_writer import write_format

MAX_GRAMMAR_BYTES = 256 * 2**10
"""Longest schema, expression, grammar or list of choices."""
MAX_GBNF_BYTES = 32 * 2**10
"""Limit for GBNF, which is converted in Python."""

WHITESPACE = r"( |\r?\n{1,2}[ \t]{0,20})"
"""White space between JSON's tokens by default. It is bounded because some models would otherwise
write white space without end."""


def write_grammars(params: StructuredOutputsParams, specials: Specials) -> str:
    """Return a structure's grammars: JSON documents with commas between them.

    Args:
        specials: the model's control tokens.

    Raises:
        InvalidRequestError: it is too large, not valid JSON or GBNF, or a schema cannot be
            followed; names the keyword.
    """
    _check_size(params)
    if params.kind == "structural_tag":
        lark, grammars = _of_tag(params, specials)
        written = composed(lark, grammars)
    else:
        written = [{**_structure(params), "name": "structure"}]
    text = ", ".join(map(json.dumps, written))
    if len(text) > MAX_WRITTEN_BYTES:
        raise refused(f"its grammars have {len(text)} bytes, more than {MAX_WRITTEN_BYTES}", params)
    return text


def _of_tag(
    params: StructuredOutputsParams, specials: Specials
) -> tuple[str, Mapping[str, Grammar]]:
    """Return the Lark grammar of a structural tag, and those that it refers to."""
    tag = _structural_tag(params)
    grammars: dict[str, Grammar] = {}
    try:
        match tag:
            case StructuralTag():
                lark, schemas = alone(tag, specials)
            case FormattedTag():
                written, grammars = write_format(tag, specials, partial(_lark, params=params))
                lark, schemas = written.lark, written.schemas
            case FunctionCalls():
                written = write_calls(tag, specials)
                lark, schemas = written.lark, written.schemas
    except InvalidRequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise refused(str(error), params) from None
    return lark, {**grammars, **{name: _json(each, params) for name, each in schemas.items()}}


def _structure(params: StructuredOutputsParams) -> Grammar:
    """Return the grammar of a structure without text around it."""
    from llguidance import regex_to_lark

    match params.kind:
        case "regex":
            assert params.regex is not None
            # \d and \w are ASCII's, as in JSON schemas.
            return {"lark_grammar": f"start: /{regex_to_lark(params.regex, 'dw')}/"}
        case "choice":
            assert params.choice is not None
            choices = " | ".join(json.dumps(choice) for choice in params.choice)
            # One terminal: as rules, more than 2,000 choices would exceed the parser's row.
            return {"lark_grammar": f"start: CHOICE\nCHOICE: {choices}"}
        case "grammar":
            assert params.grammar is not None
            return {"lark_grammar": _lark(params.grammar, params)}
        case _:
            return _json({"type": "object"} if params.json_object else params.json, params)


def _structural_tag(
    params: StructuredOutputsParams,
) -> StructuralTag | FormattedTag | FunctionCalls:
    """Return the tag; in the newer form, unless only Quire writes it."""
    given: Any = params.structural_tag
    try:
        if isinstance(given, str):
            given = msgspec.json.decode(given)
        if isinstance(given, dict) and given.get("type") == "function_calls":
            return msgspec.convert(given, FunctionCalls)
        if isinstance(given, dict) and "format" in given:
            return msgspec.convert(given, FormattedTag)
        tag = msgspec.convert(given, StructuralTag)
        return newer_form(tag) if tag.otherwise is None else tag
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refused(str(error), params) from None


def _check_size(params: StructuredOutputsParams) -> None:
    given = getattr(params, params.kind)
    size = len(given.encode() if isinstance(given, str) else msgspec.json.encode(given))
    if size > MAX_GRAMMAR_BYTES:
        raise refused(f"it has {size} bytes, more than {MAX_GRAMMAR_BYTES}", params)


def _json(schema: Any, params: StructuredOutputsParams) -> Grammar:
    """Return the grammar of a schema or of its text."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise refused(f"the schema is not valid JSON: {error}", params) from None
    if schema is False:
        raise refused("the schema false allows nothing", params)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise refused("a schema is an object or a boolean", params)
    try:
        schema = prepared(schema, close=params.disable_additional_properties)
    except SchemaError as error:
        raise refused(str(error), params) from None
    return {"json_schema": {**schema, "x-guidance": _spacing(params)}}


def _spacing(params: StructuredOutputsParams) -> Any:
    """Return options of the schema's compiler, none of them from the schema (`x-guidance`)."""
    flexible = not params.disable_any_whitespace
    return {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": flexible,
        "whitespace_pattern": params.whitespace_pattern or (WHITESPACE if flexible else None),
        "coerce_one_of": True,
        "lenient": False,
    }


def _lark(grammar: str, params: StructuredOutputsParams) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

    if is_lark_syntax(grammar):
        _check_inner_schemas(grammar, params)
        return grammar
    if len(grammar) > MAX_GBNF_BYTES:
        raise refused(f"GBNF may have {MAX_GBNF_BYTES} characters", params)
    try:
        return str(gbnf_to_lark(grammar))
    except Exception as error:  # a missing rule raises a plain Exception
        raise refused(str(error) or repr(error), params) from None


def _check_inner_schemas(grammar: str, params: StructuredOutputsParams) -> None:
    """Check the schemas of Lark's `%json`."""
    for found in re.finditer(r"%json\s*", grammar):
        try:
            schema, _ = json.JSONDecoder().raw_decode(grammar, found.end())
        except (ValueError, RecursionError):
            raise refused("%json is followed by no JSON", params) from None
        try:
            check_schema(schema)
        except SchemaError as error:
            raise refused(str(error), params) from None
