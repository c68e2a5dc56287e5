"""Makes the proposer that a configuration asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from quire.core.batch import Column, NewSequence
from quire.core.config import HEAD_METHODS, TEXT_METHODS, EngineConfig, SchedulerConfig
from quire.core.errors import CheckpointError
from quire.runner.drafts import Agrees, Proposer, RowReader, is_draft, synthetic
from quire.runner.foreseen import Foreseen
from quire.runner.state import SequenceStates
from quire.spec.head import HeadProposer
from quire.spec.text_index import ngram_proposer, suffix_proposer
from quire.spec.vocabulary import DraftVocabulary, draft_vocabulary

if TYPE_CHECKING:
    from quire.models.decoder import Decoder
    from quire.ops.interface import Ops


def new_proposer(
    config: EngineConfig, num_blocks: int, ops: Ops, target: Decoder
) -> tuple[Proposer | None, RowReader | None]:
    """Return the proposer of an engine, and what of it reads the target's rows.

    Both are None without speculative decoding.

    Args:
        num_blocks: KV blocks of the engine.
        ops: the engine's; a draft model uses them if it can.
        target: a draft head uses its embeddings and lm_head.

    Raises:
        QuireError: from loading the draft model.
    """
    limits = config.scheduler
    wanted = limits.speculative
    if wanted is None:
        return None, None
    proposer: Proposer
    reader: RowReader | None = None
    foreseen = bool(config.stage_layers) and wanted.method not in TEXT_METHODS
    most = wanted.num_speculative_tokens
    if foreseen and not config.model.in_last_stage:
        return Foreseen(limits.max_num_seqs, most, None), None
    if wanted.method in HEAD_METHODS:
        proposer = reader = _head(config, num_blocks, ops, target)
    elif wanted.method == "draft_model":
        proposer = _draft_model(config, num_blocks, ops, most)
    elif wanted.method == "suffix":
        proposer = suffix_proposer(wanted, limits.max_num_seqs)
    else:
        proposer = ngram_proposer(wanted, limits.max_num_seqs)
    if wanted.synthetic_acceptance:
        proposer = FullDrafts(proposer)
    if foreseen:
        proposer = Foreseen(limits.max_num_seqs, most, proposer)
    return proposer, reader


def _draft_model(config: EngineConfig, num_blocks: int, ops: Ops, most: int) -> Proposer:
    """Load the draft model. Each rank of several has the whole of it."""
    from quire.models.weights.loader import load_model
    from quire.spec.draft_model import DraftModelProposer

    draft = config.draft
    assert draft is not None, "the draft model is not resolved"
    ops = ops.whole(draft.packing)
    return DraftModelProposer(
        replace(draft, scheduler=config.scheduler),
        load_model(draft, ops),
        ops,
        num_blocks=num_blocks,
        max_model_len=min(config.scheduler.max_model_len, draft.scheduler.max_model_len),
        most=most,
        vocabulary=draft_vocabulary(config, draft),
    )


def _head(config: EngineConfig, num_blocks: int, ops: Ops, target: Decoder) -> HeadProposer:
    """Load the draft head. Each rank of several has the whole of its layers."""
    from quire.models.draft_head import DraftHead
    from quire.models.weights.loader import parameter_source

    draft, wanted = config.draft, config.scheduler.speculative
    assert draft is not None, "the draft head is not resolved"
    assert wanted is not None
    draft = replace(
        draft, scheduler=config.scheduler, enable_prefix_caching=config.enable_prefix_caching
    )
    max_len = config.scheduler.max_model_len
    head = DraftHead(
        draft.model, parameter_source(draft), max_len, ops.whole(draft.packing), target
    )
    return HeadProposer(
        draft,
        head,
        ops,
        num_blocks=num_blocks,
        most=wanted.num_speculative_tokens,
        max_model_len=min(max_len, wanted.max_model_len or max_len),
        vocabulary=_head_vocabulary(draft, target.config.vocab_size),
    )


def _head_vocabulary(draft: EngineConfig, vocab_size: int) -> DraftVocabulary | None:
    """Return which of the target's tokens a head has; None if it has all of them.

    Raises:
        CheckpointError: the checkpoint's d2t, which has differences, does not fit.
    """
    from quire.checkpoint.source import resolve
    from quire.models.weights.checkpoint import open_weights

    head = draft.model.draft_head
    assert head is not None
    if head.vocab_size in (0, vocab_size):
        return None
    tokens = np.arange(head.vocab_size)
    if draft.load_format == "dummy":
        return DraftVocabulary(tokens, tokens, vocab_size)
    weights = open_weights(resolve(draft.model_path, load_format=draft.load_format))
    if "d2t" not in weights.tensors:
        raise CheckpointError("Tensor 'd2t' is missing: which tokens the draft head has.")
    differences = weights.read("d2t").astype(np.int64)
    found: Column = tokens + differences if differences.shape == tokens.shape else differences[:0]
    if not len(found) or found.min() < 0 or found.max() >= vocab_size:
        raise CheckpointError(
            f"Tensor 'd2t' must map the draft head's {head.vocab_size} tokens to the model's "
            f"{vocab_size}."
        )
    return DraftVocabulary(tokens, found, vocab_size)


class FullDrafts:
    """Fills up another proposer's drafts, so that each pass verifies as many as it may; for
    measurements with synthetic acceptance."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.meters = proposer.meters

    def begin(self, states: SequenceStates, slot: int, new: NewSequence) -> None:
        self._proposer.begin(states, slot, new)

    def end(self, states: SequenceStates, slot: int) -> None:
        self._proposer.end(states, slot)

    def propose(self, states: SequenceStates, slots: Column, most: Column) -> Column:
        counts = self._proposer.propose(states, slots, most)
        rows = zip(slots.tolist(), counts.tolist(), most.tolist(), strict=True)
        for slot, count, wanted in rows:
            end = int(states.num_tokens[slot])
            states.token_ids[slot, end + count : end + wanted] = states.token_ids[slot, 0]
        return most


def acceptance(limits: SchedulerConfig) -> Agrees:
    """Return the rule by which an engine with these limits accepts drafts."""
    config = limits.speculative
    if config is None or not config.synthetic_acceptance:
        return is_draft
    return synthetic(config.synthetic_acceptance)
