"""Causes in how clients behave: they read slowly, leave, ask too little or in vain."""

from __future__ import annotations

from quire.explain.causes.account import loop_busy
from quire.explain.causes.case import (
    FEW_CLIENTS,
    Case,
    Kind,
    Suspect,
    advice,
    saving,
    setting,
    suspect,
)

MANY = 0.1
"""Share of the requests, or of the work, from which clients' behaviour is a cause."""
SLOW = 0.2
"""Share of the outputs that must wait for their reader: on a busy machine any client is late."""
LATE_LOOP = 0.7
"""Share of its time that the event loop works, from which it delays the outputs itself."""
ENOUGH = 8
"""Sequences that must have ended before their ends say anything."""
MORE_CLIENTS = 8
GAIN = 0.5
"""Gain of more clients from which few of them are the limit."""


def slow_client(case: Case) -> Suspect | None:
    """Clients read their streams more slowly than the server writes them."""
    w, around = case.window, case.around
    held = around.unread / max(1, around.connections)
    slow = min(1.0, w.slow_outputs / max(1, w.generation_tokens))
    if loop_busy(case) >= LATE_LOOP:
        slow = 0.0  # they wait for the event loop, not for their clients
    if max(held, slow) < SLOW:
        return None
    return suspect(
        f"{slow:.0%} of the outputs waited for their client to read, and {around.unread} of "
        f"{around.connections} connections hold answers that nobody has read. The engine and the "
        "other streams lose no time, and no flag of the server can help.",
        max(held, slow),
        kind=Kind.CLIENTS,
    )


def many_choices(case: Case) -> Suspect | None:
    """Each request is many sequences."""
    w, mix = case.window, case.window.mix
    asked = [r.sequences for r in w.arrivals[-ENOUGH:]]  # on a starved machine none arrives now
    each = mix.sequences / mix.requests if mix.requests else sum(asked) / max(1, len(asked))
    if each < 2.0 or w.waiting < 0.5:
        return None
    # Without n, all would have a seat: n is the cause, and no number of seats.
    fits = (w.running + w.waiting) / each <= case.seats
    return suspect(
        f"A request asks for {each:.1f} completions (n) on average, each a sequence with its own "
        f"seat, and {w.waiting:.1f} sequences wait.",
        w.waiting / (w.running + w.waiting),
        kind=Kind.PROVEN if fits else Kind.CLIENTS,
    )


def aborted_requests(case: Case) -> Suspect | None:
    """Clients leave before their answers end, and what was computed for them is lost."""
    w = case.window
    lost = min(1.0, w.aborted_tokens / max(1, w.computed_tokens))
    if w.ended < ENOUGH or w.aborted < MANY * w.ended or lost < MANY:
        return None
    lost *= max(0.0, 1.0 - w.share("idle"))
    lost = min(lost, 1.0 - 1.0 / (w.ended + 2))  # more answers would show how many arrive
    return suspect(
        f"Clients left {w.aborted} of {w.ended} sequences before their end, by closing the "
        f"connection or by a time-out. {w.aborted_tokens:,} tokens were computed for nothing.",
        lost,
        advice("a longer time-out in clients and proxies", "lets answers arrive", lost),
    )


def refused_requests(case: Case) -> Suspect | None:
    """Requests are answered with an error; see `queueing` for those that found the queue full."""
    w, config = case.window, case.config
    refused = {code: count for code, count in w.refused.items() if code != "queue_full"}
    count = sum(refused.values())
    asked = count + w.mix.requests
    if not count or count < MANY * asked:
        return None
    code = max(refused, key=refused.__getitem__)
    changes = []
    longest = config.model.max_position_embeddings
    if code == "context_length_exceeded" and config.scheduler.max_model_len < longest:
        why = "takes prompts as long as the model can"
        changes = [setting(why, 0.0, max_model_len=longest)]
    return suspect(
        f"{count} of {asked} requests were refused with an error of the client, most with "
        f"{code}. The error's message says what to change.",
        count / asked,
        *changes,
        floor=count / asked,
    )


def unmet_stops(case: Case) -> Suspect | None:
    """Requests have stop strings, and nearly every answer runs to its longest length."""
    w = case.window
    cut = w.cut / max(1, w.ended)
    if w.ended < ENOUGH or w.mix.share("stops") < 0.5 or cut < 0.9:
        return None
    return suspect(
        f"{w.mix.share('stops'):.0%} of the requests have stop strings, but {w.cut} of {w.ended} "
        "answers ran to max_tokens: the model does not write them.",
        cut,
        kind=Kind.CLIENTS,
    )


def few_clients(case: Case) -> Suspect | None:
    """So few requests come at a time that each step reads all weights for one or two."""
    w = case.window
    few = 0 < w.demand <= FEW_CLIENTS and not case.evidence.offline
    more = min(MORE_CLIENTS, case.seats)
    gain = case.estimate.batch_gain(float(more)) if few else 0.0
    if w.share("idle") > 0.5 or w.waiting > 0.5 or gain < GAIN:
        return None
    return suspect(
        f"No more than {w.demand} sequences ran at a time, and each step reads all weights for "
        f"them. {more} requests at a time would give {1 + gain:.1f} times the tokens.",
        (1.0 - w.share("idle")) * saving(gain),
        kind=Kind.DEMAND,
    )
