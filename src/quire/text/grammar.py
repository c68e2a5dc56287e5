"""Structured output as grammars: from what a request asks for to a matcher of its tokens.

llguidance builds a lexer and an Earley parser of a schema, an expression or a grammar, and tells
for any text so far which tokens may follow. Its work is counted in fuel, not in seconds, so that a
grammar is refused on every machine or on none.
"""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.call_grammars import FunctionCalls, write_calls
from quire.text.composition import (
    Grammar,
    Specials,
    StructuralTag,
    composed,
    slashes,
    tagged,
    whole,
)
from quire.text.grammar_probe import demanding_strings, walk_error
from quire.text.json_formats import OF_SCHEMAS, SCHEMAS, without_annotations
from quire.text.json_schema import REFUSED, SchemaError, rewritten, with_exponents
from quire.text.multiples import too_many_remainders

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_GRAMMAR_BYTES = 256 * 2**10
"""Longest schema, expression, grammar or list of choices."""
MAX_GBNF_BYTES = 32 * 2**10
"""GBNF is converted in Python."""
MAX_DEPTH = 100
"""Deepest nesting of a schema."""

WHITESPACE = r"( |\r?\n{1,2}[ \t]{0,20})"
"""Between JSON's tokens, unless the request says otherwise: bounded, for a model that has nothing
to say would go on with white space for ever."""
CHECKED_KEPT = 1024
"""Grammars that were found to be good and need not be checked again."""

MIN_NUMBER = -(2**63) + 1024
"""In a schema: llguidance overflows its stack on integers that are -2**63 as a float, or less."""

_PASSED_OVER = ("contentEncoding", "contentMediaType", "contentSchema")


def grammar_key(params: StructuredOutputsParams) -> bytes:
    """A digest of 16 bytes, equal for equal grammars."""
    data = msgspec.msgpack.encode(msgspec.structs.replace(params, field=None))
    return blake2b(data, digest_size=16).digest()


def structure_key(params: StructuredOutputsParams) -> bytes:
    """`grammar_key` of the structure alone, whatever reasoning it stands behind."""
    return grammar_key(msgspec.structs.replace(params, reasoning=None))


def grammar_text(
    params: StructuredOutputsParams, specials: Specials | None = None, exponents: bool = True
) -> str:
    """The grammar as llguidance reads it.

    Args:
        specials: the model's control tokens, for marks around the structure; without them these
            are spelled.
        exponents: whether numbers with bounds may be written with one.

    Raises:
        InvalidRequestError: it is too large, no JSON, or no GBNF.
    """
    _check_size(params)
    if params.kind != "structural_tag":
        return whole(_structure(params, exponents), params.reasoning, specials or {})
    tag = _structural_tag(params)
    if isinstance(tag, StructuralTag):
        schemas = [_json(each.schema, params, exponents) for each in tag.structures]
        return tagged(tag, schemas, params.reasoning, specials or {})
    try:
        written = write_calls(tag, specials or {})
    except ValueError as error:
        raise refused(str(error), params) from None
    grammars = {name: _json(schema, params, exponents) for name, schema in written.schemas.items()}
    return composed(written.lark, grammars, params.reasoning, specials or {})


def _structure(params: StructuredOutputsParams, exponents: bool) -> Grammar:
    """The structure alone."""
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
            return {"lark_grammar": _lark(params)}
        case _:
            schema = {"type": "object"} if params.json_object else params.json
            return _json(schema, params, exponents)


def _structural_tag(params: StructuredOutputsParams) -> StructuralTag | FunctionCalls:
    given: Any = params.structural_tag
    try:
        if isinstance(given, str):
            given = msgspec.json.decode(given)
        if isinstance(given, dict) and given.get("type") == "function_calls":
            return msgspec.convert(given, FunctionCalls)
        return msgspec.convert(given, StructuralTag)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refused(str(error), params) from None


def new_matcher(
    tokenizer: LLTokenizer, params: StructuredOutputsParams, specials: Specials | None = None
) -> LLMatcher:
    """A matcher at the beginning of the text, whose first mask is known to be no trouble.

    Raises:
        InvalidRequestError: the grammar cannot be served; names the keyword or the place.
    """
    grammar = grammar_text(params, specials)
    try:
        return _checked_matcher(tokenizer, grammar, params)
    except InvalidRequestError:
        plain = grammar_text(params, specials, exponents=False)
        if plain == grammar:
            raise
        return _checked_matcher(tokenizer, plain, params)


def _checked_matcher(
    tokenizer: LLTokenizer, grammar: str, params: StructuredOutputsParams
) -> LLMatcher:
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar, limits=_limits(), log_level=0)
    try:
        if not matcher.is_error():
            matcher.compute_bitmask()
    except ValueError as error:
        raise refused(str(error), params) from None
    if matcher.is_error():
        raise refused(matcher.get_error(), params)
    _probe(tokenizer, grammar, params)
    return matcher


