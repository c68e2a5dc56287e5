"""A step's arrays, written by whole-array operations into preallocated buffers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from quire.core.batch import Column, SchedulerOutput
from quire.core.config import LOGITS_ROWS
from quire.core.dtypes import HostArray
from quire.ops.array import Array
from quire.ops.device import CPU, Device, Staged
from quire.ops.last_tokens import LastTokens
from quire.ops.metadata import AttentionMetadata, StateSlots
from quire.runner.state import SequenceStates


class StepInputs(msgspec.Struct, frozen=True, eq=False):
    """The model's inputs for one step: T tokens of B sequences, one after another.

    The arrays are views of the builder's buffers. If the sizes are equal, they are those of the
    previous step. They are valid until the next step is built.

    Attributes:
        input_ids, positions: int64 [T].
        metadata: where keys and values are read and written.
        sampling_rows: int64 [S], indices into T: the last token of each sequence whose tokens are
            all computed after this step, and its drafts.
        entries: int64 [E], which sequences those are.
        row_slots: int64 [S], the slots of the sequences of `sampling_rows`.
        adapter: int64 [T], each token's adapter number; [0] if no sequence has one; None if the
            engine has none. `row_adapter` [S] are those of `sampling_rows`.
        embeds, rotations, deep, own: see `Decoder.forward`; None in most steps.
        fixed: each sequence has one row and samples; void rows, of sequences without tokens and
            with slot -1, fill the batch to a captured size; and the arrays lie where those of all
            such steps of this size do.
    """

    input_ids: Array
    positions: Array
    metadata: AttentionMetadata
    sampling_rows: Array
    entries: Column
    row_slots: Array | None = None
    adapter: Array | None = None
    row_adapter: Array | None = None
    embeds: Array | None = None
    rotations: Array | None = None
    deep: tuple[Array, ...] = ()
    own: Array | None = None
    fixed: bool = False

    def adapters_of(self, rows: Array) -> tuple[Array, ...]:
        """Return the adapters of the tokens and of `rows`; () if the engine has none."""
        if self.adapter is None or self.row_adapter is None:
            return ()
        if rows is self.sampling_rows or not len(self.adapter):
            return self.adapter, self.row_adapter
        return self.adapter, self.adapter[rows]


class StepInputBuilder:
    """Turns a `SchedulerOutput` into `StepInputs`.

    Only the step's tokens are copied, not the context. Block tables are copied when a batch begins,
    up to the blocks in use. While its sequences stay the same, only new blocks are copied.
    """

    def __init__(
        self,
        states: SequenceStates,
        max_num_batched_tokens: int,
        block_size: int,
        type_rows: int = 0,
        device: Device = CPU,
        capture_sizes: Sequence[int] = (),
        last: LastTokens | None = None,
    ) -> None:
        """`type_rows` is added to the positions of the second text of a pair (`Decoder.forward`).
        `device` gets the arrays, except those that stay on the host. Steps that decode one token
        of each sequence are filled to the next of `capture_sizes`. `last` has the tokens that
        the host does not know."""
        self._states = states
        self._device = device
        self._last = last
        self._type_rows = type_rows
        self._block_size = block_size
        self._max_tokens = max_num_batched_tokens
        max_seqs = len(states.num_tokens)
        self._max_rows = max(max_seqs, LOGITS_ROWS)
        longest = max(max_num_batched_tokens, self._max_rows + 1)
        self._arange = np.arange(longest, dtype=np.int64)
        self._input_ids = np.zeros(max_num_batched_tokens, np.int64)
        self._positions = np.zeros(max_num_batched_tokens, np.int64)
        self._slot_mapping = np.zeros(max_num_batched_tokens, np.int64)
        self._sampling_rows = np.zeros(self._max_rows, np.int64)
        self._query_start_loc = np.zeros(max_seqs + 1, dtype=np.int32)
        self._seq_lens = np.empty(max_seqs, dtype=np.int32)
        self._block_tables = np.zeros(states.block_tables.shape, np.int32)
        self._tables = device.mirror(self._block_tables)
        self._sent_rows = 0  # of the tables, since the last change
        self._sent_tables = self._tables.send(0)
        self._views = self._query_start_loc[:1], self._seq_lens[:0], self._sent_tables
        self._viewed_tables = self._sent_tables
        self._adapter = np.zeros(max_num_batched_tokens, np.int64)
        self._row_adapter = np.zeros(self._max_rows, np.int64)
        self._row_slots = np.zeros(self._max_rows, np.int64)
        self._version = 0
        self._plain = 0  # sequences of the last step, if each decoded one token
        self._sizes = (0, 0, 0, 0, 0)
        self._capture_sizes = sorted(capture_sizes)
        self._fixed: dict[tuple[int, ...], Staged] = {}
        self._staged = device.stage(())

    def room(self, step: SchedulerOutput) -> int:
        """Return the number of drafts that a step's inputs can hold."""
        tokens = self._max_tokens - int(step.num_scheduled_tokens.sum())
        return min(tokens, self._max_rows - len(step.request_ids))

    def build(
        self, step: SchedulerOutput, slots: Column, drafts: Column | None = None
    ) -> StepInputs:
        """Build the inputs of a step whose sequences are in `slots`, int64 [B].

        Args:
            drafts: int64 [B], how many of each sequence's scheduled tokens are drafts. Each of
                them has a row to sample, behind that of the last known token.

        Raises:
            ValueError: more tokens than the step may have.
        """
        states, num_seqs = self._states, len(slots)
        scheduled, computed = step.num_scheduled_tokens, step.num_computed_tokens
        total = int(scheduled.sum())
        if total > self._max_tokens:
            raise ValueError(f"a step of {total} tokens; the limit is {self._max_tokens}")
        ends = computed + scheduled
        self._seq_lens[:num_seqs] = ends
        self._update_tables(step, slots)

        positions, starts = self._positions[:total], self._query_start_loc[: num_seqs + 1]
        if total == num_seqs:  # everyone decodes
            rows, token_slots = self._arange[:num_seqs], slots
            if self._plain != num_seqs:
                starts[:] = self._arange[: num_seqs + 1]
            positions[:] = computed
        else:
            rows = np.repeat(self._arange[:num_seqs], scheduled)
            token_slots = slots[rows]
            np.cumsum(scheduled, out=starts[1:])
            np.add(self._arange[:total], (computed - starts[:-1])[rows], out=positions)
        self._input_ids[:total] = states.token_ids[token_slots, positions]
        block, offset = np.divmod(positions, self._block_size)
        slot_mapping = self._slot_mapping[:total]
        np.multiply(self._block_tables[rows, block], self._block_size, out=slot_mapping)
        slot_mapping += offset
        recurrent = None
        if states.recurrent is not None:
            recurrent = StateSlots(*states.recurrent.next_pass(slots, computed, starts, drafts))
        # Below, positions become the model's own, which are not the places of tokens.
        if states.pairs:
            positions += self._type_rows * (positions >= states.second_text[token_slots])
        if states.images:
            self._place_behind_images(step, slots, positions, starts)
        missing = states.num_tokens[slots] - ends
        if drafts is not None:
            missing += drafts
        entries, row_slots = self._write_rows(total, slots, missing, drafts)
        num_rows, adapted = len(row_slots), bool(states.with_adapter)
        self._row_slots[:num_rows] = row_slots
        if adapted:
            self._adapter[:total] = states.adapter[token_slots]
            self._row_adapter[:num_rows] = states.adapter[row_slots]
        return self._inputs(total, num_seqs, num_rows, entries, recurrent, adapted=adapted)

    def _fill(self, used: int) -> int:
        """Write void rows behind `used` ones up to a captured size; return it, or 0."""
        if not self._plain or self._states.pairs or self._states.images:
            return 0
        size = next((n for n in self._capture_sizes if n >= used), 0)
        self._input_ids[used:size] = 0
        self._positions[used:size] = 0
        self._slot_mapping[used:size] = -1
        self._seq_lens[used:size] = 0
        self._sampling_rows[used:size] = self._arange[used:size]
        self._query_start_loc[used : size + 1] = self._arange[used : size + 1]
        self._adapter[used:size] = -1
        self._row_adapter[used:size] = -1
        self._row_slots[used:size] = len(self._states.num_tokens)
        return size

    def _place_behind_images(
        self, step: SchedulerOutput, slots: Column, positions: Column, starts: HostArray
    ) -> None:
        """Write the positions of sequences whose images take fewer positions than tokens."""
        for entry, slot in enumerate(slots.tolist()):
            images = self._states.images.get(slot)
            if images is not None and images.turned:
                count = int(step.num_scheduled_tokens[entry])
                time = images.positions(int(step.num_computed_tokens[entry]), count)[0]
                positions[starts[entry] : starts[entry] + count] = time

    def _write_rows(
        self, total: int, slots: Column, missing: Column, drafts: Column | None
    ) -> tuple[Column, Column]:
        """Write the rows to sample; return the entries that sample, and each row's slot.

        Args:
            missing: int64 [B], each sequence's tokens that are not computed after the step.
        """
        num_seqs = len(slots)
        last, entries = self._query_start_loc[1 : num_seqs + 1], self._arange[:num_seqs]
        if np.count_nonzero(missing):
            entries = np.flatnonzero(missing == 0)
            last, slots = last[entries], slots[entries]
        before, self._plain = self._plain, 0
        if drafts is not None:
            counts = drafts[entries] + 1
            slots = np.repeat(slots, counts)
            first = np.repeat(last - np.cumsum(counts), counts)
            rows = self._sampling_rows[: len(slots)]
            np.add(first, self._arange[: len(slots)], out=rows)
            return entries, slots
        if total == num_seqs == len(entries):
            self._plain = num_seqs
        if not before or before != self._plain:
            np.subtract(last, 1, out=self._sampling_rows[: len(entries)])
        return entries, slots

    def _update_tables(self, step: SchedulerOutput, slots: Column) -> None:
        if step.batch_version == self._version != 0:
            if step.new_blocks.size:
                entries, positions, blocks = step.new_blocks[:3]
                self._block_tables[entries, positions] = blocks
                self._sent_rows = 0
            return
        self._sent_rows = 0
        self._version = step.batch_version
        counts = self._states.num_blocks[slots].tolist()
        # Row by row: indexing with all slots at once makes a copy that grows with the context.
        for row, (slot, count) in enumerate(zip(slots.tolist(), counts, strict=True)):
            self._block_tables[row, :count] = self._states.block_tables[slot, :count]

    def _inputs(
        self,
        total: int,
        num_seqs: int,
        num_rows: int,
        entries: Column,
        recurrent: StateSlots | None,
        *,
        adapted: bool,
    ) -> StepInputs:
        size = self._fill(num_seqs)
        if size:
            if recurrent is not None:
                recurrent = StateSlots(
                    *(
                        np.pad(slots, (0, size - num_seqs), constant_values=-1)
                        for slots in (recurrent.state_from, recurrent.state_to)
                    )
                )
            total = num_seqs = num_rows = size
        sizes = (total, num_seqs, num_rows, total * adapted, num_rows * adapted)
        if size and sizes in self._fixed:
            self._staged = self._fixed[sizes]
        elif size or sizes != self._sizes:
            buffers = [
                self._input_ids[:total],
                self._positions[:total],
                self._sampling_rows[:num_rows],
                self._slot_mapping[:total],
                self._row_slots[:num_rows],
            ]
            if self._states.adapters is not None:
                buffers += [self._adapter[: sizes[3]], self._row_adapter[: sizes[4]]]
            self._staged = self._device.stage(buffers)
            if size:
                self._fixed[sizes] = self._staged
        self._sizes = sizes
        if self._sent_rows < num_seqs:
            self._sent_rows, self._sent_tables = num_seqs, self._tables.send(num_seqs)
        input_ids, positions, sampling_rows, slot_mapping, row_slots, *adapter = self._staged.send()
        if self._last is not None and (self._input_ids[:total] < 0).any():
            self._last.fill(input_ids)
        metadata = self._metadata(num_seqs, slot_mapping, recurrent)
        inputs = StepInputs(
            input_ids, positions, metadata, sampling_rows, entries, row_slots, fixed=size > 0
        )
        if not adapter:
            return inputs
        return replace(inputs, adapter=adapter[0], row_adapter=adapter[1])

    def _metadata(
        self, num_seqs: int, slot_mapping: Array, recurrent: StateSlots | None
    ) -> AttentionMetadata:
        if len(self._views[1]) != num_seqs or self._viewed_tables is not self._sent_tables:
            # A plan binds its arrays again if they are not those of the last step.
            self._viewed_tables = self._sent_tables
            self._views = (
                self._query_start_loc[: num_seqs + 1],
                self._seq_lens[:num_seqs],
                self._sent_tables[:num_seqs],
            )
        starts, seq_lens, block_tables = self._views
        return AttentionMetadata(
            query_start_loc=starts,
            seq_lens=seq_lens,
            block_tables=block_tables,
            slot_mapping=slot_mapping,
            num_seqs=num_seqs,
            block_size=self._block_size,
            states=recurrent,
            device=self._device,
        )
