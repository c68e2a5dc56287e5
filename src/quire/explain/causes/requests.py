"""Causes in what requests ask for; mostly the clients can change them."""

from __future__ import annotations

from quire.explain.causes.cache import blocks_are_full
from quire.explain.causes.case import WORTH, Case, Kind, Suspect, advice, setting, suspect
from quire.explain.evidence import QUIET

OFTEN = 0.3
"""Share of the requests that must ask for something before it is a cause."""
WEIGHTS = {"logprobs": 2.0, "structures": 3.0, "penalties": 2.0, "edits": 1.0}
"""Time of sampling a row with these, relative to a plain one."""


def logprobs(case: Case) -> Suspect | None:
    """Requests ask for log-probabilities of many tokens."""
    mix = case.window.mix
    if mix.share("logprobs") < OFTEN:
        return None
    each = mix.top_logprobs / max(1, mix.logprobs)
    lost = min(0.9, _sampling(case, "logprobs") + _front(case))
    return suspect(
        f"{mix.share('logprobs'):.0%} of the requests ask for log-probabilities, of {each:.0f} "
        f"tokens per position: choosing, sending and writing them takes about {lost:.0%} of the "
        "time.",
        lost,
        advice("logprobs=0 in requests", "reports the chosen tokens only", lost),
    )


def prompt_logprobs(case: Case) -> Suspect | None:
    """Requests ask for log-probabilities of their prompts, which need logits of every token."""
    mix = case.window.mix
    lost = case.estimate.prompt_share * 0.5 + 0.5 * case.window.share("sample")
    if mix.share("prompt_logprobs") < OFTEN:
        return None
    return suspect(
        f"{mix.share('prompt_logprobs'):.0%} of the requests ask for log-probabilities of their "
        "prompts: each prompt token needs logits of the whole vocabulary, and no prefix is reused.",
        lost,
        advice("no prompt_logprobs in requests", "computes logits of one row", lost),
    )


def penalties(case: Case) -> Suspect | None:
    """Penalties make sampling slow."""
    text = "have penalties, which change logits before each token is drawn"
    return _slow_sampling(case, "penalties", text)


def token_edits(case: Case) -> Suspect | None:
    """logit_bias, bad_words or allowed tokens make sampling slow."""
    text = "have logit_bias, bad_words or allowed tokens, which change logits before each draw"
    return _slow_sampling(case, "edits", text)


def structures(case: Case) -> Suspect | None:
    """Structured output takes long: masks of each token, or to compile what is asked for."""
    w, seats = case.window, case.seats
    text, compiled = "have structured output, whose masks are computed for each token", 0.0
    free = w.running + 1.0 <= seats and not blocks_are_full(w)
    if free and w.waiting >= 0.5 and w.adapters <= case.args.max_loras:
        # What else could a request wait for?
        compiled = min(w.share("idle"), w.waiting / (w.running + w.waiting))
        text += f", and {w.waiting:.1f} wait for theirs to be compiled although seats are free"
    return _slow_sampling(case, "structures", text, compiled)


def adapter_seats(case: Case) -> Suspect | None:
    """Requests wait because a step computes with few adapters."""
    e, w = case.evidence, case.window
    seats = case.seats
    if not e.args.enable_lora or w.adapters <= e.args.max_loras or w.waiting < 0.2:
        return None
    if w.running >= 0.95 * seats:
        return None
    wanted = w.adapters
    # No figure: a step with more adapters multiplies by all of them. Seen: −9 to +71 % tokens/s.
    why = f"computes with {wanted} adapters in one step, so that fewer requests wait"
    return suspect(
        f"Sequences want {wanted} adapters and a step takes {e.args.max_loras}: {w.waiting:.1f} "
        f"wait although {seats - w.running:.0f} of {seats} seats are free.",
        WORTH,
        setting(why, 0.0, max_loras=wanted),
        floor=WORTH,
    )


def adapters(case: Case) -> Suspect | None:
    """Products of adapters take long."""
    profile = case.evidence.ops
    if profile is None:
        return None
    seconds = sum(op.seconds for op in profile.ops if "lora" in op.name)
    share = case.model * min(1.0, seconds / max(1e-9, profile.model_seconds))
    return suspect(
        f"{share:.0%} of the time goes to the products of LoRA adapters.",
        share,
        advice("a merged model, or a lower rank", "has no products of adapters", share),
        kind=Kind.WASTE,
    )


def salted_prefixes(case: Case) -> Suspect | None:
    """Prompts would share prefixes, but their cache_salt differs."""
    return _repeated(
        case,
        "salted_tokens",
        "repeated an earlier prompt with another cache_salt, and were computed again.",
        "one cache_salt per group of clients",
        "lets requests that trust each other share the prefix cache",
    )


def shifted_prefixes(case: Case) -> Suspect | None:
    """Prompts have the same text behind a beginning that changes."""
    return _repeated(
        case,
        "shifted_tokens",
        "were the same as in earlier prompts, but behind another beginning, so the prefix cache "
        "could not serve them.",
        "the changing part (a date, an id) at the prompt's end",
        "makes the rest a prefix that is computed once",
    )


def _repeated(case: Case, counter: str, text: str, fix: str, why: str) -> Suspect | None:
    """Return that prompts repeat text without a common prefix; `counter`: of `RequestMix`."""
    w = case.window
    tokens = getattr(w.mix, counter)
    missed = min(tokens, w.prompt_tokens - w.cached_tokens)
    lost = case.estimate.cached_share(missed) if missed > 0 else 0.0
    share = min(1.0, tokens / max(1, w.prompt_tokens))  # arrivals are counted earlier
    return suspect(
        f"{share:.0%} of the prompt tokens {text}",
        lost,
        advice(fix, why, lost),
    )


def _slow_sampling(case: Case, kind: str, text: str, floor: float = 0.0) -> Suspect | None:
    share = case.window.mix.share(kind)
    lost = max(floor, _sampling(case, kind))
    if share < OFTEN:
        return None
    return suspect(
        f"{share:.0%} of the requests {text}; that takes about {lost:.0%} of the time.",
        lost,
        advice(f"fewer requests with {kind}", "samples plain rows", lost),
    )


def _sampling(case: Case, kind: str) -> float:
    """Return the share of the window that sampling takes for requests of this kind."""
    mix = case.window.mix
    extra = {name: mix.share(name) * weight for name, weight in WEIGHTS.items()}
    return case.window.share("sample") * extra[kind] / (1.0 + sum(extra.values()))


def _front(case: Case) -> float:
    """Return the share of the window that writing and reading large answers takes from the core:
    its first thread waits for a CPU while the front end and clients write and read them."""
    e, host = case.evidence, case.host
    if e.offline:
        return 0.7 * case.window.share("detokenize")
    known = host is not None and host.waits and e.others <= QUIET
    return min(0.5, host.waits[0] / host.seconds) if host is not None and known else 0.0
