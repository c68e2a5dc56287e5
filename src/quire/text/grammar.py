"""Structured output as grammars: from a request's structure to a matcher of its tokens.

llguidance builds a lexer and an Earley parser from a schema, an expression or a grammar, and
computes which tokens may follow a text. Its work is limited in fuel, not in seconds, so that every
machine refuses the same grammars.

A `pattern` and a length each cost little. Together they are a product, which may exceed a mask's
fuel only a few characters into the text. So a short text is tried for each such string of a schema
before a request is accepted.
"""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.text.composition import Specials, placed
from quire.text.grammar_writer import GrammarWriter
from quire.text.json_types import objects
from quire.text.structures import refused

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer


def new_matcher(
    tokenizer: LLTokenizer,
    params: StructuredOutputsParams,
    specials: Specials | None = None,
    written: WrittenStructure | None = None,
) -> LLMatcher:
    """Return a matcher at the beginning of the text, after a check of its first mask.

    Args:
        specials: the model's control tokens, for marks around the structure; without them, marks
            are plain text.
        written: the result of `checked` for these control tokens, which saves writing and checking
            the grammar again.

    Raises:
        InvalidRequestError: the grammar is not supported; names the keyword or the position.
    """
    specials = specials or {}
    probed = written is None
    written = written or GrammarWriter(params).write(specials)
    return _first_good(tokenizer, written, params, specials, probed=probed)


def checked(
    tokenizer: LLTokenizer, params: StructuredOutputsParams, specials: Specials, others: Specials
) -> WrittenStructure:
    """Check a structure with one vocabulary's control tokens; return it written for `others`.

    Raises:
        InvalidRequestError: as for `new_matcher`.
    """
    writer = GrammarWriter(params)
    _first_good(tokenizer, writer.write(specials), params, specials, probed=True)
    return writer.write(others)


def _first_good(
    tokenizer: LLTokenizer,
    written: WrittenStructure,
    params: StructuredOutputsParams,
    specials: Specials,
    *,
    probed: bool,
) -> LLMatcher:
    """Return a matcher of the grammars, or of the plain ones if these cannot be served."""

    def matcher(grammars: str) -> LLMatcher:
        return _matcher(tokenizer, placed(grammars, params.reasoning, specials), params, probed)

    try:
        return matcher(written.grammars)
    except InvalidRequestError:
        if written.plain is None:
            raise
        return matcher(written.plain)


def _matcher(
    tokenizer: LLTokenizer, grammar: str, params: StructuredOutputsParams, probed: bool
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
    if probed:
        _probe(tokenizer, grammar, params)
    return matcher


def _probe(tokenizer: LLTokenizer, grammar: str, params: StructuredOutputsParams) -> None:
    """Refuse a schema with a string of which only beginnings are possible."""
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
    """Return llguidance's limits; its errors must not contain the parser's state."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False)


STEPS = 16
"""Tokens of a walk."""
MAX_STRINGS = 32
"""Strings of one schema that are tried."""
_EXPRESSIONS = ("pattern", "format")
_LENGTHS = ("minLength", "maxLength")
_USUAL = sorted(b"ab1 .-,X")


def demanding_strings(schema: Any) -> list[dict[str, Any]]:
    """Return the strings that combine a regex with a length, each once."""
    found: dict[str, dict[str, Any]] = {}
    for each in objects(schema):
        own = {word: each[word] for word in (*_EXPRESSIONS, *_LENGTHS) if word in each}
        if own.keys() & set(_EXPRESSIONS) and own.keys() & set(_LENGTHS):
            found.setdefault(json.dumps(own, sort_keys=True), {"type": "string", **own})
    return list(found.values())[:MAX_STRINGS]


def walk_error(matcher: LLMatcher) -> str | None:
    """Follow the grammar for some tokens; return why it failed, or None."""
    random = Random(0)
    for _ in range(STEPS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return matcher.get_error()
        usual = [token for token in _USUAL if mask[token >> 3] >> (token & 7) & 1]
        token = random.choice(usual) if usual else _first(mask)
        if token is None or not matcher.consume_token(token):
            return matcher.get_error() if matcher.is_error() else None
        if matcher.is_stopped():
            break
    return None


def _first(mask: bytes) -> int | None:
    """Return the first token that a mask allows."""
    place = next((place for place, bits in enumerate(mask) if bits), None)
    if place is None:
        return None
    return place * 8 + (mask[place] & -mask[place]).bit_length() - 1
