"""Makes the proposer that a configuration asks for."""

from __future__ import annotations

from quire.core.config import SchedulerConfig
from quire.runner.drafts import Agrees, Proposer, is_draft, synthetic
from quire.spec.synthetic import FullDrafts
from quire.spec.text_index import ngram_proposer, suffix_proposer


def new_proposer(limits: SchedulerConfig) -> Proposer | None:
    """Return the proposer of an engine with these limits; None without speculative decoding."""
    config = limits.speculative
    if config is None:
        return None
    new = {"ngram": ngram_proposer, "suffix": suffix_proposer}[config.method]
    proposer: Proposer = new(config, limits.max_num_seqs)
    return proposer if config.synthetic_acceptance_rate is None else FullDrafts(proposer)


def acceptance(limits: SchedulerConfig) -> Agrees:
    """Return the rule by which an engine with these limits accepts drafts."""
    config = limits.speculative
    if config is None or config.synthetic_acceptance_rate is None:
        return is_draft
    return synthetic(config.synthetic_acceptance_rate)
