"""Structured output as grammars: from what a request asks for to a matcher of its tokens.

llguidance builds a lexer and an Earley parser of a schema, an expression or a grammar, and tells
for any text so far which tokens may follow. Its work is counted in fuel, not in seconds, so that a
grammar is refused on every machine or on none.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_GRAMMAR_BYTES = 256 * 2**10
"""Longest schema, expression, grammar or list of choices."""
MAX_GBNF_BYTES = 32 * 2**10
"""GBNF is converted in Python."""
MAX_DEPTH = 100
"""Deepest nesting of a schema."""

CHECKED_KEPT = 1024
"""Grammars that were found to be good and need not be checked again."""

_PASSED_OVER = ("contentEncoding", "contentMediaType", "contentSchema")
_OF_SCHEMAS = ("properties", "patternProperties", "definitions", "$defs")
_SCHEMAS = ("items", "prefixItems", "additionalItems", "additionalProperties", "allOf", "anyOf",
            "oneOf")  # fmt: skip
_SPECIAL = b"\xff"
"""Begins the name of a control token, so that no text can be one."""


def grammar_key(params: StructuredOutputsParams) -> bytes:
    """Equal for equal grammars."""
    return msgspec.msgpack.encode(params)


def grammar_text(params: StructuredOutputsParams) -> str:
    """The grammar as llguidance reads it.

    Raises:
        InvalidRequestError: it is too large, no JSON, or no GBNF.
    """
    from llguidance import LLMatcher, regex_to_lark

    _check_size(params)
    match params.kind:
        case "regex":
            assert params.regex is not None
            # \d and \w are ASCII's, as in JSON schemas.
            return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(params.regex, 'dw')}/")
        case "choice":
            assert params.choice is not None
            choices = " | ".join(json.dumps(choice) for choice in params.choice)
            return LLMatcher.grammar_from_lark(f"start: {choices}")
        case "grammar":
            assert params.grammar is not None
            return LLMatcher.grammar_from_lark(_lark(params.grammar))
        case _:
            return LLMatcher.grammar_from_json_schema(_schema(params), overrides=_spacing(params))


class GrammarChecker:
    """Tells whether a grammar can be served, without the model's vocabulary: in milliseconds.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._tokenizer: LLTokenizer | None = None
        self._lock = Lock()

    def knows(self, params: StructuredOutputsParams) -> bool:
        """Whether `check` would cost nothing."""
        return grammar_key(params) in self._good

    def check(self, params: StructuredOutputsParams) -> None:
        """Raise `InvalidRequestError` where the grammar cannot be served."""
        key = grammar_key(params)
        with self._lock:
            if key in self._good:
                self._good.move_to_end(key)
                return
            if self._tokenizer is None:
                self._tokenizer = byte_tokenizer()
        new_matcher(self._tokenizer, grammar_text(params))
        with self._lock:
            self._good[key] = None
            if len(self._good) > CHECKED_KEPT:
                self._good.popitem(last=False)


def new_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the beginning of the text.

    Raises:
        InvalidRequestError: the grammar cannot be served; names the keyword or the place.
    """
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar, limits=_limits(), log_level=0)
    if matcher.is_error():
        raise _refused(matcher.get_error())
    return matcher


def matcher_tokenizer(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]
) -> LLTokenizer:
    """The vocabulary as llguidance wants it; control tokens stand for no text.

    Args:
        vocab_size: of the logits; ids beyond the tokenizer's own are never allowed.
        eos_token_ids: allowed where the text may end.

    Raises:
        InvalidRequestError: the model has no token to end a text with.
    """
    from llguidance import LLTokenizer

    if not eos_token_ids:
        raise InvalidRequestError(
            "the model has no end-of-sequence token, without which no structure can end.",
            param="structured_outputs",
        )
    special = {*tokenizer.all_special_ids, *eos_token_ids}
    tokens = [_token(tokenizer, i, i in special) for i in range(vocab_size)]
    wrapper = _Vocabulary(tokens, eos_token_ids[0], sorted(special))
    return LLTokenizer(wrapper, eos_token=list(eos_token_ids))  # type: ignore[arg-type]


def byte_tokenizer() -> LLTokenizer:
    """Bytes for tokens, and one that ends the text: enough to tell whether a grammar is sound."""
    from llguidance import LLTokenizer

    tokens = [*(bytes([byte]) for byte in range(256)), b"\xff</s>"]
    return LLTokenizer(_Vocabulary(tokens, 256, [256]), eos_token=256)  # type: ignore[arg-type]


class _Vocabulary:
    """What `LLTokenizer` reads of a tokenizer.

    Text that is forced is made into the longest tokens that spell it, whatever the tokenizer
    itself would do at the beginning of a text.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], eos_token_id: int, special: list[int]) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.special_token_ids = special
        controls = set(special)
        self._ids = {raw: i for i, raw in enumerate(tokens) if raw and i not in controls}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: str | bytes) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        ids: list[int] = []
        at = 0
        while at < len(raw):
            sizes = range(min(self._longest, len(raw) - at), 0, -1)
            size = next((n for n in sizes if raw[at : at + n] in self._ids), 0)
            if not size:  # no token spells it: it cannot be said
                break
            ids.append(self._ids[raw[at : at + size]])
            at += size
        return ids


