"""Detects requests whose fields rule out every token."""

from __future__ import annotations

from quire.core.sampling_params import SamplingParams


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
