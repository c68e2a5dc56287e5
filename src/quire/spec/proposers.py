"""Makes the proposer that a configuration asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quire.core.config import EngineConfig, SchedulerConfig
from quire.runner.drafts import Agrees, Proposer, is_draft, synthetic
from quire.spec.synthetic import FullDrafts
from quire.spec.text_index import ngram_proposer, suffix_proposer

if TYPE_CHECKING:
    from quire.ops.interface import Ops


def new_proposer(config: EngineConfig, num_blocks: int, ops: Ops) -> Proposer | None:
    """Return the proposer of an engine; None without speculative decoding.

    Args:
        num_blocks: KV blocks of the engine.
        ops: the engine's; a draft model uses them if it can.

    Raises:
        QuireError: from loading the draft model.
    """
    limits = config.scheduler
    wanted = limits.speculative
    if wanted is None:
        return None
    proposer: Proposer
    if wanted.method == "draft_model":
        proposer = _draft_model(config, num_blocks, ops, wanted.num_speculative_tokens)
    elif wanted.method == "suffix":
        proposer = suffix_proposer(wanted, limits.max_num_seqs)
    else:
        proposer = ngram_proposer(wanted, limits.max_num_seqs)
    return proposer if wanted.synthetic_acceptance_rate is None else FullDrafts(proposer)


def _draft_model(config: EngineConfig, num_blocks: int, ops: Ops, most: int) -> Proposer:
    """Load the draft model. Each rank of several has the whole of it."""
    from quire.models.loader import load_model
    from quire.ops.providers import load_ops
    from quire.spec.draft_model import DraftModelProposer

    draft = config.draft
    assert draft is not None, "the draft model is not resolved"
    if config.share is not None or draft.packing != config.packing:
        ops = load_ops(
            draft.ops,
            num_threads=config.num_threads,
            quantization=draft.packing,
            device=ops.device,
        )
        ops.use_threads(config.num_threads)
    return DraftModelProposer(
        replace(draft, scheduler=config.scheduler),
        load_model(draft, ops),
        ops,
        num_blocks=num_blocks,
        max_model_len=min(config.scheduler.max_model_len, draft.scheduler.max_model_len),
        most=most,
    )


def acceptance(limits: SchedulerConfig) -> Agrees:
    """Return the rule by which an engine with these limits accepts drafts."""
    config = limits.speculative
    if config is None or config.synthetic_acceptance_rate is None:
        return is_draft
    return synthetic(config.synthetic_acceptance_rate)
