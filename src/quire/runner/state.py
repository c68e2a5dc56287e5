"""What the runner remembers of every sequence between steps, in arrays made once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import NewSequence, SchedulerOutput
from quire.sampling.state import SamplingState


class SequenceStates:
    """Tokens and block tables of all sequences, a row ("slot") each.

        slot   token_ids                              block_tables
        0      [ prompt … | output … | (unused)  ]    [ 7 | 12 | 3 | 0 … ]
        1      [ …                               ]    [ …                ]

    A sequence keeps its slot until it is removed; free slots are a stack, so that adding and
    removing cost O(1) plus the tokens themselves. Pages of rows that no sequence has reached
    are never touched, so that the operating system does not back them with memory.

    A step changes the state in two halves: `begin` before it is computed, then `append` for
    what it yielded, or `undo`, which leaves everything but `removed` as if the step had never
    been asked for.

    Attributes:
        token_ids: int32 [max_num_seqs, max_model_len].
        block_tables: int32 [max_num_seqs, blocks of max_model_len tokens]; entries past a
            sequence's own are valid block numbers, but mean nothing.
        num_tokens, num_prompt_tokens, num_blocks: int64 [max_num_seqs].
        sampling: slot in use → what the sampler keeps of the sequence.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.max_model_len = max_model_len
        self.token_ids = np.zeros((max_num_seqs, max_model_len), dtype=np.int32)
        self.block_tables = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_blocks = np.zeros(max_num_seqs, dtype=np.int64)
        self.sampling: dict[int, SamplingState] = {}
        self._slots: dict[str, int] = {}
        self._free = list(range(max_num_seqs))[::-1]

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._slots

    def remove(self, request_ids: list[str]) -> None:
        """Forget these sequences. Ids that are not here are ignored: a failed step's new
        sequences were undone, and the scheduler still names them."""
        for request_id in request_ids:
            slot = self._slots.pop(request_id, None)
            if slot is not None:
                del self.sampling[slot]
                self.num_blocks[slot] = 0
                self._free.append(slot)

    def begin(self, step: SchedulerOutput) -> NDArray[np.int64]:
        """Add the step's new sequences and blocks; nothing has changed if this raises.

        Returns:
            The slot of each of `step.request_ids`, int64 [B].

        Raises:
            ValueError: the step contradicts what the runner holds: the scheduler has a bug.
        """
        self._check(step)
        for new in step.new_sequences:
            self._add(new)
        slots = np.fromiter((self._slots[i] for i in step.request_ids), dtype=np.int64)
        for slot, blocks in zip(slots.tolist(), step.new_block_ids, strict=True):
            if blocks:
                start = int(self.num_blocks[slot])
                self.block_tables[slot, start : start + len(blocks)] = blocks
                self.num_blocks[slot] = start + len(blocks)
        return slots

    def undo(self, step: SchedulerOutput) -> None:
        """Take back `begin`: the step's new sequences are gone, and so are its blocks."""
        self.remove([new.request_id for new in step.new_sequences])
        for request_id, blocks in zip(step.request_ids, step.new_block_ids, strict=True):
            if request_id in self._slots:
                self.num_blocks[self._slots[request_id]] -= len(blocks)

    def append(self, slot: int, tokens: list[int]) -> None:
        """Append sampled tokens to a sequence."""
        start = int(self.num_tokens[slot])
        self.token_ids[slot, start : start + len(tokens)] = tokens
        self.num_tokens[slot] = start + len(tokens)
        self.sampling[slot].append(tokens)

    def _add(self, new: NewSequence) -> None:
        slot = self._free.pop()
        self._slots[new.request_id] = slot
        count = len(new.token_ids)
        self.token_ids[slot, :count] = new.token_ids
        self.num_tokens[slot] = count
        self.num_prompt_tokens[slot] = new.num_prompt_tokens
        self.num_blocks[slot] = 0
        self.sampling[slot] = SamplingState(
            new.sampling_params,
            self.token_ids[slot],
            count,
            new.num_prompt_tokens,
            new.eos_token_ids,
        )

    def _check(self, step: SchedulerOutput) -> None:
        added: set[str] = set()
        for new in step.new_sequences:
            if new.request_id in self._slots or new.request_id in added:
                raise ValueError(f"sequence {new.request_id!r} was added twice")
            if not 0 < len(new.token_ids) <= self.max_model_len:
                raise ValueError(
                    f"sequence {new.request_id!r} has {len(new.token_ids)} tokens; "
                    f"max_model_len is {self.max_model_len}"
                )
            added.add(new.request_id)
        if len(added) > len(self._free):
            raise ValueError(
                f"{len(added)} new sequences, but only {len(self._free)} of "
                f"{len(self.num_tokens)} slots are free"
            )
        if len(set(step.request_ids)) != len(step.request_ids):
            raise ValueError("a sequence is in the step twice")
        rows = zip(
            step.request_ids,
            step.num_computed_tokens,
            step.num_scheduled_tokens,
            step.new_block_ids,
            strict=True,
        )
        for request_id, computed, scheduled, blocks in rows:
            slot = self._slots.get(request_id)
            if slot is None and request_id not in added:
                raise ValueError(f"sequence {request_id!r} is unknown")
            held = len(blocks) + (0 if slot is None else int(self.num_blocks[slot]))
            if held > self.block_tables.shape[1]:
                raise ValueError(f"sequence {request_id!r} has {held} blocks, past max_model_len")
            if slot is not None and not 0 < scheduled <= self.num_tokens[slot] - computed:
                raise ValueError(
                    f"sequence {request_id!r} has {self.num_tokens[slot]} tokens, but tokens "
                    f"{computed} to {computed + scheduled} are asked for"
                )
