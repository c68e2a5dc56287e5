"""Makes `SamplingParams` from a request's fields, and the structure of its text from any of the
fields that set one. Unset fields get the model's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request

from quire.core.errors import InvalidRequestError
from quire.core.sampling_params import MAX_LOGPROBS, MAX_N, RequestOutputKind, SamplingParams
from quire.core.structured_outputs import KINDS, StructuredOutputsParams
from quire.server.errors import invalid, not_supported
from quire.server.notices import ignore
from quire.server.openai.protocol import (
    ChatRequest,
    CommonRequest,
    CompletionRequest,
    ResponseFormat,
)

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


def chat_params(
    request: ChatRequest, defaults: Mapping[str, Any], max_logprobs: int = MAX_LOGPROBS
) -> SamplingParams:
    """Return sampling parameters; raise `InvalidRequestError` or `ApiError` with the field."""
    return SamplingParams(
        **_fields(request, defaults),
        max_tokens=_max_tokens(request),
        logprobs=_logprobs(request, max_logprobs),
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


def _logprobs(request: ChatRequest, most: int) -> int | None:
    top = request.top_logprobs
    if top is not None:
        if not 0 <= top <= most:
            raise invalid(f"top_logprobs is {top}; it must be in [0, {most}].", "top_logprobs")
        if top and not request.logprobs:
            raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
    return (top or 0) if request.logprobs else None


GUIDED = {f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")}
"""Field → the kind of structure that it sets."""
_OF_JSON = ("disable_any_whitespace", "whitespace_pattern", "disable_additional_properties")


def structured_outputs(request: CommonRequest) -> StructuredOutputsParams | None:
    """Return the request's structure, from whichever field has it.

    Raises:
        ApiError: 400 if two fields are set, or one contradicts itself.
    """
    found: dict[str, dict[str, Any]] = {}
    place = ""
    if request.response_format and (of_format := _of_format(request.response_format)):
        found["response_format"], place = of_format
    if request.structured_outputs is not None:
        found["structured_outputs"] = {
            name: getattr(request.structured_outputs, name) for name in (*KINDS, *_OF_JSON)
        }
    for name, kind in GUIDED.items():
        if (value := getattr(request, name)) is not None:
            found[name] = {kind: value, "whitespace_pattern": request.guided_whitespace_pattern}
    if not found:
        if request.guided_whitespace_pattern is not None:
            raise invalid(
                "guided_whitespace_pattern needs guided_json.", "guided_whitespace_pattern"
            )
        return None
    name, *others = found
    if others:
        raise invalid(f"{name} and {others[0]} both set the format of the text.", others[0])
    try:
        wanted = StructuredOutputsParams(**found[name])
        field = f"{name}.{wanted.kind}" if name == "structured_outputs" else place or name
        return msgspec.structs.replace(wanted, field=field)
    except InvalidRequestError as error:
        raise invalid(str(error), name) from None


_FORMAT_FIELDS = {
    "json_schema": ("json_schema",),
    "schema": ("json_schema", "json_object"),
    "structures": ("structural_tag",),
    "triggers": ("structural_tag",),
    "format": ("structural_tag",),
}
"""Field of `response_format` → the types that have it."""


def _of_format(wanted: ResponseFormat) -> tuple[dict[str, Any], str] | None:
    """Return the structure of `response_format`, and its place there.

    Raises:
        ApiError: 400 if a field is missing, or belongs to another type.
    """
    kind, inner = wanted.type, wanted.json_schema
    for name, kinds in _FORMAT_FIELDS.items():
        if getattr(wanted, name) is not None and kind not in kinds:
            text = f"response_format has the field {name}, but its type is {kind}."
            raise invalid(text, f"response_format.{name}")
    if wanted.value is not None or (inner is not None and wanted.schema is not None):
        text = "response_format has two schemas; send one."
        raise invalid(text, "response_format.schema")
    if kind == "structural_tag":
        tag = {"structures": wanted.structures, "triggers": wanted.triggers}
        if wanted.format is not None:
            if tag != dict.fromkeys(tag):
                text = "response_format has a format, and structures or triggers; send the format."
                raise invalid(text, "response_format.format")
            return {"structural_tag": {"format": wanted.format}}, "response_format"
        for name, value in tag.items():
            if value is None:
                raise invalid(f"response_format.{name} is missing.", f"response_format.{name}")
        return {"structural_tag": tag}, "response_format"
    if kind == "text":
        return None
    if inner is not None:
        return {"json": inner.schema}, "response_format.json_schema.schema"
    if wanted.schema is not None:
        return {"json": wanted.schema}, "response_format.schema"
    if kind == "json_schema":
        raise invalid("response_format.json_schema is missing.", "response_format.json_schema")
    return {"json_object": True}, "response_format"
