"""Ends a request by its tokens. Stop strings need text; the front end finds them."""

from __future__ import annotations

from quire.core.request import FinishReason, Request


def check_stop(request: Request) -> bool:
    """Return whether the last token ends `request`; if so, set its reasons."""
    params = request.sampling_params
    token = request.token_ids[-1]
    if token in request.stop_ids and request.num_output_tokens >= params.min_tokens:
        request.finish_reason = FinishReason.STOP
        if params.ignore_eos or token not in request.inputs.eos_token_ids:
            request.stop_reason = token
        return True
    if request.num_tokens < request.max_total_tokens:
        return False
    request.finish_reason = FinishReason.LENGTH
    return True
