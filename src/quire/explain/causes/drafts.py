"""Speculative decoding that costs more time than its tokens save."""

from __future__ import annotations

from quire.explain.causes.case import WORTH, Case, Kind, Suspect, change, suspect

FEW_ACCEPTED = 0.15
"""Share of several drafts per pass below which no machine gains by them."""


def poor_drafts(case: Case) -> Suspect | None:
    """Most drafts are wrong, and verifying and drafting them delays the steps."""
    w, wanted = case.window, case.evidence.config.scheduler.speculative
    if wanted is None or not w.drafted_passes or not w.steps:
        return None
    rows = max(1.0, w.running)
    tokens = 1.0 + w.accepted_tokens / w.drafted_passes
    spent = case.estimate.drafts_share() + w.draft_seconds / w.seconds
    # Without drafts, further passes would compute the accepted ones.
    host = max(0.0, w.seconds * (1.0 - w.share("model", "idle")) - w.draft_seconds) / w.steps
    each = (case.estimate.step_seconds(rows) + host) / rows
    saved = spent - w.accepted_tokens * each / w.seconds
    several = w.draft_tokens >= 2 * w.drafted_passes
    few = several and w.accepted_tokens <= FEW_ACCEPTED * w.draft_tokens
    if few:  # counts prove it, whatever a busy machine makes of the times
        saved = max(saved, WORTH)
    if wanted.num_speculative_tokens_per_batch_size:
        why = "drafts nothing; without fixed numbers per batch size, it drafts only if that pays"
    else:
        why = "drafts nothing"
    return suspect(
        "poor_drafts",
        f"{w.accepted_tokens / w.draft_tokens:.0%} of {w.draft_tokens:,} drafts "
        f"({wanted.method}) were accepted, {tokens:.2f} tokens per pass with drafts. Drafting and "
        f"verifying takes {spent:.0%} of the time.",
        saved,
        [change("without --speculative-config", why, saved, speculative_config=None)],
        Kind.PROVEN if few else Kind.WASTE,
        method=wanted.method,
        acceptance=w.accepted_tokens / w.draft_tokens,
        tokens_per_pass=tokens,
        draft_seconds=w.draft_seconds,
        drafts_share=spent,
    )
