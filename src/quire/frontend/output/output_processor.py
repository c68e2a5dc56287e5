"""Turns the core's tokens into outputs: text, logprobs, one answer for n sequences."""

from __future__ import annotations

import itertools
import logging
import time
from dataclasses import field

from quire.core.errors import InvalidRequestError
from quire.core.messages import AbortRequests, AddRequest, CoreOutput, StepOutputs
from quire.core.outputs import RequestOutput
from quire.core.request import FinishReason
from quire.core.sampling_params import RequestOutputKind
from quire.frontend.input.input_processor import ProcessedRequest
from quire.frontend.output.prompt_logprobs import PromptPositions
from quire.frontend.output.request_state import RequestState
from quire.frontend.output.sequence import SequenceState
from quire.frontend.output.stream import OutputSink
from quire.frontend.output.timeline import Timeline, Timelines
from quire.frontend.output.tracing import EndedRequest, RequestTracer
from quire.metrics.stats import EngineStats, LoraUse
from quire.system.records import dataclass
from quire.system.tally import Tally
from quire.text.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ProcessedStep:
    """The results of one step.

    Attributes:
        outputs: at most one per request.
        aborts: sequences that the core must drop, because a stop string ended them.
        probes: sequences that the core must add (see `RequestState.new_probe`).
    """

    outputs: list[RequestOutput] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    probes: list[AddRequest] = field(default_factory=list)

    def replies(self) -> list[AbortRequests | AddRequest]:
        """Return `aborts` and `probes` as messages to the core."""
        return [*([AbortRequests(self.aborts)] if self.aborts else []), *self.probes]