def _probe(tokenizer: LLTokenizer, grammar: str, params: StructuredOutputsParams) -> None:
    """Refuse a schema with a string that no text could follow for long."""
    from llguidance import LLMatcher

    schemas = [each.get("json_schema") for each in json.loads(grammar)["grammars"]]
    for string in demanding_strings(schemas):
        alone = json.dumps({"grammars": [{"json_schema": string}]})
        matcher = LLMatcher(tokenizer, alone, limits=_limits(), log_level=0)
        error = None if matcher.is_error() else walk_error(matcher)
        if error is not None:
            raise refused(f"{_short(string)} is too much to follow: {error}", params)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:200] + "…"


def _limits() -> LLParserLimits:
    """llguidance's own, but for errors, which are not to hold the parser's state."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False)


def _check_size(params: StructuredOutputsParams) -> None:
    given = getattr(params, params.kind)
    size = len(given.encode() if isinstance(given, str) else msgspec.json.encode(given))
    if size > MAX_GRAMMAR_BYTES:
        raise refused(f"it has {size} bytes, more than {MAX_GRAMMAR_BYTES}", params)


def _json(schema: Any, params: StructuredOutputsParams, exponents: bool) -> Grammar:
    """A schema, or its text, nested no deeper than is sound."""
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
        schema = rewritten(without_annotations(schema))
    except SchemaError as error:
        raise refused(str(error), params) from None
    spacing = _spacing(params)
    found = with_exponents(schema) if exponents else None
    if found is None:
        return {"json_schema": {**schema, "x-guidance": spacing}}
    rules, leaves = found
    parts = {n: {"json_schema": {**leaf, "x-guidance": spacing}} for n, leaf in leaves.items()}
    return {"lark_grammar": _ignoring(spacing["whitespace_pattern"]) + rules, "parts": parts}


def _ignoring(whitespace: str | None) -> str:
    """The options of a grammar in Lark with the white space of its parts."""
    options = '%llguidance {"no_forcing": true, "ignore_once": true}\n'
    return options if whitespace is None else options + f"%ignore /{slashes(whitespace)}/\n"


def _check_schema(schema: Any, params: StructuredOutputsParams) -> None:
    """Refuse what llguidance would be wrong about, or take for ever to compile."""
    _check_depth(schema, params)
    _check_keywords(schema, params, root=True)
    if reason := too_many_remainders(schema):
        raise refused(reason, params)


def _check_keywords(schema: Any, params: StructuredOutputsParams, root: bool = False) -> None:
    """Refuse what llguidance would pass over; it names all other keywords that it lacks."""
    if not isinstance(schema, dict):
        return
    for keyword in _PASSED_OVER:
        if keyword in schema:
            raise refused(f'Unimplemented keys: ["{keyword}"]', params)
    if "$ref" in schema and "$id" in schema and not (root and _is_local(schema["$ref"])):
        raise refused("$id beside $ref", params)
    for keyword, value in schema.items():
        if keyword in OF_SCHEMAS and isinstance(value, dict):
            for each in value.values():
                _check_keywords(each, params)
        elif keyword in SCHEMAS:
            for each in value if isinstance(value, list) else [value]:
                _check_keywords(each, params)


def _is_local(reference: Any) -> bool:
    """Whether the whole schema's own `$id` cannot change what a reference means."""
    return isinstance(reference, str) and reference.startswith("#")


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
    """Options of the schema's compiler, none of them left to the schema (`x-guidance`)."""
    flexible = not params.disable_any_whitespace
    return {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": flexible,
        "whitespace_pattern": params.whitespace_pattern or (WHITESPACE if flexible else None),
        "coerce_one_of": False,
        "lenient": False,
    }


def _lark(params: StructuredOutputsParams) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

    grammar = params.grammar
    assert grammar is not None
    if is_lark_syntax(grammar):
        _check_inner_schemas(grammar, params)
        return grammar
    if len(grammar) > MAX_GBNF_BYTES:
        raise refused(f"GBNF may have {MAX_GBNF_BYTES} characters", params)
    try:
        return str(gbnf_to_lark(grammar))
    except Exception as error:  # of no class of its own where a rule is not there
        raise refused(str(error) or repr(error), params) from None


def _check_inner_schemas(grammar: str, params: StructuredOutputsParams) -> None:
    """Those of Lark's `%json`, each written behind it."""
    for found in re.finditer(r"%json\s*", grammar):
        try:
            schema, _ = json.JSONDecoder().raw_decode(grammar, found.end())
        except (ValueError, RecursionError):
            raise refused("%json is followed by no JSON", params) from None
        _check_schema(schema, params)


def refused(reason: str, params: StructuredOutputsParams) -> InvalidRequestError:
    """The error for a structure that cannot be served, and why."""
    what = params.field or f"structured_outputs.{params.kind}"
    if reason.startswith("panic: assertion failed: grammar.symbols.len()"):
        reason = "the grammar is too large"
    if "coerce_one_of" in reason:
        reason = "oneOf: its branches overlap, and no value is known to be in one alone"
    if REFUSED in reason:
        reason = reason.partition(REFUSED)[2].partition("\n")[0]
    reason = reason.split("<backtrace>")[0].replace("<non-verbose/>", "").strip().rstrip(".")
    return InvalidRequestError(
        f"{what} cannot be served: {reason}.", param=params.field or "structured_outputs"
    )
