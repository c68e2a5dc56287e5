"""Causes in types, and the limits of memory and products."""

from __future__ import annotations

from typing import NamedTuple

from quire.explain.causes.case import Case, Kind, Suspect, setting, suspect
from quire.explain.report import Bound, Change
from quire.models.cost import product_type

SATURATED: dict[Bound, float] = {"memory": 0.6, "compute": 0.35}
"""An operation is at a limit if it reaches at least this share of it."""


def wide_weights(case: Case) -> Suspect | None:
    """float32 weights: twice the bytes and half the product rate of bfloat16."""
    config = case.config
    if config.dtype != "float32" or config.quantization is not None:
        return None
    kv = "bfloat16" if config.kv_cache_dtype == "float32" else config.kv_cache_dtype
    ratio = case.estimate.model_ratio(dtype="bfloat16", kv_cache_dtype=kv)
    saved, int8 = case.saved(ratio), case.saved(case.estimate.model_ratio(quantization="int8"))
    why = "quarters the bytes of linear weights, at a small loss of accuracy"
    return suspect(
        f"The weights are float32, and the model takes {case.model:.0%} of the time; in bfloat16 "
        f"it would take {ratio:.2f} times as long.",
        saved,
        setting("halves the bytes of weights and KV cache", saved, dtype="bfloat16"),
        setting(why, int8, quantization="int8"),
    )


def memory_bandwidth(case: Case) -> Suspect | None:
    """Ops read at the memory's bandwidth: only fewer bytes help."""
    return _limit(case, "memory")


def compute(case: Case) -> Suspect | None:
    """Products run at the cores' peak rate: only cheaper or fewer ones help."""
    return _limit(case, "compute")


def _limit(case: Case, bound: Bound) -> Suspect | None:
    """Return that operations are at this limit of the machine."""
    at, used, config = _at_limit(case, bound), case.limits, case.config
    if at is None or used is None or config.dtype == "float32":
        return None  # float32 weights are a cause of their own
    changes, stale = _quantizations(case), " (the measured limit is stale)" * used.stale
    if bound == "memory":
        what = f"reading memory at {at.reached:.0%} of its {used.bandwidth_bytes_s / 1e9:.0f} GB/s"
        changes += _narrow_kv(case)
    else:
        product = product_type(config)
        peak = used.flops_s.get(product, 0.0) / 1e9
        what = f"products at {at.reached:.0%} of the {peak:,.0f} GFLOP/s that the cores reach in "
        what += product
    return suspect(
        f"{at.share:.0%} of the time goes to {what}{stale}{at.where}.",
        at.share,
        *changes,
        kind=Kind.LIMIT,
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
    config = case.config
    if config.weight_forms or config.quantization_config:  # already quantized
        return []
    if config.quantization is not None and config.quantization.startswith("int4"):
        return []
    choices = [("int4", "quarters bfloat16's bytes; measure the loss with quire bench quality")]
    if config.quantization is None:
        choices.insert(0, ("int8", "halves bfloat16's bytes, and multiplies faster"))
    return [
        setting(why, case.saved(case.estimate.model_ratio(quantization=name)), quantization=name)
        for name, why in choices
    ]


def _narrow_kv(case: Case) -> list[Change]:
    if case.config.kv_cache_dtype in ("int8", "int4"):
        return []
    ratio = case.estimate.model_ratio(kv_cache_dtype="int8")
    why = "halves the bytes that attention reads"
    return [setting(why, case.saved(ratio), kv_cache_dtype="int8")]
