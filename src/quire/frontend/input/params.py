"""Checks sampling parameters against the model, and packs them for the core."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from typing import Any

from quire.core.config import LogprobsMode
from quire.core.errors import InvalidRequestError
from quire.core.named_fields import check_types
from quire.core.pooling_params import WHOLE_CONTEXT
from quire.core.sampling_params import MOST_LOGPROBS, SamplingParams

MAX_UNPACKED = 1024
"""A longer list of allowed tokens goes to the core as a bit mask."""
_OWN_FIELDS = {
    "bad_words_token_ids": "bad_words",
    "allowed_tokens": "allowed_token_ids",
    "written_structure": "structured_outputs",
}
"""Fields of `SamplingParams` that only the input processor sets → the user's field."""


def check_sampling_types(params: object) -> None:
    """Raise `InvalidRequestError` unless `params` is a `SamplingParams` with correct types."""
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(
            f"sampling_params must be SamplingParams, not {type(params).__name__}.",
            param="sampling_params",
        )
    check_types(params)


def check_params(params: SamplingParams, vocab_size: int, max_logprobs: int) -> None:
    """Raise `InvalidRequestError` for a field that cannot be served."""
    check_sampling_types(params)
    most = min(max_logprobs, vocab_size)
    for name in ("logprobs", "prompt_logprobs"):
        if (count := getattr(params, name)) is not None and count > most:
            fix = "Ask for fewer."
            if most < min(vocab_size, MOST_LOGPROBS):
                fix = "Ask for fewer, or start with a higher --max-logprobs."
            raise InvalidRequestError(
                f"{name} is {count}; it must be in [0, {most}].", fix=fix, param=name
            )
    if (count := len(params.allowed_token_ids or ())) > vocab_size:
        raise InvalidRequestError(
            f"allowed_token_ids has {count} token ids; the model's vocabulary has {vocab_size}.",
            fix="Name each token once.",
            param="allowed_token_ids",
        )
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias", "logprob_token_ids"):
        if ids := getattr(params, name):
            check_ids(name, ids, vocab_size)
    for name, instead in _OWN_FIELDS.items():
        if getattr(params, name) is not None:
            raise InvalidRequestError(
                f"Only the engine sets {name}.", fix=f"Use {instead}.", param=name
            )


def check_summed(mode: LogprobsMode, name: str) -> None:
    """Raise `InvalidRequestError` if log-probabilities, which `name` adds up, are not reported."""
    if mode not in ("raw_logprobs", "processed_logprobs"):
        raise InvalidRequestError(
            f"{name} adds up log-probabilities, but the engine reports {mode}.",
            fix="Start it without --logprobs-mode.",
            param=name,
        )


def check_restrictions(
    params: SamplingParams, eos_token_ids: tuple[int, ...], vocab_size: int
) -> None:
    """Check that the fields which rule out tokens leave one for the first position.

    The structure is not considered here. If it leaves no token, the sampler ends the request with
    the same error.

    Args:
        params: with `bad_words_token_ids`.

    Raises:
        InvalidRequestError: no token is left; names the fields.
    """
    if params.allowed_token_ids is None and not params.bad_words:
        return
    banned = {word[0] for word in params.bad_words_token_ids or [] if len(word) == 1}
    if params.min_tokens:
        banned.update(eos_token_ids, params.stop_token_ids or [])
    if params.allowed_token_ids is None:
        left = len(banned) < vocab_size
    else:
        left = any(token not in banned for token in params.allowed_token_ids)
    if not left:
        raise params.contradiction()


def check_embeds(params: SamplingParams) -> None:
    """Raise `InvalidRequestError` for parameters that need the prompt's tokens."""
    if params.prompt_logprobs is not None:
        raise InvalidRequestError(
            "Embeddings have no log-probabilities: they stand for no token.",
            param="prompt_logprobs",
        )


def check_ids(name: str, ids: Collection[Any], vocab_size: int) -> None:
    """Raise `InvalidRequestError` for an id that is not in the vocabulary."""
    if set(map(type, ids)) <= {int} and min(ids) >= 0 and max(ids) < vocab_size:
        return  # the usual case, without the slow loop
    for token in ids:
        if type(token) is not int:
            raise InvalidRequestError(
                f"{name} holds {token!r}; token ids are whole numbers.", param=name
            )
        if not 0 <= token < vocab_size:
            raise InvalidRequestError(
                f"{name} holds token id {token}; the model's vocabulary ends at {vocab_size - 1}.",
                param=name,
            )


def known_words(words: list[list[int]] | None, vocab_size: int) -> list[list[int]] | None:
    """Return the words without those that hold a token which the model cannot generate."""
    return words and [ids for ids in words if max(ids, default=0) < vocab_size]


def truncated(
    token_ids: list[int], params: SamplingParams, limit: int, *, embeds: bool
) -> list[int]:
    """Return the tokens that `truncate_prompt_tokens` keeps.

    -1 cuts only a prompt that does not fit. Then the answer gets what it may need, but no more
    than a quarter of the context: `max_tokens` is often far more than an answer takes.

    Args:
        limit: the most tokens of a prompt and its answer.
    """
    kept = params.truncate_prompt_tokens
    if embeds:
        raise InvalidRequestError(
            "Embeddings are not truncated; send fewer.", param="truncate_prompt_tokens"
        )
    if kept == WHOLE_CONTEXT:
        least = max(params.min_tokens, 1)
        if len(token_ids) + least <= limit:
            return token_ids
        kept = max(1, limit - max(least, min(params.max_tokens or limit, limit // 4)))
    if kept is None or kept >= limit:
        raise InvalidRequestError(
            f"truncate_prompt_tokens is {kept}, but the maximum context length is {limit} "
            "tokens, of which the answer needs one.",
            fix="Set it to -1 for as many as fit.",
            param="truncate_prompt_tokens",
        )
    return token_ids[-kept:] if params.truncation_side == "left" else token_ids[:kept]


def packed_params(params: SamplingParams, vocab_size: int) -> SamplingParams:
    """Return `params` with a long list packed, because every completion's message copies it."""
    if len(params.allowed_token_ids or ()) <= MAX_UNPACKED:
        return params
    sent = copy(params)  # without another validation
    import numpy as np

    bits = np.zeros(vocab_size, dtype=np.uint8)
    bits[params.allowed_token_ids] = 1
    sent.allowed_tokens = np.packbits(bits, bitorder="little").tobytes()
    sent.allowed_token_ids = None
    return sent
