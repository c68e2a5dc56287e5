"""Steps whose tokens are on the device: the host reads them after it has queued the next step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from quire.core.batch import Column, ModelOutput, SchedulerOutput
from quire.core.errors import EngineDeadError
from quire.ops.last_tokens import Chosen
from quire.runner.state import SequenceStates
from quire.sampling.sampler import SampleResult, result_of


class _Record(NamedTuple):
    """A queued step; the columns have an entry per sampled token.

    Attributes:
        ends: where in its sequence the token belongs.
        born: see `SequenceStates.born`.
    """

    output: ModelOutput
    names: list[str]
    entries: Column
    slots: Column
    ends: Column
    born: Column
    chosen: Chosen


class Unread:
    """Holds the place of tokens in their sequences, and writes them there once they are read.

    The place of a token holds ~slot, which `LastTokens.fill` turns into the token on the device.
    """

    def __init__(self, states: SequenceStates) -> None:
        self.wanted = False
        """The tokens of the step that is computed may be read later."""
        self._states = states
        self._records: deque[_Record] = deque()

    def __len__(self) -> int:
        return len(self._records)

    @contextmanager
    def allowed(self, step: SchedulerOutput) -> Iterator[None]:
        """Leave the tokens of `step` unread, if the host need not see its logits.

        Then its output has no tokens until `read`, and the next step may be queued before that.
        """
        self.wanted = step.max_new_tokens is None
        try:
            yield
        finally:
            self.wanted = False

    def append(
        self, output: ModelOutput, names: list[str], entries: Column, slots: Column, chosen: Chosen
    ) -> None:
        """Append a token that the device knows to each of these sequences."""
        states = self._states
        ends, born = states.num_tokens[slots], states.born[slots]
        self._records.append(_Record(output, names, entries, slots, ends, born, chosen))
        states.append(slots, ~slots)

    def read(self, output: ModelOutput) -> None:
        """Complete the output of the oldest step; another's is complete.

        The tokens are also written to the sequences that are still there.

        Raises:
            EngineDeadError: the device has failed.
        """
        if not self._records or self._records[0].output is not output:
            return
        record, states = self._records.popleft(), self._states
        try:
            result = result_of(*record.chosen.read())
        except RuntimeError as error:  # torch's; no later call would succeed
            raise EngineDeadError(f"The device has failed: {error}") from error
        here = states.born[record.slots] == record.born
        states.token_ids[record.slots[here], record.ends[here]] = result.token_ids[here]
        put(result, record.names, record.entries, output)


def put(
    result: SampleResult, names: list[str], entries: Column, output: ModelOutput
) -> Column | slice:
    """Write what was sampled for some entries of a step to its output; return which of them have a
    token."""
    tokens = result.token_ids
    for row, error in result.errors.items():
        output.errors[names[entries[row]]] = error
    for row, logprobs in result.logprobs.items():
        output.logprobs[names[entries[row]]] = [logprobs]
    if len(entries) == len(names) and not output.errors:
        output.sampled_token_ids = tokens[:, None]
        return slice(None)
    sound = np.array([names[entry] not in output.errors for entry in entries.tolist()], dtype=bool)
    output.sampled_token_ids = no_tokens(len(names))
    output.sampled_token_ids[entries[sound], 0] = tokens[sound]
    return sound


def no_tokens(num_seqs: int, width: int = 1) -> Column:
    """Return `ModelOutput.sampled_token_ids` of sequences that sample nothing."""
    return np.full((num_seqs, width), -1, dtype=np.int64)
