"""Beam search on top of a generating engine: each step asks for one token per beam.

Beams share their common blocks in the prefix cache, so a step computes little more than one token
per beam.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

from quire.core.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from quire.core.errors import QuireError
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams

Generate = Callable[[list[list[int]], SamplingParams], list[RequestOutput]]


class BeamSearch:
    """The search for one prompt. The caller computes the steps.

    Args:
        prompt: token ids, with room for `max_tokens` more.

    Attributes:
        live: the beams that the next step continues; empty at the end.
    """

    def __init__(
        self, prompt: list[int], params: BeamSearchParams, eos_token_ids: Collection[int]
    ) -> None:
        self.live = [BeamSearchSequence(prompt)]
        self._params = params
        self._ends = () if params.ignore_eos else eos_token_ids
        self._ended: list[BeamSearchSequence] = []
        self._num_steps = 0

    def advance(self, outputs: Sequence[RequestOutput]) -> None:
        """Take a step's outputs of `one_token`, one per live beam."""
        width = self._params.beam_width
        likeliest = [
            (beam.cum_logprob + found, token, beam)
            for beam, output in zip(self.live, outputs, strict=True)
            for token, found in _continuations(output)
        ]
        likeliest.sort(key=lambda entry: -entry[0])
        going = (entry for entry in likeliest if entry[1] not in self._ends)
        self.live = [_longer(*entry, None) for entry in islice(going, width)]
        self._ended += [_longer(*entry, "stop") for entry in likeliest if entry[1] in self._ends]
        self._ended = self._best(self._ended)
        self._num_steps += 1
        if self._params.early_stopping is True and len(self._ended) == width:
            self.live = []
        elif self._num_steps == self._params.max_tokens:
            for beam in self.live:
                beam.finish_reason = "length"
            self._ended, self.live = self._best(self._ended + self.live), []

    def best(self) -> list[BeamSearchSequence]:
        """Return the best texts, the best first."""
        return self._ended

    def _best(self, found: list[BeamSearchSequence]) -> list[BeamSearchSequence]:
        return sorted(found, key=self._score, reverse=True)[: self._params.beam_width]

    def _score(self, beam: BeamSearchSequence) -> float:
        length = len(beam.tokens) - (beam.finish_reason == "stop")  # without the end token
        return beam.cum_logprob / float(length**self._params.length_penalty)


def one_token(params: BeamSearchParams) -> SamplingParams:
    """Return the sampling parameters of each beam in each step."""
    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        logprobs=2 * params.beam_width,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def beam_search(
    generate: Generate,
    prompts: Sequence[list[int]],
    params: BeamSearchParams,
    eos_token_ids: Collection[int],
) -> list[BeamSearchOutput]:
    """Return the best texts of each prompt; the caller fills in `text`.

    Args:
        generate: prompts and parameters → outputs in the same order.
        prompts: token ids, with room for `max_tokens` more.
    """
    searches = [BeamSearch(list(prompt), params, eos_token_ids) for prompt in prompts]
    while beams := [beam.tokens for search in searches for beam in search.live]:
        advance_all(searches, generate(beams, one_token(params)))
    return [BeamSearchOutput(search.best()) for search in searches]


def advance_all(searches: Sequence[BeamSearch], outputs: Sequence[RequestOutput]) -> None:
    """Give a step's outputs to the searches, in the order of their beams."""
    rest = iter(outputs)
    for search in searches:
        if search.live:
            search.advance([*islice(rest, len(search.live))])


def _continuations(output: RequestOutput) -> Iterator[tuple[int, float]]:
    """Return the likeliest next tokens with their log-probabilities."""
    completion = output.outputs[0]
    if completion.logprobs is None or completion.finish_reason == "error":
        raise QuireError(f"A step of the search failed: {completion.stop_reason}")
    return ((token, found.logprob) for token, found in completion.logprobs[0].items())


def _longer(
    cum_logprob: float, token: int, beam: BeamSearchSequence, reason: str | None
) -> BeamSearchSequence:
    """Return the beam with one more token."""
    return BeamSearchSequence(
        [*beam.tokens, token],
        cum_logprob,
        finish_reason=reason,
        stop_reason=None if reason is None else token,
    )
