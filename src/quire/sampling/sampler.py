"""From logits to tokens: a fast path for plain greedy rows, and a row at a time for the rest."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quire.core.errors import QuireError
from quire.core.messages import TokenLogprobs
from quire.sampling.filters import draw, filtered
from quire.sampling.logprobs import token_logprobs
from quire.sampling.masks import FloatRow
from quire.sampling.rng import uniform
from quire.sampling.state import SamplingState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """The sequences that sample in this step; `states[i]` belongs to row i of the logits."""

    states: Sequence[SamplingState]


@dataclass(slots=True)
class SampleResult:
    """One entry a row.

    Attributes:
        token_ids: the chosen tokens; of no meaning where the row has an error.
        logprobs: row → log-probabilities, where asked for.
        errors: row → why it could not be sampled.
    """

    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


class Sampler:
    """Chooses one token a row. Keeps nothing: the sequences' states are the caller's.

    A row's outcome depends on its own logits and state alone, to the bit: what needs arithmetic
    beyond comparisons is done on one row at a time. The order is vLLM's: raw log-probabilities;
    allowed_token_ids, bad_words, min_tokens, logit_bias; penalties; temperature; min_p, top_k,
    top_p; draw.
    """

    def sample(self, logits: Tensor, batch: SamplingBatch) -> SampleResult:
        """Choose the next token of every row.

        Args:
            logits: float32 [rows, vocab]; not changed. -inf rules a token out; a row that has
                NaN or +inf, or nothing but -inf, is an error of that row.
            batch: one state a row; not changed (the caller appends what it accepts).
        """
        # One pass finds the greedy tokens and the sick rows: a maximum passes NaN on, and the
        # first of equal values wins.
        peaks, argmax = logits.max(dim=-1)
        result = SampleResult(token_ids=argmax.tolist())
        if not bool(torch.isfinite(peaks).all()):
            for row in torch.nonzero(~torch.isfinite(peaks)).flatten().tolist():
                result.errors[row] = sick_logits(float(peaks[row]))
        if all(state.plain_greedy for state in batch.states):
            return result
        rows: list[FloatRow] = list(logits.cpu().numpy())
        for row, state in enumerate(batch.states):
            if state.plain_greedy or row in result.errors:
                continue
            try:
                self._sample_row(row, rows[row], state, result)
            except QuireError as error:
                result.errors[row] = str(error)
            except Exception as error:
                # A fault here is one request's, never its batch-mates' (nor the engine's).
                logger.exception("sampling failed")
                result.errors[row] = f"The sampler failed on this request: {error!r}."
        return result

    def _sample_row(
        self, row: int, logits: FloatRow, state: SamplingState, result: SampleResult
    ) -> None:
        params = state.params
        edited = logits
        if state.edits_logits:
            edited = logits.copy()
            state.edit(edited)
            result.token_ids[row] = int(edited.argmax())
            peak = float(edited[result.token_ids[row]])
            if peak == -float("inf"):
                result.errors[row] = (
                    "The request's allowed_token_ids, bad_words, min_tokens and logit_bias "
                    "leave no token to generate."
                )
                return
            if not peak < float("inf"):
                result.errors[row] = sick_logits(peak)
                return
        if not params.greedy:
            if params.seed is None:
                raise ValueError("no seed: the input processor gives every request one")
            u = uniform(params.seed, state.num_output_tokens)
            result.token_ids[row] = draw(*filtered(edited, params), u)
        if params.logprobs is not None:
            result.logprobs[row] = token_logprobs(logits, result.token_ids[row], params.logprobs)


def sick_logits(peak: float) -> str:
    """The error of a row whose largest logit, `peak`, is not finite."""
    if peak == -float("inf"):
        return "The model gave every token a logit of -inf for this request."
    return "The model's logits for this request hold NaN or infinity."
