"""Arguments of `LLM` that are one value for all prompts, or one for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from quire.core.errors import InvalidRequestError
from quire.frontend.images.prompts import ImagePrompt
from quire.frontend.input.pooling_input import TextPair
from quire.frontend.workers.tokenizer_worker import ChatPrompt


def one_each(name: str, given: Any, kind: type, count: int, *, optional: bool = False) -> list[Any]:
    """Return a list of `count` values: `given` repeated, or its entries.

    Args:
        kind: the type of each value.
        optional: allow None as a value.

    Raises:
        InvalidRequestError: a value has another type, or the count differs.
    """
    if isinstance(given, kind) or (optional and given is None):
        return [given] * count
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise _wrong(name, given, kind)
    each = [one.item() if isinstance(one, np.generic) else one for one in given]
    for one in each:
        if not (isinstance(one, kind) or (optional and one is None)):
            raise _wrong(name, one, kind)
    if len(each) != count:
        raise InvalidRequestError(
            f"{name} has {len(each)} entries for {count} prompts.",
            fix="Give one for all, or one each.",
            param=name,
        )
    return each


def as_list(prompts: Any) -> list[Any]:
    """Return a list of prompts, given one or several. A list of integers is one prompt."""
    one = isinstance(prompts, str | bytes | Mapping | ChatPrompt | ImagePrompt | TextPair)
    if one or not isinstance(prompts, Iterable):
        return [prompts]
    many = list(prompts)
    return [many] if many and isinstance(many[0], int) else many


def _wrong(name: str, given: object, kind: type) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name} is {type(given).__name__}; it must be {kind.__name__}, or a list of them.",
        param=name,
    )
