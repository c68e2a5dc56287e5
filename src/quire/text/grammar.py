"""Structured output as grammars: from a request's structure to a matcher of its tokens.

llguidance builds a lexer and an Earley parser from a schema, an expression or a grammar, and
computes which tokens may follow a text. Its work is limited in fuel, not in seconds, so that every
machine refuses the same grammars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.composition import Specials, placed
from quire.text.grammar_writer import write_grammars
from quire.text.structures import refused

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


def new_matcher(
    tokenizer: LLTokenizer,
    params: StructuredOutputsParams,
    specials: Specials | None = None,
    written: str | None = None,
) -> LLMatcher:
    """Return a matcher at the beginning of the text, after a check of its first mask.

    Args:
        specials: the model's control tokens, for marks around the structure; without them, marks
            are plain text.
        written: the result of `checked` for these control tokens, which saves writing the grammar
            again.

    Raises:
        InvalidRequestError: the grammar is not supported; names the keyword or the position.
    """
    from llguidance import LLMatcher, LLParserLimits

    specials = specials or {}
    grammars = write_grammars(params, specials) if written is None else written
    grammar = placed(grammars, params.reasoning, specials)
    limits = LLParserLimits(verbose_errors=False)  # errors must not contain the parser's state
    matcher = LLMatcher(tokenizer, grammar, limits=limits, log_level=0)
    try:
        if not matcher.is_error():
            matcher.compute_bitmask()
    except ValueError as error:
        raise refused(str(error), params) from None
    if matcher.is_error():
        raise refused(matcher.get_error(), params)
    return matcher


def checked(
    tokenizer: LLTokenizer, params: StructuredOutputsParams, specials: Specials, others: Specials
) -> str:
    """Check a structure with one vocabulary's control tokens; return its grammars for `others`.

    Raises:
        InvalidRequestError: as for `new_matcher`.
    """
    new_matcher(tokenizer, params, specials)
    return write_grammars(params, others)
