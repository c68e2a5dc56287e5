"""What a step computed, taken in: tokens appended, ends found, and the front end's outputs made."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, compress

from quire.core.batch import ModelOutput
from quire.core.messages import CoreOutput, StepOutputs, TokenLogprobs
from quire.core.request import FinishReason, Request, RequestStatus
from quire.kv.manager import KVCacheManager
from quire.scheduler.running import RunningBatch
from quire.scheduler.steps import InFlight
from quire.scheduler.stop import check_stop


class Results:
    """Turns results into outputs: plain rows all at once, the others one by one.

    Args:
        finish: gives up what a request holds, once it is said why it ended.
    """

    def __init__(
        self, kv: KVCacheManager, running: RunningBatch, finish: Callable[[Request], None]
    ) -> None:
        self._kv = kv
        self._running = running
        self._finish = finish
        self._prompt_logprobs: dict[str, list[TokenLogprobs]] = {}

    def forget(self, request_id: str) -> None:
        """Drop the log-probabilities of a prompt whose request has ended."""
        self._prompt_logprobs.pop(request_id, None)

    def take_in(self, flight: InFlight, result: ModelOutput, outputs: StepOutputs) -> None:
        """Append what was sampled, and enter what there is to say into `outputs`."""
        sampled, names = result.sampled_token_ids, flight.step.request_ids
        told = {*flight.told, *flight.departed}
        for column in (result.errors, result.logprobs, result.prompt_logprobs, result.pooled):
            if column:
                told.update(i for i, name in enumerate(names) if name in column)
        width = sampled.shape[1]
        tokens = sampled.ravel().tolist()
        stops = self._running.stop_ids
        if not stops.keys().isdisjoint(tokens):
            told.update(i // width for i, token in enumerate(tokens) if token in stops)
        plain = sampled[:, 0] >= 0
        plain[list(told)] = False
        arrays = flight.token_ids
        if not plain.all():
            keep = plain.tolist()
            names, arrays = list(compress(names, keep)), list(compress(arrays, keep))
            tokens = sampled[plain].ravel().tolist()
        if width == 1:
            for token_ids, token in zip(arrays, tokens, strict=True):
                token_ids.append(token)
        else:
            rows = [[token for token in row if token >= 0] for row in sampled[plain].tolist()]
            for token_ids, row in zip(arrays, rows, strict=True):
                token_ids.extend(row)
            tokens = [*chain.from_iterable(rows)]
            outputs.num_new_tokens = [*map(len, rows)]
        outputs.request_ids, outputs.new_token_ids = names, tokens
        for entry in sorted(told):
            request = flight.requests[entry]
            if not request.finished:
                new = [token for token in sampled[entry].tolist() if token >= 0]
                self._keep_prompt_logprobs(request, flight, entry, result)
                self._tell(request, new, result, outputs)

    def _keep_prompt_logprobs(
        self, request: Request, flight: InFlight, entry: int, result: ModelOutput
    ) -> None:
        """Keep what a chunk tells of its prompt, in its place: after a preemption, of which the
        step may not have known, the prompt is computed from the start."""
        chunk = result.prompt_logprobs.get(request.request_id)
        if chunk and request.num_output_tokens == 0:
            known = self._prompt_logprobs.setdefault(request.request_id, [])
            known[int(flight.step.num_computed_tokens[entry]) :] = chunk

    def _tell(
        self, request: Request, tokens: list[int], result: ModelOutput, outputs: StepOutputs
    ) -> None:
        """Take in one row of which there may be more to say than its tokens."""
        name = request.request_id
        if name in result.errors:
            outputs.outputs.append(self.fail(request, result.errors[name]))
            return
        if name in result.pooled:
            outputs.outputs.append(self._give_pooled(request, result.pooled[name]))
            return
        if tokens:
            outputs.outputs.append(self._append(request, tokens, result.logprobs.get(name)))

    def _append(
        self, request: Request, tokens: list[int], logprobs: list[TokenLogprobs] | None
    ) -> CoreOutput:
        """Append sampled tokens up to the one that ends the request, if one does."""
        prompt_logprobs = None
        if request.sampling_params.prompt_logprobs is not None and not request.num_output_tokens:
            # Taken first: a request that ends with its first token still tells of its prompt.
            prompt_logprobs = self._prompt_logprobs.pop(request.request_id, [])
        kept = 0
        for token in tokens:
            request.token_ids.append(token)
            kept += 1
            if check_stop(request):
                if request.status is RequestStatus.RUNNING:
                    self._kv.enter(request, request.num_tokens - 1)
                self._finish(request)
                break
        return CoreOutput(
            request_id=request.request_id,
            new_token_ids=tokens[:kept],
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            num_cached_tokens=request.num_cached_tokens,
            scheduled_time=request.first_scheduled_time or 0.0,
            num_preemptions=request.num_preemptions,
            logprobs=logprobs[:kept] if logprobs else None,
            prompt_logprobs=prompt_logprobs,
        )

    def _give_pooled(self, request: Request, pooled: bytes) -> CoreOutput:
        """End a request of a pooling model, all of which has been computed."""
        request.finish_reason = FinishReason.STOP
        self._finish(request)
        return CoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=request.finish_reason,
            num_cached_tokens=request.num_cached_tokens,
            scheduled_time=request.first_scheduled_time or 0.0,
            num_preemptions=request.num_preemptions,
            pooled=pooled,
        )

    def fail(self, request: Request, reason: str) -> CoreOutput:
        """End a request whose blocks may hold wrong values: nobody may find them again."""
        request.finish_reason = FinishReason.ERROR
        request.stop_reason = reason
        self._kv.discard(request)
        self._finish(request)
        return CoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=FinishReason.ERROR,
            stop_reason=reason,
        )
