"""One sequence from tokens to text: detokenizes, finds stop strings, collects new output."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from quire.core.messages import CoreOutput, TokenLogprobs
from quire.core.outputs import CompletionOutput, PositionLogprobs
from quire.core.request import FinishReason
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.output.position import LazyPosition
from quire.text.detokenizer import IncrementalDetokenizer
from quire.text.stop import StopStringMatcher, StopStrings
from quire.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.frontend.output.repetition import RepetitionDetector


class SequenceState:
    """The output so far of one of a request's n completions. A step costs only its new tokens.

    Args:
        stops: the stop strings of `params`, shared by the request's sequences.
    """

    def __init__(
        self,
        index: int,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        stops: StopStrings | None = None,
    ) -> None:
        self.index = index
        self.tokens = array("i")
        """All so far. If its core is lost, another one goes on behind them."""
        self.last_token_time: float | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._params = params
        self._tokenizer = tokenizer
        self._detokenizer: IncrementalDetokenizer | None = None
        self._matcher: StopStringMatcher | None = None
        if params.detokenize:
            self._detokenizer = IncrementalDetokenizer(
                tokenizer, prompt_token_ids, params.skip_special_tokens
            )
        if params.stop_strings:
            self._matcher = StopStringMatcher(
                stops or params.stop_strings, params.include_stop_str_in_output
            )
        self._detector: RepetitionDetector | None = None
        if (wanted := params.repetition_detection) is not None and wanted.max_pattern_size:
            from quire.frontend.output.repetition import RepetitionDetector  # needs numpy

            self._detector = RepetitionDetector(wanted)
        self._cumulative_logprob = 0.0
        self._text_end = 0
        self._begin()

    def _begin(self) -> None:
        """Begin a new output."""
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] = []
        self._text_ends: list[int] = []

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def update(self, output: CoreOutput) -> None:
        """Add a step's tokens, up to one that completes a stop string or repeats too much."""
        # A stop token is a signal, not part of the text.
        hides_last = (
            output.finish_reason is FinishReason.STOP
            and not self._params.include_stop_str_in_output
        )
        last = len(output.new_token_ids) - 1
        for i, token in enumerate(output.new_token_ids):
            self.tokens.append(token)
            self._token_ids.append(token)
            if output.logprobs is not None:
                self._add_logprobs(output.logprobs[i])
            text = ""
            if self._detokenizer is not None and not (hides_last and i == last):
                text = self._detokenizer.append([token])
            self._text_end += len(text)
            self._text_ends.append(self._text_end)
            if text:
                self._add_text(text)
                if self.finish_reason is not None:
                    return
            if self._detector is not None and self._detector.repeats(token):
                ends = self.num_tokens >= self._params.min_tokens
                if ends and (output.finish_reason is None or i != last):
                    self._finish(FinishReason.REPETITION, "repetition_detected")
                    return
        if output.finish_reason is not None:
            self._finish(output.finish_reason, output.stop_reason)

    def fail(self, reason: str) -> None:
        self.finish_reason, self.stop_reason = FinishReason.ERROR.value, reason

    def abort(self) -> None:
        """End the sequence; release held-back text."""
        if self.finish_reason is None:
            self._finish(FinishReason.ABORT, None)

    def take(self, kind: RequestOutputKind) -> CompletionOutput:
        """Return the output since the last call (DELTA), or all of it."""
        self._text = ["".join(self._text)]
        [text], token_ids, logprobs = self._text, self._token_ids, self._logprobs
        ends = self._text_ends
        if kind is RequestOutputKind.DELTA:
            self._begin()
        else:
            token_ids, logprobs, ends = token_ids.copy(), logprobs.copy(), ends.copy()
        wants_logprobs = self._params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=self._cumulative_logprob if wants_logprobs else None,
            logprobs=logprobs if wants_logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            text_ends=ends,
        )

    def _add_text(self, text: str) -> None:
        # Text of the first min_tokens tokens cannot stop the output, not even as the beginning
        # of a stop string, because it is sent at once.
        if self._matcher is None or self.num_tokens <= self._params.min_tokens:
            self._text.append(text)
            return
        text, matched = self._matcher.push(text)
        self._text.append(text)
        if matched is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP.value, matched

    def _finish(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        if self._detokenizer is not None:
            self._add_text(self._detokenizer.flush())
        if self.finish_reason is not None:  # the last bytes completed a stop string
            return
        if self._matcher is not None:
            self._text.append(self._matcher.flush())
        self.finish_reason, self.stop_reason = reason.value, stop_reason

    def _add_logprobs(self, logprobs: TokenLogprobs) -> None:
        self._cumulative_logprob += logprobs.logprobs[0]
        self._logprobs.append(LazyPosition(logprobs, self._tokenizer))
