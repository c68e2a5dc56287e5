"""Makes `SamplingParams` from a request's fields; unset fields get the model's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from quire.core.sampling_params import MAX_LOGPROBS, MAX_N, RequestOutputKind, SamplingParams
from quire.server.errors import invalid, not_supported
from quire.server.notices import ignore
from quire.server.openai.protocol import ChatRequest, CommonRequest, CompletionRequest
from quire.server.openai.structure import structured_outputs

_READ_APART = {"max_tokens", "structured_outputs", "thinking_token_budget"}
_SAME_NAME = {*CommonRequest.__struct_fields__} & {*SamplingParams.__struct_fields__} - _READ_APART
"""Fields that a request and `SamplingParams` call the same."""


def completion_params(request: CompletionRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    """Return sampling parameters; raise `InvalidRequestError` or `ApiError` with the field."""
    fields = _fields(request, defaults)
    if not request.use_beam_search and wants_best(request):
        if request.stream:
            raise not_supported("stream", "The best of best_of answers are known only at the end.")
        fields["n"] = request.best_of
        fields["logprobs"] = 0
    if request.max_tokens is not None:
        fields["max_tokens"] = 1 if echoes_alone(request) else request.max_tokens
    if request.logprobs is not None:
        fields["logprobs"] = request.logprobs
        if request.echo and request.prompt_logprobs is None:
            fields["prompt_logprobs"] = request.logprobs
    return SamplingParams(**fields)


def wants_best(request: CompletionRequest) -> bool:
    """Return whether more answers are computed than returned.

    Raises:
        ApiError: 400 if fewer are.
    """
    n, best_of = request.n or 1, request.best_of
    if best_of is None:
        return False
    if not n <= best_of <= MAX_N:
        raise invalid(
            f"best_of is {best_of}; it must be at least n, {n}, and at most {MAX_N}.", "best_of"
        )
    return best_of > n


def echoes_alone(request: CompletionRequest) -> bool:
    """Return whether the answer is only the prompt with its log-probabilities.

    One token is computed after it and not returned.
    """
    return bool(request.echo) and request.max_tokens == 0


def chat_params(request: ChatRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    """Return sampling parameters; raise `InvalidRequestError` or `ApiError` with the field."""
    return SamplingParams(
        **_fields(request, defaults), max_tokens=_max_tokens(request), logprobs=_logprobs(request)
    )


def check_stream_options(request: Request, body: CommonRequest) -> None:
    """Report stream options of a request without a stream."""
    if body.stream_options is not None and not body.stream:
        ignore(request, "stream_options", "The answer is not streamed.")


def _fields(request: CommonRequest, defaults: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: getattr(request, name) for name in _SAME_NAME}
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return {
        **defaults,
        **{name: value for name, value in given.items() if value is not None},
        "structured_outputs": structured_outputs(request),
        "output_kind": kind,
    }


def _max_tokens(request: ChatRequest) -> int | None:
    """Return the limit under either name; None means up to the end of the context."""
    newer, older = request.max_completion_tokens, request.max_tokens
    if newer is None:
        return older
    if older is not None and older != newer:
        raise invalid(
            f"max_completion_tokens is {newer} and max_tokens is {older}; give one of them.",
            "max_completion_tokens",
        )
    if newer < 1:
        raise invalid(
            f"max_completion_tokens is {newer}; it must be at least 1.", "max_completion_tokens"
        )
    return newer


def _logprobs(request: ChatRequest) -> int | None:
    top = request.top_logprobs
    if top is not None:
        if not 0 <= top <= MAX_LOGPROBS:
            raise invalid(
                f"top_logprobs is {top}; it must be in [0, {MAX_LOGPROBS}].", "top_logprobs"
            )
        if top and not request.logprobs:
            raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
    return (top or 0) if request.logprobs else None
