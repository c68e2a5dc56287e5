"""Beam search for completions and chats: its parameters, and the search itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request

from quire.core.beam_search import MAX_WIDTH, BeamSearchParams, BeamSearchSequence
from quire.core.messages import CoreOutput
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.core.request import FinishReason
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.beam_search import BeamSearch, advance_all, one_token
from quire.frontend.images.prompts import ImagePrompt
from quire.frontend.input.params import check_summed
from quire.frontend.input.served_model import eos_token_ids
from quire.frontend.output.sequence import SequenceState
from quire.server.errors import invalid, not_supported
from quire.server.notices import ignore
from quire.server.openai.generation import Generation, Search
from quire.server.openai.protocol import CommonRequest, CompletionRequest
from quire.server.state import server_state

_OF_BEAMS = ("use_beam_search", "length_penalty", "early_stopping")
_FOLLOWED = {
    "n", "max_tokens", "ignore_eos", "seed", "output_kind", "skip_special_tokens",
    "spaces_between_special_tokens", "truncate_prompt_tokens", "truncation_side",
}  # fmt: skip
"""Sampling fields that a search supports, or that cannot change it."""


def search_of(request: Request, body: CommonRequest, params: SamplingParams) -> Search | None:
    """Return the search that a request wants; None without `use_beam_search`.

    Args:
        params: the body's sampling parameters.

    Raises:
        ApiError: 400 for a field that the search does not support, or that needs it.
    """
    if not body.use_beam_search:
        if body.length_penalty not in (None, 1):
            raise not_supported("length_penalty", "It needs use_beam_search.")
        for name in _OF_BEAMS:
            if getattr(body, name) is not None:
                ignore(request, name, "It belongs to beam search, which is off.")
        return None
    if body.stream:
        raise not_supported("stream", "Beam search is not streamed: its texts change to the end.")
    engine = server_state(request).engine
    config = engine.resolved.config
    check_summed(config.logprobs_mode, "use_beam_search")
    _check_followed(body, params, engine.default_sampling_params)
    width, field = body.n or 1, "n"
    if isinstance(body, CompletionRequest) and body.best_of is not None:
        width, field = body.best_of, "best_of"
    most = min(MAX_WIDTH, config.max_logprobs // 2)
    if not 1 <= width <= most:
        raise invalid(f"{field} is {width}; beam search keeps 1 to {most} texts.", field)
    beams = BeamSearchParams(
        beam_width=width,
        max_tokens=params.max_tokens or 2**31 - 1,
        ignore_eos=params.ignore_eos,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        early_stopping=body.early_stopping is True,
    )
    return partial(search, params=beams, count=body.n or 1)


def _check_followed(
    body: CommonRequest, params: SamplingParams, defaults: Mapping[str, Any]
) -> None:
    plain = SamplingParams()
    for name in params.__struct_fields__:
        value = getattr(params, name)
        given = name not in defaults or getattr(body, name, None) is not None
        neutral = name == "temperature" and value == 0
        if given and not neutral and name not in _FOLLOWED and value != getattr(plain, name):
            wanted = params.structured_outputs
            if name == "structured_outputs" and wanted is not None:
                name = wanted.field or name
            raise not_supported(name, "Beam search does not follow it.")


async def search(call: Generation, params: BeamSearchParams, count: int) -> list[RequestOutput]:
    """Return the `count` best texts of each prompt, as its final output.

    The first step returns the prompts' tokens. A step's beams are queued like other requests, so
    that no request waits for a whole search.

    Raises:
        ApiError, InvalidRequestError: a prompt cannot be served.
        RequestFailedError: a step failed.
    """
    if any(isinstance(prompt, dict) and "prompt_embeds" in prompt for prompt in call.prompts):
        raise not_supported("prompt_embeds", "Beam search needs tokens.")
    if any(isinstance(prompt, ImagePrompt) for prompt in call.prompts):
        raise not_supported("use_beam_search", "Beam search reads no images.")
    engine = call.server.engine
    one = one_token(params)
    truncation = ("truncate_prompt_tokens", "truncation_side")
    first = one.replace(**{name: getattr(call.params, name) for name in truncation})
    firsts = await call.run(call.prompts, first)
    ends = eos_token_ids(engine.resolved, engine.tokenizer)
    searches = []
    for output in firsts:
        room = engine.max_total_tokens - len(output.prompt_token_ids)
        own = msgspec.structs.replace(params, max_tokens=min(params.max_tokens, room))
        searches.append(BeamSearch(output.prompt_token_ids, own, ends))
    advance_all(searches, firsts)
    while beams := [beam.tokens for search in searches for beam in search.live]:
        advance_all(searches, await call.run([{"prompt_token_ids": b} for b in beams], one))
    return [
        _output(call, output, each.best()[:count])
        for output, each in zip(firsts, searches, strict=True)
    ]


def _output(
    call: Generation, first: RequestOutput, found: Sequence[BeamSearchSequence]
) -> RequestOutput:
    return RequestOutput(
        first.request_id,
        first.prompt,
        first.prompt_token_ids,
        [_completion(call, first, index, beam) for index, beam in enumerate(found)],
        finished=True,
        num_cached_tokens=first.num_cached_tokens,
    )


def _completion(
    call: Generation, first: RequestOutput, index: int, beam: BeamSearchSequence
) -> CompletionOutput:
    """Return a beam as a completion, as if it had been sampled."""
    prompt = first.prompt_token_ids
    state = SequenceState(index, prompt, call.params, call.server.engine.tokenizer)
    reason = FinishReason.STOP if beam.finish_reason == "stop" else FinishReason.LENGTH
    state.update(CoreOutput(first.request_id, beam.tokens[len(prompt) :], reason))
    return state.take(RequestOutputKind.FINAL_ONLY)
