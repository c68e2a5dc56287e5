"""The model runner: one step of the engine, from the scheduler's words to sampled tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import ModelOutput, SchedulerOutput, StepTimes, token_columns
from quire.core.config import ModelConfig, SchedulerConfig
from quire.core.stopwatch import Stopwatch
from quire.runner.inputs import StepInputBuilder, StepInputs
from quire.runner.kv_tensors import allocate_kv_caches
from quire.runner.model import EagerModel, Model, PlannedModel
from quire.runner.prompt_logprobs import prompt_logprobs
from quire.runner.state import SequenceStates
from quire.sampling.sampler import Sampler, SamplingBatch

if TYPE_CHECKING:
    from quire.models.decoder import Decoder
    from quire.ops.table import OpTable


class ModelRunner:
    """Computes steps: state in `states`, attention's memory in `kv_caches`, no other memory.

    Args:
        model: the decoder's shape.
        scheduler: limits of a step and of a sequence.
        block_size: tokens in a KV block.
        num_blocks: blocks in the KV cache.
        kv_dtype: of keys and values: the model's dtype, or int8.
        decoder: the model with its weights.
        ops: the kernels that it runs on.
        enforce_eager: calls them one by one; else native ones are replayed from a plan.
    """

    def __init__(
        self,
        model: ModelConfig,
        scheduler: SchedulerConfig,
        *,
        block_size: int,
        num_blocks: int,
        kv_dtype: torch.dtype,
        decoder: Decoder,
        ops: OpTable,
        enforce_eager: bool = False,
    ) -> None:
        self.states = SequenceStates(scheduler.max_num_seqs, scheduler.max_model_len, block_size)
        self.kv_caches = allocate_kv_caches(model, num_blocks, block_size, kv_dtype)
        self._inputs = StepInputBuilder(self.states, scheduler.max_num_batched_tokens, block_size)
        self._ops = ops
        self.model: Model = (
            EagerModel(decoder, ops, self.kv_caches)
            if enforce_eager or ops.new_plan is None
            else PlannedModel(decoder, ops, self.kv_caches, block_size, scheduler)
        )
        self._sampler = Sampler(ops)

    @torch.inference_mode()
    def execute(self, step: SchedulerOutput) -> ModelOutput:
        """Compute one step.

        If anything raises, the exception passes through and the step leaves no trace but its
        `removed`: sequences it would have added are gone, blocks it brought are taken back,
        nothing is sampled. The caller may ask for the same step again, for a part of it, or
        drop its sequences; `removed` may name sequences that are not here. (The KV slots of
        the step's tokens may hold anything; they are written again before they are read.)
        """
        self._watch = watch = Stopwatch()
        self.states.remove(step.removed)
        if step.empty:
            return ModelOutput(token_columns([]))
        slots = self.states.begin(step)
        try:
            inputs = self._inputs.build(step, slots)
            watch.lap("prepare")
            output = ModelOutput(np.full((len(slots), 1), -1, dtype=np.int64))
            if any(self._num_prompt_logprobs(slot) is not None for slot in slots.tolist()):
                hidden = self.model.forward(inputs, torch.arange(len(inputs.input_ids)))
                self._prompt_logprobs(step, slots, hidden, output)
                hidden = hidden[inputs.sampling_rows]
            else:
                hidden = self.model.forward(inputs, inputs.sampling_rows)
            self._sample(step, slots, inputs, hidden, output)
        except BaseException:
            self.states.undo(step)
            raise
        for entry in np.flatnonzero(inputs.samples).tolist():
            # A step already scheduled behind this one expects a token, even of a row that failed.
            token = max(int(output.sampled_token_ids[entry, 0]), 0)
            self.states.append(int(slots[entry]), [token])
        watch.lap("sample")
        output.times = StepTimes(**watch.seconds)
        return output

    def _sample(
        self,
        step: SchedulerOutput,
        slots: NDArray[np.int64],
        inputs: StepInputs,
        hidden: Tensor,
        output: ModelOutput,
    ) -> None:
        """A token for every sequence whose last token was computed; `hidden` are these tokens'."""
        entries = np.flatnonzero(inputs.samples).tolist()
        if not entries:
            self._watch.lap("model")
            return
        states = [self.states.sampling[slot] for slot in slots[entries].tolist()]
        logits = self.model.logits(hidden)
        self._watch.lap("model")
        result = self._sampler.sample(logits, SamplingBatch(states))
        for row, entry in enumerate(entries):
            request_id = step.request_ids[entry]
            if row in result.errors:
                output.errors[request_id] = result.errors[row]
            elif request_id not in output.errors:
                output.sampled_token_ids[entry, 0] = result.token_ids[row]
                if row in result.logprobs:
                    output.logprobs[request_id] = [result.logprobs[row]]

    def _num_prompt_logprobs(self, slot: int) -> int | None:
        """How many a prompt token, where they are wanted.

        A sequence resumed with output has given them before its preemption.
        """
        state = self.states.sampling[slot]
        return None if state.num_output_tokens else state.params.prompt_logprobs

    def _prompt_logprobs(
        self,
        step: SchedulerOutput,
        slots: NDArray[np.int64],
        hidden: Tensor,
        output: ModelOutput,
    ) -> None:
        """Log-probabilities of the prompt tokens that this step's tokens predict."""
        row = 0
        for entry, slot in enumerate(slots.tolist()):
            first_row, row = row, row + int(step.num_scheduled_tokens[entry])
            count = self._num_prompt_logprobs(slot)
            if count is None:
                continue
            state = self.states.sampling[slot]
            start = int(step.num_computed_tokens[entry]) + 1
            end = min(start + row - first_row, state.num_prompt_tokens)
            if start >= end:
                continue
            request_id = step.request_ids[entry]
            try:
                output.prompt_logprobs[request_id] = prompt_logprobs(
                    self._ops,
                    self.model.logits,
                    hidden[first_row : first_row + end - start],
                    self.states.token_ids[slot, start:end],
                    count,
                )
            except FloatingPointError as error:
                output.errors[request_id] = str(error)
