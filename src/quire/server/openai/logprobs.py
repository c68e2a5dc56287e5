"""Log-probabilities in the shapes of the two endpoints."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from quire.core.outputs import Logprob, PositionLogprobs
from quire.server.http.json_text import encode
from quire.server.openai import answers
from quire.server.turns import Pace, Turns

if TYPE_CHECKING:
    from quire.text.tokenizers.tokenizer import Tokenizer


T = TypeVar("T")

LEAST_LOGPROB = -9999.0
"""Smallest reported log-probability, as in vLLM, because JSON has no -inf."""


def completion_logprobs(
    positions: Sequence[PositionLogprobs | None],
    top: int,
    offset: int,
    first: tuple[int, str],
    *,
    named: Collection[int] = (),
    as_ids: bool = False,
) -> Turns[tuple[answers.CompletionLogprobs, int]]:
    """Return the completions endpoint's parallel lists, and the offset after the last token.

    Args:
        positions: one per token, the token itself first; None for a prompt's first token.
        top: requested number of likeliest tokens; the chosen one is additional.
        offset: characters of the choice's text before the first token.
        named: tokens that are always reported.
        first: the token without log-probabilities, and its text.
        as_ids: name tokens by their ids.
    """
    result = answers.CompletionLogprobs([], [], [], [])
    pace = Pace()
    for position in positions:
        if pace.is_over(len(position or ())):
            yield
        result.text_offset.append(offset)
        if position is None:
            result.tokens.append(_named(*first, as_ids=as_ids))
            result.token_logprobs.append(None)
            result.top_logprobs.append(None)
            offset += len(first[1])
            continue
        token, chosen = next(iter(position.items()))
        text = chosen.decoded_token or ""
        name = _named(token, text, as_ids=as_ids)
        result.tokens.append(name)
        result.token_logprobs.append(finite(chosen.logprob))
        likeliest: dict[str, float] = {}
        for i, p in _reported(position, top, named):  # the likeliest of equal texts comes first
            likeliest.setdefault(_named(i, p.decoded_token, as_ids=as_ids), finite(p.logprob))
        likeliest.setdefault(name, finite(chosen.logprob))
        result.top_logprobs.append(as_json(likeliest))
        offset += len(text)
    return result, offset


def joined(
    first: answers.CompletionLogprobs, second: answers.CompletionLogprobs
) -> answers.CompletionLogprobs:
    """Return the lists of `first`, followed by those of `second`."""
    return answers.CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


def chat_logprobs(
    positions: list[PositionLogprobs],
    top: int,
    tokenizer: Tokenizer,
    *,
    named: Collection[int] = (),
    as_ids: bool = False,
) -> Turns[answers.ChatLogprobs]:
    """Return the chat endpoint's list; `bytes` are exact even if `token` is part of a character."""
    content = []
    pace = Pace()
    for position in positions:
        if pace.is_over(len(position)):
            yield
        token, chosen = next(iter(position.items()))
        likeliest = [
            answers.TopLogprob(
                _named(i, p.decoded_token, as_ids=as_ids),
                finite(p.logprob),
                list(tokenizer.token_bytes(i)),
            )
            for i, p in _reported(position, top, named)
        ]
        text = _named(token, chosen.decoded_token, as_ids=as_ids)
        raw = list(tokenizer.token_bytes(token))
        content.append(as_json(answers.TokenLogprob(text, finite(chosen.logprob), raw, likeliest)))
    return answers.ChatLogprobs(content)


def prompt_logprobs(positions: Sequence[PositionLogprobs | None]) -> Turns[answers.PromptLogprobs]:
    """Return vLLM's `prompt_logprobs`."""
    result: answers.PromptLogprobs = []
    pace = Pace()
    for position in positions:
        if pace.is_over(len(position or ())):
            yield
        if position is None:
            result.append(None)
        else:
            result.append(
                as_json(
                    {
                        i: answers.PromptLogprob(finite(p.logprob), p.rank, p.decoded_token)
                        for i, p in position.items()
                    }
                )
            )
    return result


def as_json(entry: T) -> T:
    """Return `entry` encoded, so that encoding the answer only copies it."""
    return cast(T, msgspec.Raw(encode(entry)))


def _named(token: int, text: str | None, *, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids else text or ""


def _reported(
    position: PositionLogprobs, top: int, named: Collection[int]
) -> list[tuple[int, Logprob]]:
    """Return the `top` likeliest tokens, best first, then the other `named` ones.

    The chosen token is included only if it is among them.
    """
    ranked = [(i, p) for i, p in position.items() if p.rank is not None and p.rank <= top]
    ranked.sort(key=lambda entry: entry[1].rank or 0)
    known = {i for i, _ in ranked}
    others = [i for i in dict.fromkeys(named) if i in position and i not in known]
    return ranked + [(i, position[i]) for i in others]


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)
