"""Beam search on top of an engine that generates: every step asks for one token of every beam.

The beams of a prompt share its blocks, and each other's, in the prefix cache, so that a step
computes little more than a token for each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from quire.core.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from quire.core.errors import QuireError
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams

Generate = Callable[[list[list[int]], SamplingParams], list[RequestOutput]]


def beam_search(
    generate: Generate,
    prompts: Sequence[list[int]],
    params: BeamSearchParams,
    eos_token_ids: Collection[int],
) -> list[BeamSearchOutput]:
    """The best texts of each prompt; `text` is left to the caller.

    Args:
        generate: prompts and parameters → outputs, in their order.
        prompts: token ids, with room for `max_tokens` more.
    """
    width = params.beam_width
    one = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2 * width, detokenize=False)
    ends = () if params.ignore_eos else eos_token_ids
    live = [[BeamSearchSequence(list(prompt))] for prompt in prompts]
    ended: list[list[BeamSearchSequence]] = [[] for _ in prompts]
    for _ in range(params.max_tokens):
        beams = [beam for each in live for beam in each]
        if not beams:
            break
        outputs = iter(generate([beam.tokens for beam in beams], one))
        for index, each in enumerate(live):
            longer = [new for beam in each for new in _continued(beam, next(outputs), ends)]
            ended[index] += [new for new in longer if new.finish_reason]
            going = [new for new in longer if not new.finish_reason]
            live[index] = sorted(going, key=lambda beam: -beam.cum_logprob)[:width]
    return [
        _best(done + [_at_length(beam) for beam in each], params)
        for done, each in zip(ended, live, strict=True)
    ]


def _continued(
    beam: BeamSearchSequence, output: RequestOutput, ends: Collection[int]
) -> list[BeamSearchSequence]:
    """The beam with each of the likeliest next tokens."""
    completion = output.outputs[0]
    if completion.logprobs is None or completion.finish_reason == "error":
        raise QuireError(f"A step of the search failed: {completion.stop_reason}")
    return [
        BeamSearchSequence(
            [*beam.tokens, token],
            beam.cum_logprob + found.logprob,
            finish_reason="stop" if token in ends else None,
            stop_reason=token if token in ends else None,
        )
        for token, found in completion.logprobs[0].items()
    ]


def _at_length(beam: BeamSearchSequence) -> BeamSearchSequence:
    beam.finish_reason = "length"
    return beam


def _best(found: list[BeamSearchSequence], params: BeamSearchParams) -> BeamSearchOutput:
    def score(beam: BeamSearchSequence) -> float:
        length = len(beam.tokens) - (beam.finish_reason == "stop")  # its end is no part of it
        return beam.cum_logprob / float(length**params.length_penalty)

    return BeamSearchOutput(sorted(found, key=score, reverse=True)[: params.beam_width])
