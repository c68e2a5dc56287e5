"""All passes of a draft model in one native call, for sequences whose logits nothing edits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire import _native
from quire.core.batch import Column
from quire.core.config import SchedulerConfig
from quire.ops.array import address
from quire.runner.model import Model, PlannedModel
from quire.runner.state import SequenceStates

if TYPE_CHECKING:
    from quire.ops.interface import Ops

MASK_64 = 2**64 - 1


class DraftPasses:
    """Computes what the passes of `DraftModelProposer` compute, without a return to Python."""

    def __init__(self, native: _native.DraftPasses, max_num_seqs: int) -> None:
        self._native = native
        self._draws: list[_native.DraftDraw | None] = [None] * max_num_seqs

    @staticmethod
    def of(
        model: Model,
        ops: Ops,
        limits: SchedulerConfig,
        *,
        block_size: int,
        max_tokens: int,
        width: int,
    ) -> DraftPasses | None:
        """Return the passes of a draft model; None if its ops are not native.

        Args:
            max_tokens: most tokens of a pass.
            width: blocks in a row of the block tables.
        """
        if not isinstance(model, PlannedModel) or ops.sampler is None:
            return None
        native = _native.DraftPasses(
            *model.native_plans, ops.sampler, model.decoder.config.vocab_size, block_size,
            max_tokens, limits.max_num_seqs, width,
        )  # fmt: skip
        return DraftPasses(native, limits.max_num_seqs)

    def begin(self, slot: int) -> None:
        """Start a sequence in `slot`."""
        self._draws[slot] = None

    def can_draw(self, states: SequenceStates, slots: Column) -> bool:
        """Return whether no logits of these sequences are edited."""
        return all(states.sampling[slot].unedited() for slot in slots.tolist())

    def run(
        self, states: SequenceStates, slots: Column, start: Column, taken: Column, wanted: Column
    ) -> None:
        """Compute taken[i] tokens of slots[i] from start[i] on, and write wanted[i] drafts."""
        order = (-wanted).argsort(kind="stable")
        columns = (slots[order], start[order], taken[order], wanted[order])
        sequences = [
            (slot, first, count, drafts, *self._draw(states, slot))
            for slot, first, count, drafts in zip(*(c.tolist() for c in columns), strict=True)
        ]
        tokens = states.token_ids
        self._native.run(address(tokens), tokens.shape[1], address(states.block_tables), sequences)

    def _draw(self, states: SequenceStates, slot: int) -> tuple[int, _native.DraftDraw]:
        """Return the number of a sequence's output tokens, and how its next ones are drawn."""
        state, draw = states.sampling[slot], self._draws[slot]
        if draw is None:
            p = state.params
            temperature, seed = (0.0, 0) if p.greedy else (p.temperature, p.seed or 0)
            draw = _native.DraftDraw(temperature, p.top_k, p.top_p, p.min_p, seed & MASK_64)
            self._draws[slot] = draw
        return state.num_output_tokens, draw