class OutputProcessor:
    """Holds each request from `add` until its last output.

    The core's sequence ids are numbers that are never reused, so late outputs of an aborted request
    cannot reach another one. Callers may reuse the ids of ended requests.

    Args:
        tracer: gets each request that has ended.

    Attributes:
        timelines: events of the running requests and of those that ended last.
        by_client: the sequences of each client that have not ended.
    """

    def __init__(
        self, tokenizer: Tokenizer, stats: EngineStats, tracer: RequestTracer | None = None
    ) -> None:
        self.timelines = Timelines()
        self._tokenizer = tokenizer
        self._stats = stats
        self._tracer = tracer
        self._requests: dict[str, RequestState] = {}
        stats.in_flight = self._requests.__len__
        self._sequences: dict[str, tuple[RequestState, SequenceState]] = {}
        self.by_client = Tally[str]()
        self._probes: dict[str, RequestState] = {}
        self._ids = itertools.count()

    @property
    def num_unfinished(self) -> int:
        return len(self._requests)

    @property
    def num_sequences(self) -> int:
        """Return the number of sequences that have not ended."""
        return len(self._sequences)

    def adapters(self) -> LoraUse:
        """Return the adapters of the running and of the waiting sequences."""
        use = LoraUse(set(), set())
        for state in self._requests.values():
            for child, timeline in zip(state.request.children, state.timelines, strict=True):
                if (adapter := child.inputs.options.lora_request) and timeline.state != "finished":
                    names = use.running if timeline.state == "running" else use.waiting
                    names.add(adapter.lora_name)
        return use

    def request_ids(self) -> list[str]:
        return list(self._requests)

    def states(self, replica: int | None = None) -> list[RequestState]:
        """Return all requests, or those of a replica, in the order of arrival."""
        states = self._requests.values()
        return [state for state in states if replica is None or state.replica == replica]

    def state(self, request_id: str) -> RequestState | None:
        """Return a request's state; None if the request is unknown."""
        return self._requests.get(request_id)

    def add(self, request: ProcessedRequest, sink: OutputSink | None = None) -> RequestState:
        """Expect outputs for a request, and give each of its `children` the core's id.

        Raises:
            InvalidRequestError: a running request has this id.
        """
        if request.request_id in self._requests:
            raise InvalidRequestError(
                f"request id {request.request_id!r} is in use.", param="request_id"
            )
        state = RequestState(request, self._tokenizer, sink)
        images = request.children[0].inputs.images
        state.arrival = self._stats.on_arrival(
            state.known_tokens, request.params, request.options, [i.digest for i in images]
        )
        self._requests[request.request_id] = state
        self.by_client.change(request.options.client, len(request.children))
        for child, sequence in zip(request.children, state.sequences, strict=True):
            name, child.request_id = child.request_id, str(next(self._ids))
            self._sequences[child.request_id] = (state, sequence)
            timeline = Timeline(child.request_id, name, request, sequence, state.metrics)
            state.timelines.append(self.timelines.begin(timeline))
        return state

    def sink(self, request_id: str) -> OutputSink | None:
        """Return a request's sink; None if the request is unknown or has none."""
        state = self._requests.get(request_id)
        return None if state is None else state.sink

    def process(self, step: StepOutputs, replica: int = 0) -> ProcessedStep:
        """Process a replica's step; put at most one `RequestOutput` per request into its sink."""
        start = time.thread_time()
        result, sinks = self._process(step, self._stats.of(replica))
        processed = time.thread_time()
        for sink, output in zip(sinks, result.outputs, strict=True):
            if sink is not None:
                sink.put(output)
        front = self._stats.front
        front.detokenize += processed - start
        front.send += time.thread_time() - processed
        return result

    def _process(
        self, step: StepOutputs, stats: EngineStats
    ) -> tuple[ProcessedStep, list[OutputSink | None]]:
        self._stats.recent.begin_step(step.timestamp)
        for event in step.events:
            self.timelines.note(event)
        result, sinks = ProcessedStep(), list[OutputSink | None]()
        touched: dict[str, list[SequenceState]] = {}
        for output in step.each():
            entry = self._sequences.get(output.request_id)
            if entry is None:  # aborted while the step ran, or a probe
                if state := self._probes.get(output.request_id):
                    self._end_probe(state, output, step.timestamp, result)
                    touched.setdefault(state.request.request_id, [])
                continue
            state, sequence = entry
            self._update(state, sequence, output, step.timestamp)
            if sequence.finish_reason is not None:
                if output.finish_reason is None:
                    result.aborts.append(output.request_id)
                self._end_sequence(output.request_id, state, sequence, step.timestamp)
            touched.setdefault(state.request.request_id, []).append(sequence)
        for request_id, sequences in touched.items():
            state = self._requests[request_id]
            if state.lacks_prompt:
                self._begin_probe(state, result)
            if state.num_running == 0:
                self._end_request(state, step.timestamp)
            if state.lacks_prompt:
                state.held = True
            elif state.num_running == 0 or state.kind is not RequestOutputKind.FINAL_ONLY:
                result.outputs.append(state.output(sequences))
                sinks.append(state.sink)
        stats.on_step(step.stats, step.timestamp, step.times)
        return result, sinks

    def retry(self, request_id: str, now: float, *, ready: bool) -> bool:
        """Prepare a request for another core, unless it must fail (see `RequestState.may_move`)."""
        state = self._requests[request_id]
        if not state.may_move(ready=ready):
            return False
        self._drop_probe(state)
        state.move(self._tokenizer)
        for child in state.running:
            index = state.request.children.index(child)
            sequence, before = state.sequences[index], state.timelines[index]
            self._sequences[child.request_id] = (state, sequence)
            again = self.timelines.retry(child.request_id, before, state.request, sequence, now)
            state.timelines[index] = again
        return True

    def abort(
        self, request_id: str, now: float, error: str | None = None
    ) -> tuple[list[str], RequestOutput | None]:
        """End a request; return the core's ids to abort, and its last output (None if unknown).

        Args:
            error: why the request failed; None if the client aborted it.
        """
        state = self._requests.get(request_id)
        if state is None:
            return [], None
        ids = self._drop_probe(state)
        ended: list[SequenceState] = []
        for child, sequence in zip(state.request.children, state.sequences, strict=True):
            if sequence.finish_reason is None:
                if error is None:
                    sequence.abort()
                else:
                    sequence.fail(error)
                self._end_sequence(child.request_id, state, sequence, now)
                ids.append(child.request_id)
                ended.append(sequence)
        self._end_request(state, now)
        return ids, state.output(ended)

    def _update(
        self, state: RequestState, sequence: SequenceState, output: CoreOutput, now: float
    ) -> None:
        before = sequence.num_tokens
        try:
            self._take_prompt_logprobs(state, output)
            sequence.update(output)
        except Exception as error:  # a failing request must not end the others
            logger.exception("request %s: its output failed", state.request.request_id)
            sequence.fail(f"{type(error).__name__} while the output was converted to text")
        metrics = state.metrics
        metrics.num_preemptions = max(metrics.num_preemptions, output.num_preemptions)
        metrics.num_draft_tokens += output.num_draft_tokens
        metrics.num_accepted_tokens += output.num_accepted_tokens
        if not metrics.first_scheduled_time:
            metrics.first_scheduled_time = output.scheduled_time
        if output.pooled is not None:
            state.pooled = output.pooled
        if output.kv_transfer_params is not None:
            state.kv_transfer_params = output.kv_transfer_params
        count = sequence.num_tokens - before
        if not count and output.pooled is None:
            return
        if not metrics.first_token_time:
            metrics.first_token_time = now
            state.num_cached_tokens = output.num_cached_tokens
            prompt = len(state.request.prompt_token_ids), output.num_cached_tokens
            repeated = state.arrival.record.shared_tokens if state.arrival else 0
            self._stats.of(state.replica).on_first_token(metrics, *prompt, repeated)
        if not count:  # a pooled vector comes at once
            metrics.last_token_time = now
            return
        last = sequence.last_token_time
        self._stats.of(state.replica).on_tokens(count, None if last is None else now - last)
        metrics.last_token_time = sequence.last_token_time = now

    def _take_prompt_logprobs(self, state: RequestState, output: CoreOutput) -> None:
        if output.prompt_logprobs is not None:
            state.prompt_logprobs = PromptPositions(output.prompt_logprobs, self._tokenizer)
            state.lacks_prompt = False

    def _begin_probe(self, state: RequestState, result: ProcessedStep) -> None:
        """Send a probe if the sequence that reports the prompt's log-probabilities has failed."""
        if probe := state.new_probe():
            probe.request_id = str(next(self._ids))
            self._probes[probe.request_id] = state
            result.probes.append(probe)

    def _end_probe(
        self, state: RequestState, output: CoreOutput, now: float, result: ProcessedStep
    ) -> None:
        """Take the prompt's log-probabilities; fail the request if the probe failed, too."""
        self._drop_probe(state)
        try:
            self._take_prompt_logprobs(state, output)
        except Exception:
            logger.exception("request %s: its output failed", state.request.request_id)
        if not state.lacks_prompt:
            return
        state.lacks_prompt = False
        for child, sequence in zip(state.request.children, state.sequences, strict=True):
            if sequence.finish_reason == FinishReason.ERROR:
                continue
            runs = sequence.finish_reason is None
            sequence.fail(f"no prompt_logprobs: {output.stop_reason}")
            if runs:
                self._end_sequence(child.request_id, state, sequence, now)
                result.aborts.append(child.request_id)

    def _drop_probe(self, state: RequestState) -> list[str]:
        """Remove the probe, and return its id for the core, if there is one."""
        if state.probe is None or self._probes.pop(state.probe.request_id, None) is None:
            return []
        state.num_running -= 1
        return [state.probe.request_id]

    def _end_sequence(
        self, child_id: str, state: RequestState, sequence: SequenceState, now: float
    ) -> None:
        del self._sequences[child_id]
        self.by_client.change(state.request.options.client, -1)
        self.timelines.end(child_id, now)
        state.num_running -= 1
        decode = (sequence.last_token_time or 0.0) - state.metrics.first_token_time
        assert sequence.finish_reason is not None
        computed = 0
        if state.metrics.first_token_time:  # for the first of its sequences
            prompt = len(state.request.prompt_token_ids) - state.num_cached_tokens
            computed = prompt // len(state.sequences)
        self._stats.of(state.replica).on_sequence_finished(
            sequence.finish_reason, sequence.num_tokens, decode, computed
        )

    def _end_request(self, state: RequestState, now: float) -> None:
        request = state.request
        del self._requests[request.request_id]
        state.metrics.finished_time = now
        stats = self._stats.of(state.replica)
        longest = max(s.num_tokens for s in state.sequences)
        stats.request_max_num_generation_tokens.observe(longest)
        stats.on_request_finished(
            state.metrics,
            len(request.prompt_token_ids),
            sum(s.num_tokens for s in state.sequences),
            len(state.sequences),
            request.params.max_tokens,
            state.arrival,
        )
        if self._tracer is not None:
            self._tracer.put(
                EndedRequest(
                    request.request_id,
                    request.params,
                    len(request.prompt_token_ids),
                    state.num_cached_tokens,
                    state.metrics,
                    state.timelines,
                    request.options.trace_headers or {},
                )
            )
