"""Write llguidance's grammars for a request's structure.

This is Python code, and rewriting a schema may take a tenth of a second. So a grammar worker runs
it and sends the result to the engine core.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.text.call_grammars import FunctionCalls, write_calls
from quire.text.composition import Grammar, Specials, StructuralTag, composed, slashes, whole
from quire.text.json_schema import SchemaError, closed, rewritten, with_exponents, with_marks
from quire.text.multiples import too_many_remainders
from quire.text.structures import MAX_WRITTEN_BYTES, refused
from quire.text.tag_formats import FormattedTag, newer_form
from quire.text.tag_writer import write_format

MAX_GRAMMAR_BYTES = 256 * 2**10
"""Longest schema, expression, grammar or list of choices."""
MAX_GBNF_BYTES = 32 * 2**10
"""Limit for GBNF, which is converted in Python."""
MAX_DEPTH = 100
"""Deepest nesting of a schema."""

WHITESPACE = r"( |\r?\n{1,2}[ \t]{0,20})"
"""White space between JSON's tokens by default. It is bounded because some models would otherwise
write white space without end."""

MIN_NUMBER = -(2**63) + 1024
"""In a schema: llguidance overflows its stack on integers that are -2**63 as a float, or less."""

_DEFINED = frozenset(
    ["date", "date-time", "duration", "time", "email", "idn-email", "hostname", "idn-hostname",
     "ipv4", "ipv6", "iri", "iri-reference", "uri", "uri-reference", "uri-template", "uuid",
     "json-pointer", "relative-json-pointer", "regex"]
)  # fmt: skip
"""Formats of JSON Schema. By it, any other is an annotation: `password`, `int32`, `path` …"""
_OF_SCHEMAS = ("properties", "patternProperties", "definitions", "$defs")
"""Keywords that hold schemas by names."""
_SCHEMAS = ("items", "prefixItems", "additionalItems", "additionalProperties", "allOf", "anyOf",
           "oneOf")  # fmt: skip
"""Keywords that hold a schema, or several."""
_UNEVALUATED = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}
_OF_THE_SAME = {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas",
                "dependencies", "contains", "$ref", "$dynamicRef", "$recursiveRef"}  # fmt: skip
"""Keywords whose schemas describe the same value."""
_COUNTS = {f"{bound}{what}" for bound in ("min", "max")
           for what in ("Length", "Items", "Properties", "Contains")}  # fmt: skip
_PASSED_OVER = ("contentEncoding", "contentMediaType", "contentSchema")


class GrammarWriter:
    """Writes the grammars of one structure; its schemas are rewritten once.

    Raises:
        InvalidRequestError: it is too large, or not valid JSON or GBNF.
    """

    def __init__(self, params: StructuredOutputsParams) -> None:
        _check_size(params)
        self._params = params
        self._tag = _structural_tag(params) if params.kind == "structural_tag" else None
        self._schemas: dict[str, tuple[Grammar, Grammar]] = {}

    def write(self, specials: Specials) -> WrittenStructure:
        """Return the grammars for a model with these control tokens.

        Raises:
            InvalidRequestError: a schema cannot be followed; names the keyword.
        """
        grammars = self._text(self._grammars(specials))
        if all(given is plain for given, plain in self._schemas.values()):
            return WrittenStructure(grammars)
        plain = self._grammars(specials, exponents=False)
        return WrittenStructure(grammars, self._text(plain))

    def _grammars(self, specials: Specials, exponents: bool = True) -> list[Grammar]:
        """
        Args:
            exponents: whether numbers with bounds may be written with one.
        """
        tag = self._tag
        if tag is None:
            return whole(self._structure(exponents))
        grammars: dict[str, Grammar] = {}
        try:
            if isinstance(tag, FormattedTag):
                written, grammars = write_format(tag, specials, self._lark)
            else:
                written = write_calls(tag, specials)
        except InvalidRequestError:
            raise
        except (ValueError, RecursionError) as error:
            raise refused(str(error), self._params) from None
        for name, schema in written.schemas.items():
            grammars[name] = self._json(name, schema, exponents)
        return composed(written.lark, grammars)

    def _lark(self, grammar: str) -> str:
        return _lark(grammar, self._params)

    def _structure(self, exponents: bool) -> Grammar:
        """Return the grammar of the structure without text around it."""
        from llguidance import regex_to_lark

        params = self._params
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
                return {"lark_grammar": self._lark(params.grammar)}
            case _:
                schema = {"type": "object"} if params.json_object else params.json
                return self._json("structure", schema, exponents)

    def _json(self, name: str, schema: Any, exponents: bool) -> Grammar:
        """Return the grammar of a schema of the structure, by its name."""
        if name not in self._schemas:
            self._schemas[name] = _json(schema, self._params)
        given, plain = self._schemas[name]
        return given if exponents else plain

    def _text(self, grammars: Sequence[Grammar]) -> str:
        text = ", ".join(map(json.dumps, grammars))
        if len(text) > MAX_WRITTEN_BYTES:
            raise refused(
                f"its grammars have {len(text)} bytes, more than {MAX_WRITTEN_BYTES}", self._params
            )
        return text


def _structural_tag(params: StructuredOutputsParams) -> FormattedTag | FunctionCalls:
    """Return the tag, in the newer form."""
    given: Any = params.structural_tag
    try:
        if isinstance(given, str):
            given = msgspec.json.decode(given)
        if isinstance(given, dict) and given.get("type") == "function_calls":
            return msgspec.convert(given, FunctionCalls)
        if isinstance(given, dict) and "format" in given:
            return msgspec.convert(given, FormattedTag)
        return newer_form(msgspec.convert(given, StructuralTag))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refused(str(error), params) from None


def _check_size(params: StructuredOutputsParams) -> None:
    given = getattr(params, params.kind)
    size = len(given.encode() if isinstance(given, str) else msgspec.json.encode(given))
    if size > MAX_GRAMMAR_BYTES:
        raise refused(f"it has {size} bytes, more than {MAX_GRAMMAR_BYTES}", params)


def _json(schema: Any, params: StructuredOutputsParams) -> tuple[Grammar, Grammar]:
    """Return the grammar of a schema or of its text, and the same without exponents in numbers."""
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
    _check_schema(schema, params)
    try:
        schema = _without_annotations(schema)
        if params.disable_additional_properties:
            schema = with_marks(schema)
        schema = closed(rewritten(schema), keep=params.disable_additional_properties)
    except SchemaError as error:
        raise refused(str(error), params) from None
    spacing = _spacing(params)
    plain = {"json_schema": {**schema, "x-guidance": spacing}}
    found = with_exponents(schema)
    if found is None:
        return plain, plain
    rules, leaves = found
    parts = {n: {"json_schema": {**leaf, "x-guidance": spacing}} for n, leaf in leaves.items()}
    lark = _ignoring(spacing["whitespace_pattern"]) + rules
    return {"lark_grammar": lark, "parts": parts}, plain


def _ignoring(whitespace: str | None) -> str:
    """Return the options of a Lark grammar with the white space of its parts."""
    options = '%llguidance {"no_forcing": true, "ignore_once": true}\n'
    return options if whitespace is None else options + f"%ignore /{slashes(whitespace)}/\n"


def _check_schema(schema: Any, params: StructuredOutputsParams) -> None:
    """Refuse what llguidance compiles incorrectly or without end."""
    _check_depth(schema, params)
    _check_keywords(schema, params, root=True)
    if reason := too_many_remainders(schema):
        raise refused(reason, params)


def _check_keywords(schema: Any, params: StructuredOutputsParams, root: bool = False) -> None:
    """Refuse keywords that llguidance ignores silently; it reports the others itself."""
    if not isinstance(schema, dict):
        return
    for keyword in _PASSED_OVER:
        if keyword in schema:
            raise refused(f'Unimplemented keys: ["{keyword}"]', params)
    is_local = str(schema.get("$ref")).startswith("#")  # the root's own `$id` cannot change it
    if "$ref" in schema and "$id" in schema and not (root and is_local):
        raise refused("$id next to $ref", params)
    for keyword, value in schema.items():
        if keyword in _OF_SCHEMAS and isinstance(value, dict):
            for each in value.values():
                _check_keywords(each, params)
        elif keyword in _SCHEMAS:
            for each in value if isinstance(value, list) else [value]:
                _check_keywords(each, params)


def _check_depth(schema: Any, params: StructuredOutputsParams) -> None:
    level = [schema]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, int | float) and value < MIN_NUMBER:
                raise refused(f"the number {value} is too small", params)
            if isinstance(value, int) and value >= 2**64:  # llguidance would round it
                raise refused(f"the number {value} has more than 64 bits", params)
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        if not inner:
            return
        level = inner
    raise refused(f"the schema is nested deeper than {MAX_DEPTH}", params)


def _spacing(params: StructuredOutputsParams) -> Any:
    """Return options of the schema's compiler, none of them from the schema (`x-guidance`)."""
    flexible = not params.disable_any_whitespace
    return {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": flexible,
        "whitespace_pattern": params.whitespace_pattern or (WHITESPACE if flexible else None),
        "coerce_one_of": False,
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
        _check_schema(schema, params)


def _without_annotations(schema: Any) -> Any:
    """Return the schema without other formats than `_DEFINED`; a property may have such a name."""
    if isinstance(schema, list):
        return [_without_annotations(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "format" and isinstance(value, str) and value not in _DEFINED:
            continue
        if keyword in _COUNTS and isinstance(value, float) and value.is_integer():
            value = int(value)
        if keyword in _OF_SCHEMAS and isinstance(value, dict):
            found[keyword] = {name: _without_annotations(each) for name, each in value.items()}
        else:
            found[keyword] = _without_annotations(value) if keyword in _SCHEMAS else value
    return _with_older_names(found)


def _with_older_names(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with `additionalProperties` and `items` for `unevaluated…`, if no other
    schema describes the same value: they mean the same then."""
    if schema.keys() & _OF_THE_SAME:
        return schema
    found = dict(schema)
    tuple_items = isinstance(schema.get("items"), list)
    for newer, older in _UNEVALUATED.items():
        if newer in found:
            name = "additionalItems" if older == "items" and tuple_items else older
            found.setdefault(name, _without_annotations(found.pop(newer)))
    return found
