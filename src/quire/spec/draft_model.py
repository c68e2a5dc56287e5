"""Drafts from a smaller model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from quire.core.batch import Column, NewSequence
from quire.core.config import EngineConfig
from quire.core.dtypes import dtype_of
from quire.ops.array import Array
from quire.runner.inputs import StepInputs
from quire.runner.kv_tensors import allocate_kv_caches, in_layer_order
from quire.runner.model import EagerModel, Model, PlannedModel
from quire.runner.state import SequenceStates
from quire.spec.batch import draft_tokens, sample_drafts
from quire.spec.draft_passes import DraftPasses
from quire.spec.vocabulary import DraftVocabulary

if TYPE_CHECKING:
    from quire.models.decoder import Decoder
    from quire.ops.interface import Ops
    from quire.ops.op_times import OpMeter

CATCH_UP_TOKENS = 256
"""Most tokens of prompts that a step's drafting computes: long prompts must not delay others."""


class DraftModelProposer:
    """Drafts with a model of its own, all sequences of a pass at once.

    Its keys and values are in blocks of the same numbers as the target's, so it follows the same
    block tables. It computes each sequence from its first token on, whatever is cached: a block
    that holds something else costs right drafts, and no answer. It samples with the parameters and
    noise of the target, so it often draws the same token.

    Args:
        config: of the draft model, with the target's limits.
        max_model_len: positions that the draft model has.
        most: most drafts of a sequence in one pass.
        vocabulary: the draft model's, if its token ids are not the target's.
    """

    def __init__(
        self,
        config: EngineConfig,
        decoder: Decoder,
        ops: Ops,
        *,
        num_blocks: int,
        max_model_len: int,
        most: int,
        vocabulary: DraftVocabulary | None = None,
    ) -> None:
        limits = config.scheduler
        self._ops = ops
        self._vocabulary = vocabulary
        self._block_size = config.block_size
        self._max_tokens = min(limits.max_num_batched_tokens, CATCH_UP_TOKENS + limits.max_num_seqs)
        self._max_model_len = max_model_len
        self._last_place = limits.max_model_len - 1
        kv_caches = allocate_kv_caches(
            ops, config.model, num_blocks, config.block_size, dtype_of(config.kv_cache_dtype),
            units=decoder.kv_units,
        )  # fmt: skip
        caches = in_layer_order(config.model, kv_caches)
        self._model: Model = (
            EagerModel(decoder, ops, caches)
            if config.enforce_eager or ops.new_plan is None
            else PlannedModel(decoder, ops, caches, config.block_size, limits)
        )
        self.meters: Sequence[OpMeter] = self._model.meters
        self._passes: DraftPasses | None = None
        if vocabulary is None:
            self._passes = DraftPasses.of(
                self._model, ops, limits, block_size=config.block_size,
                max_tokens=self._max_tokens, width=-(-limits.max_model_len // config.block_size),
            )  # fmt: skip
        # Of each slot: tokens with keys and values, and the drafts after them that have some, too.
        self._computed = np.zeros(limits.max_num_seqs, dtype=np.int64)
        self._num_fed = np.zeros(limits.max_num_seqs, dtype=np.int64)
        self._fed = np.zeros((limits.max_num_seqs, most), dtype=np.int32)
        self._number = np.arange(most)

    def begin(self, states: SequenceStates, slot: int, new: NewSequence) -> None:
        self._computed[slot] = self._num_fed[slot] = 0
        if self._passes is not None:
            self._passes.begin(slot)

    def end(self, states: SequenceStates, slot: int) -> None:
        pass

    def propose(self, states: SequenceStates, slots: Column, most: Column) -> Column:
        known = states.num_tokens[slots]
        most = np.minimum(most, np.maximum(self._max_model_len - known, 0))
        start = self._start(states, slots, known)
        behind = np.where(most > 0, known - start, 0)
        taken = self._share(behind)
        self._computed[slots], self._num_fed[slots] = start + taken, 0
        ready = (taken == behind) & (taken > 0)
        running = taken > 0
        counts = np.where(ready, most, 0)
        if not running.any():
            return counts
        counted, work = counts, (slots, start, taken)
        if not running.all():
            known, counted = known[running], counts[running]
            work = slots[running], start[running], taken[running]
        if self._passes is not None and self._passes.can_draw(states, slots[ready]):
            self._passes.run(states, *work, counted)
        else:
            self._run_passes(states, *work, counted)
        # The last draft was drawn and not computed.
        self._num_fed[work[0]] = np.maximum(counted - 1, 0)
        places = np.minimum(known[:, None] + self._number, self._last_place)
        self._fed[work[0]] = states.token_ids[work[0][:, None], places]
        return counts

    def _run_passes(
        self, states: SequenceStates, slots: Column, start: Column, taken: Column, wanted: Column
    ) -> None:
        """Compute taken[i] tokens of slots[i] from start[i] on, and write wanted[i] drafts."""
        known, drafting = start + taken, np.flatnonzero(wanted)
        logits = self._run(states, slots, start, taken, np.cumsum(taken)[drafting] - 1)
        for number in range(int(wanted.max(initial=0))):
            if number:
                drafting = np.flatnonzero(wanted > number)
                position = known[drafting] + number - 1
                rows = np.arange(len(drafting))
                logits = self._run(states, slots[drafting], position, None, rows)
            tokens = sample_drafts(
                self._ops, states, slots[drafting], logits, number, self._vocabulary
            )
            states.token_ids[slots[drafting], known[drafting] + number] = tokens

    def _start(self, states: SequenceStates, slots: Column, known: Column) -> Column:
        """Return where each sequence goes on: after its computed tokens and right drafts."""
        computed, number = self._computed[slots], self._number
        position = np.minimum(computed[:, None] + number, states.max_model_len - 1)
        right = states.token_ids[slots[:, None], position] == self._fed[slots]
        right &= number < self._num_fed[slots][:, None]
        start: Column = np.minimum(computed + np.cumprod(right, axis=1).sum(axis=1), known - 1)
        return start

    def _share(self, behind: Column) -> Column:
        """Return the tokens of each sequence to compute; those with the fewest first."""
        if int(behind.sum()) <= self._max_tokens:
            return behind
        order = np.argsort(behind, kind="stable")
        before = np.cumsum(behind[order]) - behind[order]
        taken = np.empty_like(behind)
        taken[order] = np.clip(behind[order], 0, np.maximum(self._max_tokens - before, 0))
        return taken

    def _run(
        self,
        states: SequenceStates,
        slots: Column,
        start: Column,
        counts: Column | None,
        rows: Column,
    ) -> Array:
        """Compute tokens as `draft_tokens` chooses them; return the logits of `rows`."""
        ids, positions, metadata = draft_tokens(
            self._ops, states, slots, start, counts, self._block_size, vocabulary=self._vocabulary
        )
        chosen, everyone = self._ops.array(rows), np.arange(len(slots))
        inputs = StepInputs(ids, positions, metadata, chosen, everyone)
        hidden = self._model.forward(inputs, chosen)
        return self._model.logits(hidden) if len(rows) else hidden
