"""What drafting models compute: tokens of several sequences, and draws from their logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quire.core.batch import Column
from quire.core.errors import QuireError
from quire.ops.array import Array
from quire.ops.metadata import AttentionMetadata
from quire.ops.sample_row import LogitEdits, SampleRow
from quire.runner.state import SequenceStates
from quire.sampling.state import SamplingState
from quire.spec.vocabulary import DraftVocabulary

if TYPE_CHECKING:
    from quire.ops.interface import Ops


def draft_tokens(
    ops: Ops,
    states: SequenceStates,
    slots: Column,
    start: Column,
    counts: Column | None,
    block_size: int,
    ahead: int = 0,
    vocabulary: DraftVocabulary | None = None,
) -> tuple[Array, Array, AttentionMetadata]:
    """Return ids, positions and metadata of positions [start[i], start[i] + counts[i]) of slots[i].

    Args:
        counts: None is one each.
        ahead: how far behind its position each token is.
        vocabulary: the drafter's, if its ids are others.
    """
    begins = np.arange(len(slots) + 1)
    if counts is None:
        owner, positions, ends = begins[:-1], start, start + 1
    else:
        owner = np.repeat(begins[:-1], counts)
        begins[1:] = np.cumsum(counts)
        positions = np.arange(len(owner)) + (start - begins[:-1])[owner]
        ends = start + counts
    ids = states.token_ids[slots[owner], positions + ahead].astype(np.int64)
    tables = states.block_tables[slots, : -(-int(ends.max()) // block_size)]
    blocks = tables[owner, positions // block_size].astype(np.int64)
    metadata = AttentionMetadata(
        query_start_loc=begins.astype(np.int32),
        seq_lens=ends.astype(np.int32),
        block_tables=ops.array(np.ascontiguousarray(tables)),
        slot_mapping=ops.array(blocks * block_size + positions % block_size),
        num_seqs=len(slots),
        block_size=block_size,
        device=ops.device,
    )
    ids = np.maximum(ids, 0)  # prompts of embeddings have no ids; any token will do
    if vocabulary is not None and vocabulary.reads is not None:
        ids = vocabulary.reads[ids]
    return ops.array(ids), ops.array(positions), metadata


def sample_drafts(
    ops: Ops,
    states: SequenceStates,
    slots: Column,
    logits: Array,
    ahead: int,
    vocabulary: DraftVocabulary | None = None,
) -> Column:
    """Return a token of each sequence, as the target would sample from these logits.

    Args:
        ahead: drafts of each sequence before this one.
        vocabulary: of the logits, if it is not the target's.
    """
    if vocabulary is not None:
        logits = ops.array(vocabulary.widen(ops.numpy(logits)))
    tokens, _ = ops.argmax(logits)
    rows: list[SampleRow] = []
    for row, slot in enumerate(slots.tolist()):
        state = states.sampling[slot]
        if state.plain_greedy:
            continue
        edits, params = _edits(state, logits.shape[1], ahead), state.params
        if edits is None and params.greedy:
            continue
        rows.append(SampleRow(row, params, state.draw_key(ahead), edits))
    if rows:
        chosen = ops.sample(logits, rows)
        tokens[[row.row for row in rows]] = chosen
    return np.maximum(tokens, 0)


def _edits(state: SamplingState, vocab_size: int, ahead: int) -> LogitEdits | None:
    """Return the target's edits; none in the first step of a structure, which makes its matcher."""
    if state.matcher is not None:
        state.matcher.fill(state.output, state.drafts(ahead))
    try:
        return state.edits(vocab_size, ahead)
    except QuireError:  # the target's own sampling reports it
        return None
