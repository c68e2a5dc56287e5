"""The tokens that a model wants around every text."""

from __future__ import annotations

import tokenizers
from tokenizers import processors


def surround(backend: tokenizers.Tokenizer, before: str | None, after: str | None) -> None:
    """Make `backend` put token `before` in front of every text and `after` behind it."""
    around = [token for token in (before, after) if token is not None]
    if not around:
        return
    single = [*([before] if before else []), "$A", *([after] if after else [])]
    backend.post_processor = processors.TemplateProcessing(
        single=single,
        special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys(around)],
    )
