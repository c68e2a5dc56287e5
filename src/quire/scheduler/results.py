"""Applies a step's results: appends tokens, ends requests, makes outputs for the front end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, compress

import numpy as np

from quire.core.batch import Column, ModelOutput
from quire.core.messages import CoreOutput, StepOutputs, TokenLogprobs, pack_logprobs
from quire.core.options import LentBlocks
from quire.core.request import FinishReason, Request, RequestStatus
from quire.kv.manager import KVCacheManager
from quire.scheduler.running import RunningBatch
from quire.scheduler.steps import InFlight


class Results:
    """Turns results into outputs: plain rows all at once, detailed ones one by one.

    Args:
        finish: frees what a request holds; called after its `finish_reason` is set.
    """

    def __init__(
        self, kv: KVCacheManager, running: RunningBatch, finish: Callable[[Request], None]
    ) -> None:
        self._kv = kv
        self._running = running
        self._finish = finish

    def take_in(
        self, flight: InFlight, result: ModelOutput, came: Column, outputs: StepOutputs
    ) -> None:
        """Append the sampled tokens to the requests and to `outputs`.

        Args:
            came: see `ModelOutput.num_sampled`.
        """
        sampled, names = result.sampled_token_ids, flight.step.request_ids
        detailed = {*flight.detailed, *flight.departed}
        for column in (result.errors, result.logprobs, result.prompt_logprobs, result.pooled):
            if column:
                detailed.update(i for i, name in enumerate(names) if name in column)
        width = sampled.shape[1]
        tokens = sampled.ravel().tolist()
        stops = self._running.stop_ids
        if not stops.keys().isdisjoint(tokens):
            detailed.update(i // width for i, token in enumerate(tokens) if token in stops)
        plain, arrays = came > 0, flight.token_ids
        if detailed:
            plain[[*detailed]] = False
        if np.count_nonzero(plain) < len(plain):
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
        for entry in sorted(detailed):
            request = flight.requests[entry]
            if not request.finished:
                new = [token for token in sampled[entry].tolist() if token >= 0]
                self._store_prompt_logprobs(request, flight, entry, result)
                self._update_detailed(request, new, result, outputs)

    def _store_prompt_logprobs(
        self, request: Request, flight: InFlight, entry: int, result: ModelOutput
    ) -> None:
        """Store a chunk's prompt log-probabilities at its position.

        After a preemption the prompt is computed again from its start.
        """
        chunk = result.prompt_logprobs.get(request.request_id)
        if chunk and request.num_output_tokens == 0:
            start = int(flight.step.num_computed_tokens[entry])
            request.prompt_logprobs[start:] = map(pack_logprobs, chunk)

    def _update_detailed(
        self, request: Request, tokens: list[int], result: ModelOutput, outputs: StepOutputs
    ) -> None:
        """Apply one row that needs a full `CoreOutput`."""
        name = request.request_id
        if name in result.errors:
            output = self.fail(request, result.errors[name])
        elif name in result.pooled:
            output = self._end_pooled(request, result.pooled[name])
        elif tokens:
            output = self._append(request, tokens, result.logprobs.get(name))
        else:
            return
        outputs.outputs.append(output)

    def _append(
        self, request: Request, tokens: list[int], logprobs: list[TokenLogprobs] | None
    ) -> CoreOutput:
        """Append sampled tokens, up to the one that ends the request."""
        prompt_logprobs = None
        if request.sampling_params.prompt_logprobs is not None and not request.num_output_tokens:
            # Before the loop: a request that ends with its first token still reports its prompt.
            prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, []
        kept = 0
        for token in tokens:
            request.token_ids.append(token)
            kept += 1
            if check_stop(request):
                if request.status is RequestStatus.RUNNING:
                    self._kv.enter(request, request.num_tokens - 1)
                self._finish(request)
                break
        blocks, lent = self._handed_over(request)
        output = _output(request, tokens[:kept])
        output.logprobs = logprobs[:kept] if logprobs else None
        output.prompt_logprobs, output.kv_blocks, output.lent = prompt_logprobs, blocks, lent
        if request.finished:
            output.num_draft_tokens = request.num_draft_tokens
            output.num_accepted_tokens = request.num_accepted_tokens
        return output

    def _end_pooled(self, request: Request, pooled: bytes) -> CoreOutput:
        """End a pooling model's request, whose prompt is computed."""
        request.finish_reason = FinishReason.STOP
        self._finish(request)
        output = _output(request, [])
        output.pooled = pooled
        return output

    def fail(self, request: Request, reason: str) -> CoreOutput:
        """End a request, and remove its blocks from the cache: they may hold wrong values."""
        request.finish_reason = FinishReason.ERROR
        request.stop_reason = reason
        self._kv.discard(request)
        self._finish(request)
        return CoreOutput(request.request_id, [], FinishReason.ERROR, reason)

    def _handed_over(self, request: Request) -> tuple[list[bytes] | None, LentBlocks | None]:
        """Return the whole blocks of a finished request's prompt, if another engine is to get them;
        lend them if it reads this one's memory."""
        transfer = request.options.kv_transfer
        if not request.finished or transfer is None or not transfer.hands_over:
            return None, None
        hashes = request.block_hashes[: request.num_prompt_tokens // self._kv.block_size]
        if self._kv.loans is None:
            return hashes, None
        return None, self._kv.loans.lend(hashes)


def _output(request: Request, tokens: list[int]) -> CoreOutput:
    return CoreOutput(
        request_id=request.request_id,
        new_token_ids=tokens,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        num_cached_tokens=request.num_cached_tokens,
        scheduled_time=request.first_scheduled_time,
        num_preemptions=request.num_preemptions,
    )


def check_stop(request: Request) -> bool:
    """Return whether the last token ends `request`; if so, set its reasons.

    Stop strings need text; the front end finds them.
    """
    params = request.sampling_params
    token = request.token_ids[-1]
    if token in request.stop_ids and request.num_output_tokens >= params.min_tokens:
        request.finish_reason = FinishReason.STOP
        if params.ignore_eos or token not in request.inputs.eos_token_ids:
            request.stop_reason = token
        return True
    if request.num_tokens < request.max_total_tokens:
        return False
    request.finish_reason = FinishReason.LENGTH
    return True
