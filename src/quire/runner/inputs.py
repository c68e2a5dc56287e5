"""A step's tensors, built by whole-array operations into buffers that are made once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import SchedulerOutput
from quire.ops.metadata import AttentionMetadata
from quire.runner.state import SequenceStates


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model needs for one step; T tokens of B sequences, one after another.

    The tensors share the builder's buffers: they hold until the next step is built.

    Attributes:
        input_ids, positions: int64 [T].
        metadata: where keys and values are and go.
        sampling_rows: int64 [S], indices into T: the last token of each sequence all of whose
            tokens are computed after this step.
        samples: bool [B], which sequences those are.
    """

    input_ids: Tensor
    positions: Tensor
    metadata: AttentionMetadata
    sampling_rows: Tensor
    samples: NDArray[np.bool_]


class StepInputBuilder:
    """Turns a `SchedulerOutput` into `StepInputs`.

    Whole-array operations but for one copy a sequence. No context is copied: of a sequence's
    tokens only those of the step, and of its block table the columns in use.
    """

    def __init__(self, states: SequenceStates, max_num_batched_tokens: int, block_size: int):
        self._states = states
        self._block_size = block_size
        self._max_tokens = max_num_batched_tokens
        max_seqs, max_blocks = states.block_tables.shape
        self._arange = np.arange(max_num_batched_tokens, dtype=np.int64)
        self._input_ids = np.empty(max_num_batched_tokens, dtype=np.int64)
        self._positions = np.empty(max_num_batched_tokens, dtype=np.int64)
        self._slot_mapping = np.empty(max_num_batched_tokens, dtype=np.int64)
        self._query_start_loc = np.zeros(max_seqs + 1, dtype=np.int32)
        self._seq_lens = np.empty(max_seqs, dtype=np.int32)
        self._block_tables = np.empty(max_seqs * max_blocks, dtype=np.int32)

    def build(self, step: SchedulerOutput, slots: NDArray[np.int64]) -> StepInputs:
        """Build the inputs of a step whose sequences are in `slots`, int64 [B].

        Raises:
            ValueError: more tokens than the step may have.
        """
        states, num_seqs = self._states, len(slots)
        lengths, computed = step.num_scheduled_tokens, step.num_computed_tokens
        total = int(lengths.sum())
        if total > self._max_tokens:
            raise ValueError(f"a step of {total} tokens; the limit is {self._max_tokens}")

        query_start_loc = self._query_start_loc[: num_seqs + 1]
        np.cumsum(lengths, out=query_start_loc[1:])
        seq_lens = self._seq_lens[:num_seqs]
        np.add(computed, lengths, out=seq_lens, casting="unsafe")

        positions = self._positions[:total]
        token_slots = np.repeat(slots, lengths)
        shift = np.repeat(computed - query_start_loc[:-1], lengths)
        np.add(self._arange[:total], shift, out=positions)
        input_ids = self._input_ids[:total]
        input_ids[:] = states.token_ids[token_slots, positions]
        block, offset = np.divmod(positions, self._block_size)
        slot_mapping = self._slot_mapping[:total]
        np.multiply(states.block_tables[token_slots, block], self._block_size, out=slot_mapping)
        slot_mapping += offset

        max_seq_len = int(seq_lens.max())
        columns = -(-max_seq_len // self._block_size)
        tables = self._block_tables[: num_seqs * columns].reshape(num_seqs, columns)
        # Row by row: indexing with all slots at once makes a copy that grows with the context.
        for row, slot in enumerate(slots.tolist()):
            tables[row] = states.block_tables[slot, :columns]

        samples = seq_lens == states.num_tokens[slots]
        rows = query_start_loc[1:][samples].astype(np.int64) - 1
        metadata = AttentionMetadata(
            query_start_loc=torch.from_numpy(query_start_loc),
            seq_lens=torch.from_numpy(seq_lens),
            block_tables=torch.from_numpy(tables),
            slot_mapping=torch.from_numpy(slot_mapping),
            num_seqs=num_seqs,
            max_query_len=int(lengths.max()),
            max_seq_len=max_seq_len,
            block_size=self._block_size,
        )
        return StepInputs(
            torch.from_numpy(input_ids),
            torch.from_numpy(positions),
            metadata,
            torch.from_numpy(rows),
            samples,
        )
