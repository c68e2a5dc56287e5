"""Proposers that look for the end of a text in what was seen before; they need no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from quire import _native
from quire.core.batch import Column, NewSequence
from quire.core.config import SpeculativeConfig
from quire.ops.array import address
from quire.runner.state import SequenceStates

if TYPE_CHECKING:
    from quire.ops.op_times import OpMeter

MAX_ANSWER_TOKENS = 2**20
"""Most tokens of earlier answers that `suffix` searches: 36 bytes each."""
MEAN_ANSWER_TOKENS = 1024
"""Tokens to reserve per earlier answer, up to `MAX_ANSWER_TOKENS`."""


class TextIndexProposer:
    """Drafts what followed earlier occurrences of a text's last tokens.

    One native call drafts for all sequences of a step. Texts are indexed as they grow, so the cost
    of a step does not depend on their length.
    """

    def __init__(self, index: _native.DraftIndex, max_num_seqs: int) -> None:
        self.meters: Sequence[OpMeter] = ()
        self._index = index
        # Slots, most drafts and drafts of a call. Looking up an address takes longer than copying.
        self._columns = np.empty((3, max_num_seqs), dtype=np.int64)
        slots, most, counts = map(address, self._columns)
        self._addresses = slots, most, counts
        self._states: SequenceStates | None = None
        self._texts: tuple[int, int, int]

    def begin(self, states: SequenceStates, slot: int, new: NewSequence) -> None:
        # Answers of requests with a salt are private, as their blocks in the prefix cache are.
        self._index.begin(slot, len(new.token_ids), new.inputs.options.cache_salt is None)

    def end(self, states: SequenceStates, slot: int) -> None:
        tokens = states.token_ids[slot]
        self._index.end(slot, address(tokens), int(states.num_tokens[slot]))

    def propose(self, states: SequenceStates, slots: Column, most: Column) -> Column:
        if states is not self._states:
            tokens = states.token_ids
            self._states = states
            self._texts = address(tokens), address(states.num_tokens), tokens.shape[1]
        size = len(slots)
        columns = self._columns[:, :size]
        columns[0] = slots
        columns[1] = most
        self._index.propose(*self._texts, *self._addresses, size)
        counts: Column = columns[2].copy()
        return counts


def ngram_proposer(config: SpeculativeConfig, max_num_seqs: int) -> TextIndexProposer:
    """Return prompt lookup: what followed the longest n-gram at its first occurrence."""
    shortest, longest = config.prompt_lookup_min, config.prompt_lookup_max
    return TextIndexProposer(_native.NgramIndex(max_num_seqs, shortest, longest), max_num_seqs)


def suffix_proposer(config: SpeculativeConfig, max_num_seqs: int) -> TextIndexProposer:
    """Return suffix decoding: the likeliest continuation in the request and earlier answers."""
    answers = config.suffix_decoding_max_cached_requests
    return TextIndexProposer(
        _native.SuffixIndex(
            max_num_seqs,
            config.suffix_decoding_max_tree_depth,
            answers,
            min(MAX_ANSWER_TOKENS, answers * MEAN_ANSWER_TOKENS),
            config.suffix_decoding_max_spec_factor,
            config.suffix_decoding_min_token_prob,
        ),
        max_num_seqs,
    )
