"""The report as text: time split, verdict, changes, operations, notes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from quire.explain.evidence import CORE, OFFLINE
from quire.explain.report import Change, LimitsUsed, OpLine, Proof, Report
from quire.metrics.times import PARTS

WIDTH = 96
BAR = 32
SHOWN = 0.002
"""Parts with a smaller share are left out."""
MOST_LINES = 8
MOST_FLAG = 36
"""Longer flags shift the text behind them."""


def render(report: Report) -> str:
    """Return the report as text of at most `WIDTH` columns."""
    sections = (
        _head(report), _split(report), _verdict(report), _changes(report), _proofs(report),
        _operations(report), _experts(report), _notes(report),
    )  # fmt: skip
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section))) + "\n"


def _head(report: Report) -> Iterator[str]:
    rates = report.rates
    yield (
        f"quire explain · {report.window_s:.1f} s · {rates['output_tok_s']:,.1f} tok/s out, "
        f"{rates['prompt_tok_s']:,.1f} in · {rates['running']:.1f} running, "
        f"{rates['waiting']:.1f} waiting · KV cache {rates['kv_share']:.0%}"
    )


def _split(report: Report) -> Iterator[str]:
    yield "Where the core's time goes"
    names = OFFLINE if report.offline else CORE
    core = {name: report.split.get(name, 0.0) for name in names}
    yield from _bars(core)
    if report.thread:
        yield "  its thread " + ", ".join(f"{n} {s:.0%}" for n, s in report.thread.items())
    front = {n: s for n, s in report.split.items() if n not in core and s > SHOWN}
    if front:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in front.items())
        yield f"  in other threads, of one core each: {shares}"


def _bars(shares: dict[str, float]) -> Iterator[str]:
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        if share >= SHOWN:
            text = textwrap.shorten(PARTS[name], WIDTH - BAR - 23, placeholder=" …")
            yield f"  {name:<10} {_bar(share):<{BAR}} {share:>6.1%}  {text}"


def _bar(share: float) -> str:
    """Return a bar, drawn to an eighth of a character."""
    eighths = round(min(1.0, share) * BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _verdict(report: Report) -> Iterator[str]:
    verdict = report.verdict
    yield f"Verdict: {verdict.cause}" + (
        f" ({verdict.share:.0%} of the time, confidence {verdict.confidence:.0%})"
        * bool(verdict.share)
    )
    if verdict.cause != "none" and not any(f.fault for f in (verdict, *report.causes)):
        yield "  Nothing is amiss; this limits a healthy engine, too."
    yield from _wrapped(verdict.text, "  ")
    for finding in report.causes:
        if finding is not verdict and finding != verdict:
            yield from _wrapped(
                f"also {finding.cause} ({finding.share:.0%}): {finding.text}", "  ", "    "
            )


def _changes(report: Report) -> Iterator[str]:
    if not report.changes:
        return
    yield "Changes; each estimate is for this change alone"
    width = min(MOST_FLAG, max(len(change.flag) for change in report.changes))
    for change in report.changes:
        gain = _gain(change)
        spread = f" ± {100 * change.estimated_gain * change.uncertainty:.0f}"
        spread = "" if change.at_least else spread
        how = "simulated" if change.simulated else "estimated"
        expected = f"{gain:>6}{spread} {change.metric}, {how}: " if change.estimated_gain else ""
        lead = f"  {change.flag:<{width}}  {expected}"
        yield from _wrapped(change.why, lead, " " * (width + 4))


def _gain(of: Change | Proof) -> str:
    return f"{'at least ' if of.at_least else ''}{of.estimated_gain:+.0%}"


def _proofs(report: Report) -> Iterator[str]:
    if not report.proofs:
        return
    yield "Measured here: A and B in turns"
    for proof in report.proofs:
        told = f" (estimated {_gain(proof)})" if proof.estimated_gain else ""
        yield (
            f"  {proof.flag}: {proof.before:,.1f} → {proof.after:,.1f} {proof.metric}, "
            f"{proof.proven_gain:+.0%} ± {proof.spread:.0%}{told}"
        )


def _operations(report: Report) -> Iterator[str]:
    if not report.ops or report.limits is None:
        return
    yield f"Operations of the model ({_limits(report.limits, report.ops)})"
    yield f"  {'share':>6} {'GB/s':>7} {'GFLOP/s':>8} {'op/byte':>8}  {'of limit':<16} operation"
    for line in report.ops[:MOST_LINES]:
        yield f"  {line.share:>6.1%} {line.gb_s:>7.1f} {line.gflop_s:>8.1f} " + _against(line)
    rest = report.ops[MOST_LINES:]
    if rest:
        yield f"  {sum(line.share for line in rest):>6.1%} in {len(rest)} more"


def _experts(report: Report) -> Iterator[str]:
    if not report.experts:
        return
    uneven = max(report.experts, key=lambda layer: layer.peak)
    used = sum(layer.used for layer in report.experts) / len(report.experts)
    yield from _wrapped(
        f"Experts: a step reads {used:.1f} of {uneven.experts} per layer. Routing is least even in "
        f"{uneven.module}, where expert {uneven.busiest} gets {uneven.peak:.1f} times the mean.",
        "",
    )


def _against(line: OpLine) -> str:
    reached = "" if line.of_limit is None else f"{line.of_limit:.0%} {line.bound}"
    return f"{line.intensity:>8.1f}  {reached:<16} {line.name} {line.module}"[: WIDTH - 26]


def _limits(limits: LimitsUsed, lines: list[OpLine]) -> str:
    used = {line.dtype for line in lines if line.gflop_s}
    peaks = {dtype: f for dtype, f in limits.flops_s.items() if f and dtype in used}
    products = ", ".join(f"{dtype} {f / 1e9:,.0f}" for dtype, f in peaks.items())
    how = "limits measured" if limits.source == "measured" else "limits: the best seen here"
    how += ", stale" if limits.stale else ""
    return f"{how}: {limits.bandwidth_bytes_s / 1e9:.1f} GB/s; GFLOP/s: {products or 'none'}"


def _notes(report: Report) -> Iterator[str]:
    for note in report.notes:
        yield from _wrapped(note, "note: ", "      ")


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    following = first if rest is None else rest
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=following, break_on_hyphens=False
    )
