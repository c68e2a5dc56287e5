"""Causes in types, and the limits of memory and products."""

from __future__ import annotations

from typing import NamedTuple

from quire.explain.causes.case import Case, Kind, Suspect, saving, suspect
from quire.explain.report import Bound, Cause, Change
from quire.models.cost import product_type

SATURATED: dict[Bound, float] = {"memory": 0.6, "compute": 0.35}
"""An operation is at a limit if it reaches at least this share of it."""


def wide_weights(case: Case) -> Suspect | None:
    """float32 weights: twice the bytes and half the product rate of bfloat16."""
    config = case.evidence.config
    if config.dtype != "float32" or config.quantization is not None:
        return None
    kv = "bfloat16" if config.kv_cache_dtype == "float32" else config.kv_cache_dtype
    ratio = case.estimate.model_ratio(dtype="bfloat16", kv_cache_dtype=kv)
    best = case.faster_model(
        "--dtype bfloat16", "halves the bytes of weights and KV cache", ratio, dtype="bfloat16"
    )
    int8 = case.estimate.model_ratio(quantization="int8")
    why = "quarters the bytes of linear weights, at a small loss of accuracy"
    more = case.faster_model("--quantization int8", why, int8, quantization="int8")
    return suspect(
        "wide_weights",
        f"The weights are float32, and the model takes {case.model:.0%} of the time; in bfloat16 "
        f"it would take {ratio:.2f} times as long.",
        saving(best.estimated_gain),
        [best, more],
        Kind.PROVEN,
        model_share=case.model,
        dtype="float32",
    )


def memory_bandwidth(case: Case) -> Suspect | None:
    """Ops read at the memory's bandwidth: only fewer bytes help."""
    return _limit(case, "memory_bandwidth", "memory")


def compute(case: Case) -> Suspect | None:
    """Products run at the cores' peak rate: only cheaper or fewer ones help."""
    return _limit(case, "compute", "compute")


def _limit(case: Case, cause: Cause, bound: Bound) -> Suspect | None:
    """Return that operations are at this limit of the machine."""
    at, used, config = _at_limit(case, bound), case.limits, case.evidence.config
    if at is None or used is None or config.dtype == "float32":
        return None  # float32 weights are a cause of their own
    changes, stale = _quantizations(case), " (the measured limit is stale)" * used.stale
    if bound == "memory":
        name, peak = "bandwidth_gb_s", used.bandwidth_bytes_s / 1e9
        what = f"reading memory at {at.reached:.0%} of its {peak:.0f} GB/s"
        changes += _narrow_kv(case)
    else:
        product = product_type(config)
        name, peak = "peak_gflop_s", used.flops_s.get(product, 0.0) / 1e9
        what = f"products at {at.reached:.0%} of the {peak:,.0f} GFLOP/s that the cores reach in "
        what += product
    return suspect(
        cause,
        f"{at.share:.0%} of the time goes to {what}{stale}{at.where}.",
        at.share,
        changes,
        Kind.LIMIT,
        **{"share_at_limit": at.share, "of_limit": at.reached, name: peak},
    )


class _AtLimit(NamedTuple):
    """The share of the window at a limit, how much of the limit is reached, and the largest op."""

    share: float
    reached: float
    where: str


def _at_limit(case: Case, bound: Bound) -> _AtLimit | None:
    """Return the share from the profiled ops, or else from the bytes and FLOPs of a step."""
    profile = case.evidence.ops
    if profile is None or not profile.ops:
        if not case.estimate.measured:
            return None
        nearer, reached = case.estimate.of_limit()
        if nearer != bound or reached < SATURATED[bound]:
            return None
        return _AtLimit(case.model, min(1.0, reached), "")
    at = [
        line
        for line in case.lines
        if line.bound == bound and (line.of_limit or 0.0) >= SATURATED[bound]
    ]
    share = sum(line.share for line in at)
    if not share:
        return None
    reached = sum((line.of_limit or 0.0) * line.share for line in at) / share
    inside = min(1.0, sum(op.seconds for op in profile.ops) / max(1e-9, profile.model_seconds))
    line = at[0]
    rate = f"{line.gb_s:.0f} GB/s" if bound == "memory" else f"{line.gflop_s:,.0f} GFLOP/s"
    where = f"; most in {line.name} {line.module}".rstrip() + f", at {rate}"
    return _AtLimit(case.model * inside * share, reached, where)


def _quantizations(case: Case) -> list[Change]:
    config = case.evidence.config
    if config.weight_forms or config.quantization_config:  # already quantized
        return []
    if config.quantization is not None and config.quantization.startswith("int4"):
        return []
    choices = [("int4", "quarters bfloat16's bytes; measure the loss with quire bench quality")]
    if config.quantization is None:
        choices.insert(0, ("int8", "halves bfloat16's bytes, and multiplies faster"))
    return [
        case.faster_model(
            f"--quantization {name}",
            why,
            case.estimate.model_ratio(quantization=name),
            quantization=name,
        )
        for name, why in choices
    ]


def _narrow_kv(case: Case) -> list[Change]:
    if case.evidence.config.kv_cache_dtype in ("int8", "int4"):
        return []
    ratio = case.estimate.model_ratio(kv_cache_dtype="int8")
    why = "halves the bytes that attention reads"
    return [case.faster_model("--kv-cache-dtype int8", why, ratio, kv_cache_dtype="int8")]
