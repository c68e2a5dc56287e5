"""The tokens that a model wants around every text."""

from __future__ import annotations

import tokenizers
from tokenizers import models, processors

from quire.system.records import dataclass


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


@dataclass(frozen=True, slots=True)
class Frame:
    """What a model wants around one text, or around two as one input.

    Attributes:
        parts: (special, id, type): with `special` a token, otherwise the text of this number.
    """

    parts: tuple[tuple[bool, int, int], ...]

    @property
    def size(self) -> int:
        """Return the number of special tokens."""
        return sum(special for special, _, _ in self.parts)

    def around(self, *texts: list[int]) -> tuple[list[int], int]:
        """Return the ids of the whole, and where type 1 begins; 0 for one text, or without it."""
        whole: list[int] = []
        begins = None
        for special, id_, type_ in self.parts:
            if type_ == 1 and begins is None:
                begins = len(whole)
            whole += [id_] if special else texts[id_]
        return whole, begins or 0 if len(texts) > 1 else 0


def frame_of(backend: tokenizers.Tokenizer, *, pair: bool) -> Frame:
    """Return what `backend` puts around one text, or around two."""
    texts = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    whole = backend.post_process(texts.encode("a"), texts.encode("b") if pair else None)
    special = map(bool, whole.special_tokens_mask)
    return Frame(tuple(zip(special, whole.ids, whole.type_ids, strict=True)))
