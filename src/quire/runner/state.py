"""The runner's state of all sequences between steps, in preallocated arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import Column, NewSequence, SchedulerOutput
from quire.core.errors import InvalidRequestError
from quire.core.lora import LoRARequest
from quire.runner.images import SequenceImages
from quire.runner.recurrent import StateSlotTables
from quire.sampling.state import SamplingState

if TYPE_CHECKING:
    from quire.lora.pool import AdapterPool
    from quire.runner.drafts import Proposer

NEVER = 2**40
"""Beyond any position."""
UNSET = -1
"""Value of `num_computed` until a new sequence's step sets it."""


class SequenceStates:
    """Tokens and block tables of all sequences, one row ("slot") each.

        slot   token_ids                              block_tables
        0      [ prompt … | output … | (unused)  ]    [ 7 | 12 | 3 | 0 … ]
        1      [ …                               ]    [ …                ]

    A sequence keeps its slot until it is removed. Free slots are a stack, so adding and removing
    take O(1) plus the tokens. Unused rows are never touched, so the operating system does not back
    them with memory.

    A step changes the state twice: `begin` before it is computed, then `append` for its tokens. Or
    `undo`, which reverts everything except `removed`.

    Attributes:
        token_ids: int32 [max_num_seqs, max_model_len]; ~slot in place of a token that only the
            device knows (see `runner.unread`).
        block_tables: int32 [max_num_seqs, blocks of max_model_len tokens]; entries past a
            sequence's own are valid block numbers without a meaning.
        num_tokens, num_blocks: int64 [max_num_seqs].
        num_computed: int64 [max_num_seqs], tokens whose keys and values are in the cache.
        born: int64 [max_num_seqs], the number of each slot's sequence: the slot's first, second …
        sampling: slot in use → the sequence's sampling state.
        prompt_logprobs: slot → requested log-probabilities per prompt token, of sequences that
            arrived without output.
        followed: slots of sequences whose next token depends on their output.
        second_text: int64 [max_num_seqs], the position of the second text of a pair.
        pairs: slots of sequences that are pairs.
        pooled: slot → the intermediate pooled vector.
        prompt_embeds: slot → a prompt's embeddings.
        images: slot → the images of a sequence.
        adapter: int64 [max_num_seqs], each sequence's number in `adapters`; -1 is none.
        with_adapter: slots of sequences with an adapter.
        recurrent: state slots of recurrent layers; None if the model has none.

    Args:
        adapters: the pool of adapters; None refuses them.
        proposer: learns which sequences enter and leave which slots.
        states_per_request: working slots of a sequence; 0 without recurrent layers.
        max_tokens: of a step.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        adapters: AdapterPool | None = None,
        proposer: Proposer | None = None,
        *,
        states_per_request: int = 0,
        max_tokens: int = 0,
    ) -> None:
        self._proposer = proposer
        max_blocks = -(-max_model_len // block_size)
        self.max_model_len = max_model_len
        self.token_ids = np.zeros((max_num_seqs, max_model_len), dtype=np.int32)
        self.block_tables = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_blocks = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_computed = np.zeros(max_num_seqs, dtype=np.int64)
        self.sampling: dict[int, SamplingState] = {}
        self.prompt_logprobs: dict[int, int] = {}
        self.followed: set[int] = set()
        self.second_text = np.full(max_num_seqs, NEVER, dtype=np.int64)
        self.pairs: set[int] = set()
        self.pooled: dict[int, NDArray[np.float64]] = {}
        self.prompt_embeds: dict[int, NDArray[np.float32]] = {}
        self.images: dict[int, SequenceImages] = {}
        self.adapters = adapters
        self.adapter = np.full(max_num_seqs, -1, dtype=np.int64)
        self.with_adapter: set[int] = set()
        self.recurrent: StateSlotTables | None = None
        if states_per_request:
            self.recurrent = StateSlotTables(
                max_num_seqs, max_blocks, block_size, states_per_request, max_tokens
            )
        self.born = np.zeros(max_num_seqs, dtype=np.int64)
        self._slots: dict[str, int] = {}
        self._free = list(range(max_num_seqs))[::-1]
        self._version = 0
        self._batch_slots = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._slots

    def slot(self, request_id: str) -> int:
        """Return the sequence's slot; -1 if it is not there."""
        return self._slots.get(request_id, -1)

    def forget_batch(self) -> None:
        """Look up the slots of the next step's sequences anew, whatever its version."""
        self._version = 0

    def remove(self, request_ids: list[str]) -> None:
        """Remove these sequences. Unknown ids are ignored: the scheduler names a failed step's new
        sequences, which were already undone."""
        for request_id in request_ids:
            slot = self._slots.pop(request_id, None)
            if slot is not None:
                if self._proposer is not None:
                    self._proposer.end(self, slot)
                del self.sampling[slot]
                self.prompt_logprobs.pop(slot, None)
                self.followed.discard(slot)
                self.pairs.discard(slot)
                self.pooled.pop(slot, None)
                self.prompt_embeds.pop(slot, None)
                self.images.pop(slot, None)
                if slot in self.with_adapter:
                    self._release_adapter(slot)
                self._free.append(slot)

    def begin(self, step: SchedulerOutput) -> Column:
        """Add the step's new sequences and blocks; an exception leaves no change.

        Returns:
            The slot of each of `step.request_ids`, int64 [B].

        Raises:
            ValueError: the step contradicts the state, because the scheduler has a bug.
            QuireError: a new sequence's adapter cannot be loaded.
        """
        self._check_positions(step)
        known = step.batch_version == self._version != 0
        if not known or step.new_sequences or step.removed:
            self._version = 0
            self._check_names(step)
            try:
                slots = self._place(step)
                self._check_rows(step, slots)
            except Exception:
                self.remove([new.request_id for new in step.new_sequences])
                raise
            self._version, self._batch_slots = step.batch_version, slots
        slots = self._batch_slots
        if step.new_blocks.size:
            entries, positions, blocks, *states = step.new_blocks
            self.block_tables[slots[entries], positions] = blocks
            self.num_blocks[slots[entries]] = positions + 1  # ascending: the last one stays
            if self.recurrent is not None:
                self.recurrent.extend(slots[entries], positions, states[0])
        if self.recurrent is not None:
            self.recurrent.begin_step()
        return slots

    def undo(self, step: SchedulerOutput) -> None:
        """Revert `begin`, and remove the step's new sequences.

        Its new blocks stay in the tables, without effect until a step adds them again.
        """
        self._version = 0
        if self.recurrent is not None:
            self.recurrent.undo()
        self.remove([new.request_id for new in step.new_sequences])

    def _place(self, step: SchedulerOutput) -> Column:
        """Add the step's new sequences; return the slot of every entry."""
        for new in step.new_sequences:
            self._add(new)
        slots = np.array([self._slots[name] for name in step.request_ids], dtype=np.int64)
        new_rows = self.num_computed[slots] == UNSET
        self.num_computed[slots[new_rows]] = step.num_computed_tokens[new_rows]
        return slots

    def append(self, slots: Column, tokens: Column) -> None:
        """Append a sampled token to each of these sequences."""
        ends = self.num_tokens[slots]
        self.token_ids[slots, ends] = tokens
        self.num_tokens[slots] = ends + 1

    def extend(self, slot: int, tokens: list[int]) -> None:
        """Append sampled tokens to one sequence."""
        begin = int(self.num_tokens[slot])
        end = self.num_tokens[slot] = begin + len(tokens)
        self.token_ids[slot, begin:end] = tokens

    def _release_adapter(self, slot: int) -> None:
        assert self.adapters is not None
        self.adapters.release(int(self.adapter[slot]))
        self.adapter[slot] = -1
        self.with_adapter.remove(slot)

    def _acquire_adapter(self, wanted: LoRARequest) -> int:
        if self.adapters is None:
            raise InvalidRequestError("this executor has no adapters.")
        return self.adapters.acquire(wanted)

    def _add(self, new: NewSequence) -> None:
        wanted_adapter = new.inputs.options.lora_request
        number = -1 if wanted_adapter is None else self._acquire_adapter(wanted_adapter)
        slot = self._free.pop()
        self.adapter[slot] = number
        if wanted_adapter is not None:
            self.with_adapter.add(slot)
        self._slots[new.request_id] = slot
        self.born[slot] += 1
        count = len(new.token_ids)
        self.token_ids[slot, :count] = new.token_ids
        self.num_tokens[slot] = count
        self.num_blocks[slot] = 0
        self.num_computed[slot] = UNSET
        self.sampling[slot] = SamplingState(
            new.sampling_params,
            self.token_ids[slot],
            self.num_tokens[slot : slot + 1],
            new.num_prompt_tokens,
            new.inputs.eos_token_ids,
        )
        if self.recurrent is not None:
            assert new.state is not None, "the scheduler knows no recurrent layers"
            self.recurrent.add(slot, new.state)
        self.second_text[slot] = new.inputs.second_text or NEVER
        if new.inputs.second_text:
            self.pairs.add(slot)
        wanted = new.sampling_params.prompt_logprobs
        if wanted is not None and count == new.num_prompt_tokens:
            self.prompt_logprobs[slot] = wanted
        if new.sampling_params.reads_output:
            self.followed.add(slot)
        if new.inputs.prompt_embeds is not None:
            rows = np.frombuffer(new.inputs.prompt_embeds, np.float32)
            self.prompt_embeds[slot] = rows.reshape(new.num_prompt_tokens, -1)
        if new.inputs.images:
            self.images[slot] = SequenceImages(new.inputs.images, new.num_prompt_tokens)
        if self._proposer is not None:
            self._proposer.begin(self, slot, new)

    def _check_names(self, step: SchedulerOutput) -> None:
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
        for name in step.request_ids:
            if name not in self._slots and name not in added:
                raise ValueError(f"sequence {name!r} is unknown")

    def _check_rows(self, step: SchedulerOutput, slots: Column) -> None:
        scheduled, computed = step.num_scheduled_tokens, self.num_computed[slots]
        wrong = (scheduled <= 0) | (computed + scheduled > self.num_tokens[slots])
        wrong |= computed > step.num_computed_tokens
        if wrong.any():
            entry = int(wrong.argmax())
            start = step.num_computed_tokens[entry]
            raise ValueError(
                f"sequence {step.request_ids[entry]!r} has {self.num_tokens[slots[entry]]} tokens, "
                f"{computed[entry]} of them computed, "
                f"but tokens {start} to {start + scheduled[entry]} are asked for"
            )

    def _check_positions(self, step: SchedulerOutput) -> None:
        if not step.new_blocks.size:
            return
        entries, positions = step.new_blocks[:2]
        if (positions >= self.block_tables.shape[1]).any():
            entry = int(entries[positions.argmax()])
            raise ValueError(
                f"sequence {step.request_ids[entry]!r} has {positions.max() + 1} blocks, "
                "past max_model_len"
            )
