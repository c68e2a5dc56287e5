"""Steps whose tokens are on the device: the host reads them after it has queued the next step."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from quire.core.batch import Column, ModelOutput
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
        self._states = states
        self._records: deque[_Record] = deque()

    def __len__(self) -> int:
        return len(self._records)

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
        """
        if not self._records or self._records[0].output is not output:
            return
        record, states = self._records.popleft(), self._states
        result = result_of(*record.chosen.read())
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
