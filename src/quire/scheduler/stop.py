"""When a request ends by its tokens. Stop strings need text and are found by the front end."""

from __future__ import annotations

from quire.core.request import FinishReason, Request


def check_stop(request: Request) -> bool:
    """Set `finish_reason` and `stop_reason` if the last token ends `request`; whether it does."""
    params = request.sampling_params
    token = request.token_ids[-1]
    if request.num_output_tokens >= params.min_tokens:
        if not params.ignore_eos and token in request.eos_token_ids:
            request.finish_reason = FinishReason.STOP
            return True
        if params.stop_token_ids and token in params.stop_token_ids:
            request.finish_reason = FinishReason.STOP
            request.stop_reason = token
            return True
    if request.num_tokens >= request.max_total_tokens:
        request.finish_reason = FinishReason.LENGTH
        return True
    return False
