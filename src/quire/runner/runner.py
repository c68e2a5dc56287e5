"""The model runner: one step of the engine, from the scheduler's words to sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from quire.core.batch import Column, ModelOutput, SchedulerOutput, StepTimes, token_columns
from quire.core.config import EngineConfig, StateConfig
from quire.core.dtypes import dtype_of
from quire.ops.array import Array
from quire.runner.drafts import Agrees, Proposer, RowReader, accept, is_draft, sampling_rows
from quire.runner.embeds import RowGiver
from quire.runner.graphs import new_model
from quire.runner.images import EncoderCache
from quire.runner.inputs import StepInputBuilder, StepInputs
from quire.runner.kv_tensors import (
    AHEAD_TOKENS,
    KVBacking,
    allocate_kv_caches,
    allocate_states,
    copy_blocks,
    in_layer_order,
)
from quire.runner.passes import Passes
from quire.runner.pooler import Pooler
from quire.runner.prompt_logprobs import add_prompt_logprobs, any_prompt_logprobs
from quire.runner.stage_rows import StageRows
from quire.runner.state import SequenceStates
from quire.runner.unread import Unread, no_tokens, put
from quire.runner.unsettled import Unsettled
from quire.sampling.grammars import Grammars, MaskFiller
from quire.sampling.sampler import Sampler, SamplingBatch
from quire.system.stopwatch import Stopwatch

if TYPE_CHECKING:
    from quire.lora.pool import AdapterPool
    from quire.models.decoder import Decoder
    from quire.ops.interface import Ops
    from quire.ops.op_times import OpMeter

NO_TOKENS = token_columns([])


class ModelRunner:
    """Computes steps: state in `states`, attention's memory in `kv_caches`, no other memory.

    In a pipeline, the tokens of `unsettled` steps come from the last stage.

    Args:
        num_blocks: blocks in the KV cache.
        decoder: the model with its weights.
        ops: the kernels that it runs on. Native ones are replayed from a plan, unless the
            configuration says `enforce_eager`.
        grammars: of structured output; None refuses it.
        adapters: those of the decoder's layers, None where it was built without.
        proposer: guesses tokens, if a pass may yield several of a sequence.
        agrees: whether a sampled token accepts the draft at its position.
        reader: takes the rows of all tokens, if the proposer drafts from them.
        states: slots of recurrent layers, if the model has some.
        stage: the pipeline stages beside this one.
        encoder: reads the images of prompts.
    """

    def __init__(
        self,
        config: EngineConfig,
        num_blocks: int,
        decoder: Decoder,
        ops: Ops,
        *,
        grammars: Grammars | None = None,
        adapters: AdapterPool | None = None,
        proposer: Proposer | None = None,
        agrees: Agrees = is_draft,
        reader: RowReader | None = None,
        states: StateConfig | None = None,
        stage: StageRows | None = None,
        encoder: EncoderCache | None = None,
    ) -> None:
        model, scheduler, pooling = config.model, config.scheduler, config.pooling
        block_size, shared_kv = config.block_size, config.shared_kv
        given_rows = config.enable_prompt_embeds or encoder is not None
        if not model.in_first_stage:
            given_rows = model.given_in_each_stage
        self.states = SequenceStates(
            scheduler.max_num_seqs, scheduler.max_model_len, block_size, adapters, proposer,
            states_per_request=states.per_request if states else 0,
            max_tokens=scheduler.max_num_batched_tokens,
        )  # fmt: skip
        self.kv_caches = allocate_kv_caches(
            ops, model, num_blocks, block_size, dtype_of(config.kv_cache_dtype),
            scales=config.calculate_kv_scales, units=decoder.kv_units, shared=shared_kv,
        )  # fmt: skip
        self.layer_states = allocate_states(ops, model, states.num_slots) if states else []
        self._caches = in_layer_order(model, self.kv_caches, self.layer_states)
        backed = ops.device.is_host and self.kv_caches
        lends = shared_kv is not None and config.transfer is not None and config.transfer.produces
        ahead = AHEAD_TOKENS // block_size if lends else 0
        self._backing = KVBacking(ops, self.kv_caches, shared_kv, ahead) if backed else None
        self._ops, self._reader, self._agrees, self._stage = ops, reader, agrees, stage
        plain = not (proposer or pooling or given_rows)
        slots = scheduler.max_num_seqs + 1  # the last one is of void rows
        self._last = ops.last_tokens(slots) if plain and stage is None else None
        self.model = new_model(
            decoder, ops, self._caches, block_size, scheduler,
            enforce_eager=config.enforce_eager,
            capture_sizes=config.capture_sizes if plain else (),
            adapters=adapters is not None, given_rows=given_rows and pooling is None,
            taps=model.own_taps if reader is None or stage is not None else reader.taps,
        )  # fmt: skip
        self._inputs = StepInputBuilder(
            self.states, scheduler.max_num_batched_tokens, block_size,
            type_rows=model.max_position_embeddings, device=ops.device,
            capture_sizes=self.model.capture_sizes, last=self._last,
        )  # fmt: skip
        self._rows = RowGiver(self.states, decoder, ops, encoder) if given_rows else None
        self._encoder = encoder
        self._begins, self._ends = model.in_first_stage, model.in_last_stage
        self.unsettled, self.unread = Unsettled(self.states, proposer), Unread(self.states)
        self._pooler = Pooler(config, self.states, self.model, ops, encoder) if pooling else None
        self._sampler, self._masks = Sampler(ops, config.logprobs_mode), MaskFiller(grammars)
        self._passes = Passes(self.states, self._inputs, proposer)
        self._sampled, self._batch = 0, SamplingBatch([])

    @property
    def meters(self) -> tuple[Sequence[OpMeter], Sequence[OpMeter], Sequence[OpMeter]]:
        """Return the meters of the model's ops, of those that draft for it, and of its tower's."""
        encoder = self._encoder
        tower = [] if encoder is None else [encoder.meter]
        return self.model.meters, self._passes.draft_meters, tower

    def execute(self, step: SchedulerOutput) -> ModelOutput:
        """Compute one step.

        If anything raises, the exception passes through and the step leaves no trace but its
        `removed`: sequences it would have added are gone, nothing is sampled. The caller may ask
        for the same step again, for a part of it, or drop its sequences; `removed` may name
        sequences that are not here. (The KV slots of the step's tokens may hold anything; they
        are written again before they are read.)
        """
        with self._ops.inference():
            return self._execute(step)

    def _execute(self, step: SchedulerOutput) -> ModelOutput:
        self._watch = Stopwatch()
        states = self.states
        states.remove(step.removed)
        if step.empty:
            return ModelOutput(NO_TOKENS)
        slots = states.begin(step)
        if self._backing is not None and step.new_blocks.size:
            self._backing.reach(int(step.new_blocks[2].max()))
        copy_blocks(self.kv_caches, step.moves)
        num_tokens, computed = states.num_tokens[slots], states.num_computed[slots]
        if np.count_nonzero(computed != step.num_computed_tokens):
            step = replace(step, num_computed_tokens=computed)
        try:
            if step.max_new_tokens is None:
                output = self._compute(step, slots)
            else:
                output = self._passes.run(step, slots, step.max_new_tokens, self._compute)
            if self.unsettled.foreseen is not None:
                self.unsettled.foreseen.draft(states, step, slots, output, self._watch)
        except BaseException:
            self._masks.end()
            states.num_tokens[slots] = num_tokens
            states.undo(step)
            self._sampled = 0
            raise
        if self._rows is not None:
            self._watch.seconds["model"] -= self._rows.read_ahead(step, output)
        ends = computed + step.num_scheduled_tokens
        if self._ends:  # a row that should have sampled and did not computes its last token again
            last = states.num_tokens[slots] - 1
            states.num_computed[slots] = np.where(ends == num_tokens, last, ends)
        else:
            states.num_computed[slots] = ends
            self.unsettled.note(step, np.flatnonzero(ends == num_tokens), computed)
        self._watch.seconds.pop("wait", None)
        output.times = StepTimes(**self._watch.seconds)
        if self._stage is not None:
            output.hops = self._stage.take_hops()
        return output

    def _compute(
        self, step: SchedulerOutput, slots: Column, drafts: Column | None = None
    ) -> ModelOutput:
        """Compute at most one token per sequence and one per draft, or one vector per sequence.

        Args:
            drafts: the number of each sequence's drafts, which lie behind its tokens.
        """
        if drafts is not None:
            step = replace(step, num_scheduled_tokens=step.num_scheduled_tokens + drafts)
        inputs = self._inputs.build(step, slots, drafts)
        if self._stage is not None and not self._begins:
            self._watch.lap("prepare")
            inputs = self._stage.take(inputs)
            self._watch.lap("wait")
        if self._stage is not None and not self._ends:
            return self._pass_on(step, slots, inputs, self._stage)
        if self.states.followed:
            self._begin_masks(slots[inputs.entries])
        self._watch.lap("prepare")
        if self._pooler is not None:
            output = self._pooler.pool(step, slots, inputs)
            self._watch.lap("model")
            return output
        output = ModelOutput(NO_TOKENS)
        prompts = any_prompt_logprobs(self.states, slots)
        if prompts or self._reader is not None:
            every = self._ops.array(np.arange(len(inputs.input_ids)))
            hidden = self._forward(step, slots, inputs, every)
            if prompts:
                project = self.model.logits
                add_prompt_logprobs(self._ops, project, self.states, step, slots, hidden, output)
            if len(inputs.sampling_rows) < len(every):
                hidden = hidden[inputs.sampling_rows]
        else:
            hidden = self._forward(step, slots, inputs, inputs.sampling_rows)
        entries = inputs.entries
        if not len(entries):
            output.sampled_token_ids = no_tokens(len(slots))
            self._watch.lap("model")
            return output
        logits = self.model.logits(hidden)
        logits = logits[: len(entries)] if inputs.fixed else logits  # without the void rows
        self._watch.lap("model")
        self._masks.end()
        if drafts is None:
            self._sample(step, slots, inputs, logits, output)
        else:
            output.sampled_token_ids = no_tokens(len(slots), 1 + int(drafts.max()))
            slots, drafts = slots[entries], drafts[entries]
            result = self._sampler.sample(logits, sampling_rows(self.states, slots, drafts))
            accept(self.states, step, entries, drafts, slots, result, output, self._agrees)
        self._watch.lap("sample")
        return output

    def _pass_on(
        self, step: SchedulerOutput, slots: Column, inputs: StepInputs, stage: StageRows
    ) -> ModelOutput:
        """Compute this stage's layers, and hand their rows to the next stage."""
        rows = self._forward(step, slots, inputs, stage.wanted(inputs))
        stage.give(rows, self.model.tapped)
        self._watch.lap("model")
        return ModelOutput(no_tokens(len(slots)))

    def _forward(
        self, step: SchedulerOutput, slots: Column, inputs: StepInputs, rows: Array
    ) -> Array:
        if self._rows is not None:
            inputs = self._rows.complete(step, slots, inputs)
        hidden = self.model.forward(inputs, rows)
        if self._reader is not None:
            start, counts = step.num_computed_tokens, step.num_scheduled_tokens
            tapped = [*(self._stage.carried if self._stage else ()), *self.model.tapped]
            self._reader.read(self.states, slots, start, counts, tapped or [hidden])
        return hidden

    def _sample(
        self,
        step: SchedulerOutput,
        slots: Column,
        inputs: StepInputs,
        logits: Array,
        output: ModelOutput,
    ) -> None:
        """Sample one token for each sequence whose last token was computed; each has one row of
        logits.
        """
        names, entries = step.request_ids, inputs.entries
        if len(entries) < len(slots):
            slots = slots[entries]
        batch = self._sampling_batch(step, slots)
        if self.unread.wanted and self._last is not None and inputs.row_slots is not None:
            there = inputs.row_slots[: len(entries)]
            chosen = self._sampler.choose(self._last, logits, there, batch)
            if chosen is not None:
                self.unread.append(output, names, entries, slots, chosen)
                return
        result = self._sampler.sample(logits, batch)
        sound = put(result, names, entries, output)
        self.states.append(slots[sound], result.token_ids[sound])

    def _begin_masks(self, slots: Column) -> None:
        """Have what follows outputs ready, and masks filled while the model runs."""
        states = self.states
        wanted = [slot for slot in slots.tolist() if slot in states.followed]
        self._masks.begin([states.sampling[slot] for slot in wanted])

    def _sampling_batch(self, step: SchedulerOutput, slots: Column) -> SamplingBatch:
        """Return the batch of the states in `slots`, some or all of the step's sequences."""
        everyone = len(slots) == len(step.request_ids)
        if everyone and step.batch_version == self._sampled != 0:
            return self._batch
        batch = SamplingBatch([self.states.sampling[slot] for slot in slots.tolist()])
        if everyone:
            self._sampled, self._batch = step.batch_version, batch
        return batch