def _token(tokenizer: Tokenizer, token_id: int, special: bool) -> bytes:
    if special:
        return _SPECIAL + f"<{token_id}>".encode()
    return tokenizer.token_bytes(token_id)


def _limits() -> LLParserLimits:
    """llguidance's own, but for errors, which are not to hold the parser's state."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False)


def _check_size(params: StructuredOutputsParams) -> None:
    size = len(msgspec.json.encode(getattr(params, params.kind)))
    if size > MAX_GRAMMAR_BYTES:
        raise _refused(f"it has {size} bytes, more than {MAX_GRAMMAR_BYTES}", params.kind)


def _schema(params: StructuredOutputsParams) -> str:
    """The schema's text, nested no deeper than is sound."""
    schema: Any = {"type": "object"} if params.json_object else params.json
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _refused(f"the schema is not valid JSON: {error}", "json") from None
    if schema is False:
        raise _refused("the schema false allows nothing", "json")
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise _refused("a schema is an object or a boolean", "json")
    _check_depth(schema)
    _check_keywords(schema)
    return json.dumps(schema)


def _check_keywords(schema: Any) -> None:
    """Refuse what llguidance would pass over; it names all other keywords that it lacks."""
    if not isinstance(schema, dict):
        return
    for keyword in _PASSED_OVER:
        if keyword in schema:
            raise _refused(f'Unimplemented keys: ["{keyword}"]', "json")
    if "$ref" in schema and "$id" in schema:
        raise _refused("$id beside $ref", "json")
    for keyword, value in schema.items():
        if keyword in _OF_SCHEMAS and isinstance(value, dict):
            for each in value.values():
                _check_keywords(each)
        elif keyword in _SCHEMAS:
            for each in value if isinstance(value, list) else [value]:
                _check_keywords(each)


def _check_depth(schema: Any) -> None:
    level = [schema]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        if not inner:
            return
        level = inner
    raise _refused(f"the schema is nested deeper than {MAX_DEPTH}", "json")


def _spacing(params: StructuredOutputsParams) -> Any:
    """Options of the schema's compiler, none of them left to the schema (`x-guidance`)."""
    return {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": not params.disable_any_whitespace,
        "whitespace_pattern": params.whitespace_pattern,
        "coerce_one_of": False,
        "lenient": False,
    }


def _lark(grammar: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

    if is_lark_syntax(grammar):
        return grammar
    if len(grammar) > MAX_GBNF_BYTES:
        raise _refused(f"GBNF may have {MAX_GBNF_BYTES} characters", "grammar")
    try:
        return gbnf_to_lark(grammar)
    except Exception as error:  # of no class of its own where a rule is not there
        raise _refused(str(error) or repr(error), "grammar") from None


def _refused(reason: str, kind: str | None = None) -> InvalidRequestError:
    what = f"structured_outputs.{kind}" if kind else "structured_outputs"
    return InvalidRequestError(
        f"{what} cannot be served: {reason.strip().rstrip('.')}.", param="structured_outputs"
    )
