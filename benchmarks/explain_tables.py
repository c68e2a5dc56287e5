"""Tables of docs/explain.md, from the rows of `explain_served`."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks.explain_healthy import HEALTHY_LOADS
from benchmarks.explain_loads import FAULTS

LOADED = 0.5
"""CPUs that other programs use from which a window counts as one beside other load."""
DECIDED = 0.15
"""A proof whose repetitions differ by more from their median, as speeds, decides nothing."""


def decided(row: dict[str, Any]) -> bool:
    """Return whether a proof's repetitions agree; older rows have only the load beside them."""
    if "pairs" not in row:
        return bool(row.get("others", 0.0) < LOADED)
    return bool(row["spread"] <= DECIDED * (1.0 + row["proven_gain"]))


def tables(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield all tables."""
    named = [row for row in rows if "first" in row]
    yield from (*table(named), "", *rates(named), "")
    yield from gains([row for row in rows if row.get("uncertainty") is not None])


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the confusion table: what was named first for each fault, beside load or not."""
    yield f"| fault | right | first verdicts | beside {LOADED} busy CPUs or more |"
    yield "|---|---|---|---|"
    for name, fault in (FAULTS | HEALTHY_LOADS).items():
        mine = [row for row in rows if row["fault"] == name]
        if not mine:
            continue
        right = "no cause" if name in HEALTHY_LOADS else f"`{fault.causes[0]}`"
        cells = [_verdicts(row for row in mine if _loaded(row) is busy) for busy in (False, True)]
        yield f"| {name} | {right} | {' | '.join(cells)} |"


def _loaded(row: dict[str, Any]) -> bool:
    return bool((row.get("neighbours") or 0.0) >= LOADED)


def _verdicts(rows: Iterator[dict[str, Any]]) -> str:
    counts = Counter(row["causes"][0] for row in rows)
    return ", ".join(f"{cause} {n}" if n > 1 else cause for cause, n in counts.most_common())


def rates(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield how many rows name the right cause first, and among the first three."""
    for busy in (False, True):
        for healthy in (False, True):
            some = [
                r for r in rows if _loaded(r) is busy and (r["fault"] in HEALTHY_LOADS) is healthy
            ]
            if some:
                where = f"beside {LOADED} busy CPUs or more" if busy else "else"
                first, third = (sum(r[key] for r in some) for key in ("first", "in_three"))
                if healthy:
                    yield f"healthy, {where}: {first} of {len(some)} without a fault"
                else:
                    yield f"faults, {where}: {first} of {len(some)} first, {third} in three"


def gains(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of estimated and proven gains, and how far they are apart.

    A proof that decides nothing is left out.
    """
    yield "| fault | cause | first change | metric | estimated | measured |"
    yield "|---|---|---|---|---|---|"
    proven = [row for row in rows if decided(row)]
    for row in proven:
        seen, told = row["proven_gain"], row["estimated_gain"]
        cause = row["cause"] if "cause" in row else row["causes"][0]
        estimate = f"{told:+.0%} ± {100 * told * row['uncertainty']:.0f}" if told else "more"
        if row.get("at_least"):
            estimate = f"at least {told:+.0%}"
        yield (
            f"| {row['fault']} | `{cause}` | `{row['flag']}` | {row['metric']} | {estimate} | "
            f"{seen:+.0%} ± {100 * row['spread']:.0f} |"
        )
    yield from ("", *_errors([row for row in proven if row["estimated_gain"]]))
    if unsure := [row["fault"] for row in rows if not decided(row)]:
        yield f"undecided: {', '.join(unsure)}"


def _errors(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield how far estimates are from the measured gains; those without a figure are left out."""
    if not rows:
        return
    ends = [row for row in rows if row.get("at_least")]
    hold = sum(row["proven_gain"] >= row["estimated_gain"] for row in ends)
    medians = [
        statistics.median(
            abs(row["estimated_gain"] / (row["proven_gain"] or 1e-9) - 1.0) for row in some
        )
        for some in ([row for row in rows if row not in ends] or rows, rows)
    ]
    above = sum(row["estimated_gain"] > 2.0 * max(0.0, row["proven_gain"]) for row in rows)
    yield (
        f"median error {medians[0]:.0%} of {len(rows) - len(ends)} estimates, {medians[1]:.0%} "
        f"with {len(ends)} lower ends, of which {hold} hold; {above} of {len(rows)} above twice "
        "the measured gain"
    )
