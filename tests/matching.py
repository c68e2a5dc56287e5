"""What a matcher of llguidance takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.grammar import new_matcher
from quire.text.tokenizers.vocabulary import byte_tokenizer

BYTES = byte_tokenizer()


def takes(matcher: Any, tokens: list[int]) -> bool:
    """Whether all of the tokens may be generated, and the text may end there."""
    fits = matcher.validate_tokens(tokens) == len(tokens)
    return bool(fits and matcher.consume_tokens(tokens) and matcher.is_accepting())


def accepts(params: StructuredOutputsParams, text: str) -> bool:
    """The same of a text's bytes."""
    return takes(new_matcher(BYTES, params), list(text.encode()))


def allowed(matcher: Any) -> list[int]:
    """The tokens that may come next."""
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    found: list[int] = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
    return found
