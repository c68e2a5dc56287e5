"""The front end's state of one request: its n sequences and the prompt's log-probabilities."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from quire.core.messages import AddRequest
from quire.core.options import KVTransfer
from quire.core.outputs import RequestMetrics, RequestOutput
from quire.core.request import EMBEDDED, FinishReason
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.input.input_processor import ProcessedRequest
from quire.frontend.output.prompt_logprobs import PromptPositions
from quire.frontend.output.sequence import SequenceState
from quire.frontend.output.stream import OutputSink
from quire.frontend.output.timeline import Timeline
from quire.metrics.requests import Arrival
from quire.text.stop import StopStrings
from quire.text.tokenizers.tokenizer import Tokenizer


class RequestState:
    """A request with its n sequences.

    Attributes:
        num_running: sequences that have not ended, including the probe.
        lacks_prompt: outputs wait for the prompt's log-probabilities.
        arrival: for statistics.
        held: outputs have waited.
        sink: takes the outputs; None if the caller of `process` does.
        replica: number of the engine core that computes it.
        probe: computes the prompt's log-probabilities once more (see `new_probe`).
    """

    def __init__(
        self, request: ProcessedRequest, tokenizer: Tokenizer, sink: OutputSink | None
    ) -> None:
        self.request = request
        self.sink = sink
        self.kind = request.params.output_kind
        self.retried = False
        self.arrival: Arrival | None = None
        self.replica = 0
        self.metrics = RequestMetrics(arrival_time=request.arrival_time)
        self.timelines: list[Timeline] = []
        self._begin(tokenizer)

    def _begin(self, tokenizer: Tokenizer) -> None:
        request = self.request
        stops = StopStrings(request.params.stop_strings)
        self.sequences = [
            SequenceState(index, self.known_tokens, request.params, tokenizer, stops)
            for index in range(len(request.children))
        ]
        self.num_running = len(self.sequences)
        self.num_cached_tokens = 0
        self.pooled: bytes | None = None
        self.kv_transfer_params: dict[str, Any] | None = None
        self.prompt_logprobs: PromptPositions | None = None
        self.lacks_prompt = request.params.prompt_logprobs is not None
        self.held = False
        self.probe: AddRequest | None = None

    @property
    def known_tokens(self) -> list[int]:
        """Return the prompt's token ids; none if it is given as embeddings."""
        tokens = self.request.prompt_token_ids
        return [] if tokens[0] == EMBEDDED else tokens

    def may_move(self, *, ready: bool) -> bool:
        """Return whether another core may go on; only once.

        Args:
            ready: another core is ready. If not, a stream that has begun fails: its client would
                wait in silence while a model is loaded.
        """
        streams = self.kind is not RequestOutputKind.FINAL_ONLY
        return not self.retried and (ready or not streams or not self._has_output)

    @property
    def _has_output(self) -> bool:
        """Return whether a sequence has tokens, and they do not wait for the prompt's."""
        return not self.lacks_prompt and any(sequence.num_tokens for sequence in self.sequences)

    def move(self, tokenizer: Tokenizer) -> None:
        """Have another core go on behind the tokens of each sequence, or start if there are none.

        A start forgets everything but the time of arrival.
        """
        self.retried = True
        if not self._has_output:
            self.metrics.first_scheduled_time = self.metrics.first_token_time = 0.0
            self._begin(tokenizer)
            return
        children = self.request.children
        for i, sequence in enumerate(self.sequences):
            transfer = children[i].inputs.options.kv_transfer or KVTransfer()
            sampled = (*sequence.tokens,)
            children[i] = children[i].handed(replace(transfer, sampled=sampled))

    @property
    def running(self) -> list[AddRequest]:
        """Return the messages of the sequences that have not ended."""
        both = zip(self.request.children, self.sequences, strict=True)
        return [child for child, sequence in both if sequence.finish_reason is None]

    def new_probe(self) -> AddRequest | None:
        """Return a sequence that computes the prompt's log-probabilities instead of the first one.

        Only the first sequence reports them, so that the others can share its blocks. If it fails
        before its report, the others still need them.

        Returns:
            The sequence, without an id; None if the first may still report, or if all sequences
            have failed.
        """
        first, *others = self.sequences
        if self.probe is not None or first.finish_reason is None:
            return None
        if all(s.finish_reason == FinishReason.ERROR for s in others):
            self.lacks_prompt = False
            return None
        params = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=self.request.params.prompt_logprobs
        )
        self.num_running += 1
        self.held = True
        self.probe = replace(self.request.children[0], sampling_params=params)
        return self.probe

    def output(self, touched: list[SequenceState]) -> RequestOutput:
        """Return an answer with the sequences of this step (DELTA) or with all of them."""
        delta = self.kind is RequestOutputKind.DELTA and not self.held
        self.held = False
        prompt_logprobs = self.prompt_logprobs
        if self.kind is RequestOutputKind.DELTA:
            self.prompt_logprobs = None
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=[s.take(self.kind) for s in (touched if delta else self.sequences)],
            finished=self.num_running == 0,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=self.num_cached_tokens,
            metrics=self.metrics,
            pooled=self.pooled,
            kv_transfer_params=self.kv_transfer_params,
        )
