"""Turns logits into tokens: a fast path for plain greedy rows, and one op for the rest."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from quire.core.batch import Column
from quire.core.config import LogprobsMode
from quire.core.errors import QuireError, reason_of
from quire.core.messages import TokenLogprobs
from quire.ops.array import Array
from quire.ops.filters import FloatRow
from quire.ops.last_tokens import Chosen, LastTokens
from quire.ops.reported import ReportedRow
from quire.ops.sample_row import SampleRow, TokenIds
from quire.sampling.state import SamplingState
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.ops.interface import Ops

logger = logging.getLogger(__name__)


class SamplingBatch:
    """The sequences that sample in a step. Later steps with the same sequences may reuse it.

    Attributes:
        states: `states[i]` belongs to row i of the logits; a sequence may have several rows.
        ahead: how many drafts of its sequence come before row i.
        others: rows that are not plain greedy; some may have become so since.
        drawn: no row is greedy.
    """

    def __init__(self, states: Sequence[SamplingState], ahead: Sequence[int] = ()) -> None:
        self.states = states
        self.ahead = ahead or [0] * len(states)
        plain = {state: state.plain_greedy for state in dict.fromkeys(states)}
        self.others = [row for row, state in enumerate(states) if not plain[state]]
        self.drawn = not any(state.params.greedy for state in plain)
        self._edited = self.others

    @property
    def unedited(self) -> bool:
        """Return whether all tokens are chosen from the logits as they are, without logprobs.

        Once True, it stays True.
        """
        self._edited = [row for row in self._edited if not self.states[row].plain]
        return not self._edited


@dataclass(slots=True)
class SampleResult:
    """One entry per row.

    Attributes:
        token_ids: the chosen tokens, int64 [rows]; no meaning for a row with an error.
        logprobs: row → log-probabilities, if requested.
        errors: row → why it could not be sampled.
    """

    token_ids: Column
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


class Sampler:
    """Chooses one token per row. It has no state; the caller owns the sequences' states.

    A row's result depends, to the bit, on its own logits and state only. The order is vLLM's: raw
    log-probabilities; allowed_token_ids, bad_words, min_tokens, logit_bias; penalties; temperature;
    min_p, top_k, top_p; processed log-probabilities; draw.

    Args:
        mode: what log-probabilities report.
    """

    def __init__(self, ops: Ops, mode: LogprobsMode = "raw_logprobs") -> None:
        self._ops = ops
        self._mode = mode

    def sample(self, logits: Array, batch: SamplingBatch) -> SampleResult:
        """Choose the next token of each row.

        Args:
            logits: float32 [rows, vocab]; not changed. -inf rules a token out. A row with NaN or
                +inf, or only with -inf, gets an error.
            batch: one state per row; not changed (the caller stores the tokens).
        """
        if batch.drawn:
            result = SampleResult(np.empty(len(batch.states), dtype=np.int64))
        else:  # one pass finds the greedy tokens and the rows with bad logits
            result = result_of(*self._ops.argmax(logits))
        if batch.others:
            self._sample_others(logits, batch, result)
        return result

    def choose(
        self, last: LastTokens, logits: Array, slots: Array, batch: SamplingBatch
    ) -> Chosen | None:
        """Queue what `sample` does, or return None if the host must take part in it.

        Args:
            slots: of the sequences, on the device.
        """
        rows = [(row, batch.states[row]) for row in batch.others]
        rows = [(row, state) for row, state in rows if not state.params.greedy]
        if not batch.unedited or (rows and not last.draws):
            return None
        drawn = [SampleRow(row, state.params, state.draw_key(0)) for row, state in rows]
        return last.choose(logits, slots, drawn)

    def _sample_others(self, logits: Array, batch: SamplingBatch, result: SampleResult) -> None:
        rows: list[SampleRow] = []
        for row in batch.others:
            if row in result.errors:
                continue
            state, ahead = batch.states[row], batch.ahead[row]
            try:
                edits = state.edits(logits.shape[1], ahead)
                if edits is not None or not state.params.greedy:
                    rows.append(SampleRow(row, state.params, state.draw_key(ahead), edits))
            except QuireError as error:
                result.errors[row] = reason_of(error)
            except Exception as error:
                result.errors[row] = _fault(error)
        self._choose(logits, rows, result)
        self._add_logprobs(logits, batch, rows, result)

    def _choose(self, logits: Array, rows: list[SampleRow], result: SampleResult) -> None:
        """Set the tokens of rows that are not plain greedy."""
        if not rows:
            return
        try:
            tokens = self._ops.sample(logits, rows)
        except Exception as error:
            if len(rows) > 1:  # find the row that fails
                for row in rows:
                    self._choose(logits, [row], result)
                return
            result.errors[rows[0].row] = _fault(error)
            return
        for row, token in zip(rows, tokens, strict=True):
            result.token_ids[row.row] = token
            if token < 0:
                result.errors[row.row] = _no_token(self._ops.numpy(logits[row.row]), row)

    def _add_logprobs(
        self, logits: Array, batch: SamplingBatch, rows: list[SampleRow], result: SampleResult
    ) -> None:
        counts: dict[int, int] = {}
        for row in batch.others:
            count = batch.states[row].params.logprobs
            if count is not None and row not in result.errors:
                counts[row] = count
        if not counts:
            return
        tokens = result.token_ids[list(counts)].tolist()
        sampled = {each.row: each for each in rows}
        wanted = [
            ReportedRow(
                row, token, count, list(batch.states[row].params.logprob_token_ids or ()),
                sampled.get(row),
            )
            for (row, count), token in zip(counts.items(), tokens, strict=True)
        ]  # fmt: skip
        entries = self._ops.report(logits, wanted, self._mode)
        result.logprobs = dict(zip(counts, entries, strict=True))


def result_of(tokens: TokenIds, peaks: FloatRow) -> SampleResult:
    """Return the result of tokens whose rows' largest logits are `peaks`."""
    result = SampleResult(tokens)
    for row, peak in enumerate(peaks.tolist()):
        if not math.isfinite(peak):
            result.errors[row] = sick_logits(peak)
    return result


def _fault(error: Exception) -> str:
    logger.error("sampling failed", exc_info=error)
    return f"The sampler failed on this request: {error!r}."


def _no_token(logits: FloatRow, row: SampleRow) -> str:
    """Return the error of a row without a token: its logits are sick, or its edits leave none."""
    peak = float(logits.max())
    if math.isfinite(peak) and row.edits is not None:
        edited = logits.copy()
        row.edits.apply(edited)
        peak = float(edited.max())
        if peak == -math.inf:
            return reason_of(row.params.contradiction())
    return sick_logits(peak)


def sick_logits(peak: float) -> str:
    """Return the error of a row whose largest logit, `peak`, is not finite."""
    if peak == -float("inf"):
        return "The model's logits for this request are all -inf."
    return "The model's logits for this request hold NaN or infinity."
