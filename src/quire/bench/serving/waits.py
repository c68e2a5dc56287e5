"""Latency percentiles, rates and goodput of a load."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from quire.bench.results.report import Row, percentile
from quire.bench.serving.sender import Outcome
from quire.bench.serving.slo import METRICS, PERCENTILES, Slo
from quire.core.errors import QuireError


def sample(
    outcomes: Sequence[Outcome],
    elapsed: float,
    *,
    slo: Slo | None = None,
    metrics: Sequence[str] = METRICS,
    percentiles: Sequence[float] = PERCENTILES,
) -> Row:
    """Return the numbers of one repetition, over the requests that succeeded.

    Args:
        elapsed: seconds that the repetition took.
        slo: adds `goodput`, requests per second that met it, and `slo_attainment`, their share of
            all requests.
        metrics: names from `METRICS`. Each gives a field such as `ttft_ms` with mean and
            percentiles in milliseconds. If some prompts repeat an earlier prefix, `ttft_first_ms`
            covers the other prompts and `ttft_later_ms` these.

    Raises:
        QuireError: no request succeeded; with the first reason.
    """
    good = [o for o in outcomes if o.error is None]
    if not good:
        reason = outcomes[0].error if outcomes else "the load is empty"
        raise QuireError(f"All {len(outcomes)} requests failed: {reason}")
    times = latencies(good)
    row: Row = {f"{name}_ms": spread(times[name], percentiles) for name in metrics}
    if any(o.repeats for o in outcomes) and "ttft" in metrics:
        for name, repeats in (("first", False), ("later", True)):
            part = [o.ttft for o in good if o.ttft is not None and o.repeats == repeats]
            row[f"ttft_{name}_ms"] = spread(part, percentiles)
    tokens, prompt_tokens = (sum(o.output_tokens for o in good), sum(o.prompt_tokens for o in good))
    row |= {
        "output_tok_s": tokens / elapsed,
        "total_tok_s": (tokens + prompt_tokens) / elapsed,
        "requests_s": len(good) / elapsed,
        "prompt_tokens": prompt_tokens / len(good),
        "output_tokens": tokens / len(good),
        "cached_share": sum(o.cached_tokens for o in good) / max(1, prompt_tokens),
        "max_concurrent_requests": most_at_once(outcomes),
        "errors": len(outcomes) - len(good),
    }
    if slo is not None:
        met = sum(meets(o, slo) for o in good)
        row |= {"goodput": met / elapsed, "slo_attainment": met / len(outcomes)}
    return row


def latencies(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Return the seconds of each of `METRICS`."""
    return {
        "ttft": [o.ttft for o in outcomes if o.ttft is not None],
        "tpot": [o.tpot for o in outcomes if o.tpot is not None],
        "itl": [gap for o in outcomes for gap in gaps(o)],
        "e2e": [o.e2e for o in outcomes],
    }


def gaps(outcome: Outcome) -> list[float]:
    """Return the seconds between a request's chunks."""
    return [b - a for a, b in pairwise(outcome.chunk_times)]


def meets(outcome: Outcome, slo: Slo) -> bool:
    """Return whether a successful request met the objective."""
    between = gaps(outcome)
    itl = percentile(between, 0.99) if between else None
    return slo.met(ttft=outcome.ttft, tpot=outcome.tpot, itl=itl, e2e=outcome.e2e)


def most_at_once(outcomes: Sequence[Outcome]) -> int:
    """Return the largest number of requests that were in flight at the same time."""
    # If one ends when another begins, the end sorts first.
    edges = sorted([(o.sent, 1) for o in outcomes] + [(o.end, -1) for o in outcomes])
    most = now = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most


def spread(seconds: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Return mean and percentiles in milliseconds; zeros without values."""
    found = {f"p{p:g}": percentile(seconds, p / 100) * 1e3 for p in percentiles}
    return {"mean": statistics.fmean(seconds) * 1e3 if seconds else 0.0, **found}
