"""Fields of a request that rule tokens out, and leave none."""

from __future__ import annotations

from quire.core.sampling_params import SamplingParams


def check_restrictions(
    params: SamplingParams, eos_token_ids: tuple[int, ...], vocab_size: int
) -> None:
    """Check that the fields that rule tokens out leave one to begin with.

    What a structure allows is not known here. A request whose structure leaves nothing ends with
    the same error, from the sampler.

    Args:
        params: with `bad_words_token_ids`.

    Raises:
        InvalidRequestError: they leave none; names the fields.
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
