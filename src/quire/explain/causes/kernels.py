"""Causes in the kernels that compute the model."""

from __future__ import annotations

from typing import NamedTuple

from quire.core.cost import together
from quire.explain.causes.case import WORTH, Case, Kind, Suspect, advice, setting, suspect
from quire.explain.limits import profile_of
from quire.explain.report import START, Change
from quire.models.cost import product_type

MISTUNED, TUNED = 0.35, 0.6
"""Shares of the measured rates below which products are slow because of their tuning, and which
they usually reach: 0.55 to 0.8 in healthy engines."""
COLD = 1.0
"""Seconds of packing weights from which a start is slow."""
SHORT = 5e-5
"""Seconds of a product of which much may be the call itself."""
WORST_ISA = 0.5
"""Usual time with the best instruction set, relative to a lesser one."""


def reference_ops(case: Case) -> Suspect | None:
    """The model runs in plain torch on a CPU."""
    e, platform = case.evidence, case.evidence.platform
    torch = platform is not None and platform.isa.startswith("torch")
    if e.config.device != "cpu" or not (torch or e.args.ops == "reference"):
        return None
    ratio = case.usual()
    return suspect(
        f"The model runs in plain torch (--ops reference), which takes {case.model:.0%} of the "
        f"time; native kernels usually take {ratio:.2f} times as long.",
        case.saved(ratio),
        setting("computes with native kernels", case.saved(ratio), ops="auto"),
    )


def forced_isa(case: Case) -> Suspect | None:
    """QUIRE_CPU_ISA forces less than the machine can do."""
    platform = case.evidence.platform
    if platform is None or not platform.isa or platform.isa.startswith("torch"):
        return None
    if not platform.best_isa or platform.isa == platform.best_isa:
        return None
    ratio = case.usual() if case.estimate.measured else WORST_ISA
    why = f"computes with {platform.best_isa}, which this machine has"
    return suspect(
        f"The kernels use {platform.isa}, but this machine has {platform.best_isa} (QUIRE_CPU_ISA "
        f"is set), which usually saves {1 - ratio:.0%} of the model's time.",
        case.saved(ratio),
        advice("unset QUIRE_CPU_ISA", why, case.saved(ratio)),
    )


class _Products(NamedTuple):
    """What share of the measured rates products reach, their share of the window, and the share
    that usual ones would save."""

    reached: float
    share: float
    saved: float


def untuned_kernels(case: Case) -> Suspect | None:
    """Products are slow, and their tuning was found on another machine or for another load."""
    platform, slow = case.evidence.platform, _slow_products(case)
    if slow is None or platform is None or not platform.tuned:
        return None
    return suspect(
        f"{_reach(slow)} The file of quire tune kernels has values for {platform.tuned} shapes, "
        "which do not fit.",
        slow.saved,
        advice(f"quire tune kernels --model {case.args.model}", "finds values that do", slow.saved),
    )


def slow_kernels(case: Case) -> Suspect | None:
    """Products are slow although their threads have cores, and no setting explains it."""
    platform, slow = case.evidence.platform, _slow_products(case)
    if slow is None or platform is None or platform.tuned or case.config.enforce_eager:
        return None
    each = sorted(case.lines, key=lambda line: -line.share)[:1]
    where = f" Most time goes to {each[0].name} {each[0].module}." if each else ""
    return suspect(
        f"{_reach(slow)} Their threads have cores. Something outside of Quire slows these cores or "
        f"the memory: other programs that read memory, a lower clock, heat.{where}",
        slow.saved,
        advice("quire bench kernels, on an idle machine", "shows whether kernels are slow alone"),
        kind=Kind.WASTE,
        floor=WORTH,
    )


def _reach(slow: _Products) -> str:
    return (
        f"Products reach {slow.reached:.0%} of the rates that kernels reached when this machine "
        f"was measured, and take {slow.share:.0%} of the time."
    )


def _slow_products(case: Case) -> _Products | None:
    """Return what products reach if it is much less than usual; None if not, or if unknown."""
    e, platform, profile = case.evidence, case.evidence.platform, case.evidence.ops
    if platform is None or platform.isa != platform.best_isa or not platform.isa:
        return None
    if profile is None or e.limits is None or not e.limits.reads:
        return None
    product = product_type(e.config)
    known = profile_of(e.limits, min(e.config.num_threads, e.cores))
    reading = known.weight_bytes_per_second.get(product, known.bytes_per_second)
    rate, overlap = known.flops_of(product, e.config.dtype), known.overlaps.get(product, ())
    ops = [op for op in profile.ops if op.name == "linear" and op.seconds >= SHORT * op.calls]
    seconds = sum(op.seconds for op in ops) * (1.0 - case.waited)
    seconds *= 1.0 - case.around.stopped
    needed = sum(together(op.nbytes / reading, op.flops / rate, overlap) for op in ops)
    if not ops or needed >= MISTUNED * seconds:
        return None
    share = case.model * min(1.0, seconds / max(1e-9, profile.model_seconds))
    reached = needed / seconds
    return _Products(reached, share, share * (1.0 - reached / TUNED))


def decoded_weights(case: Case) -> Suspect | None:
    """Weights in 8-bit floats, which kernels without instructions for them decode slowly."""
    e, platform = case.evidence, case.evidence.platform
    decoded = (e.config.quantization or "").startswith("fp8")
    if platform is None or platform.isa != "avx2" or not decoded:
        return None
    ratio = case.estimate.model_ratio(quantization="int8")
    best = advice("a checkpoint in int8", "multiplies integers", case.saved(ratio))
    if e.args.quantization is not None:
        why = "has as many bytes, and multiplies integers"
        best = setting(why, case.saved(ratio), quantization="int8")
    return suspect(
        f"The weights are {e.config.quantization}, which {platform.isa} kernels decode for each "
        f"step. The model takes {case.model:.0%} of the time; in int8 it usually takes {ratio:.2f} "
        "times as long.",
        case.saved(ratio),
        best,
    )


def python_ops(case: Case) -> Suspect | None:
    """Ops without a native kernel run in Python."""
    platform, profile = case.evidence.platform, case.evidence.ops
    if platform is None or platform.isa.startswith("torch") or profile is None:
        return None
    slow = [op for op in profile.ops if op.isa == "torch"]
    inside = sum(op.seconds for op in slow) / max(1e-9, profile.model_seconds)
    share = case.model * min(1.0, inside)
    names = ", ".join(sorted({op.name for op in slow}))
    return suspect(
        f"{share:.0%} of the time goes to operations that have no native kernel: {names}.",
        share,
        advice("quire bug-report", f"report the model: {names} should have a kernel"),
        kind=Kind.WASTE,
    )


def cold_start(case: Case) -> Suspect | None:
    """Each start packs the weights again, because their packed form is not kept."""
    e, platform = case.evidence, case.evidence.platform
    if platform is None or not platform.unkept or platform.loading < COLD:
        return None
    known, why = e.config.pack_cache_bytes, "maps the packed weights that an earlier start kept"
    best = Change("a QUIRE_CACHE_DIR that lasts, on a disk with room", why, START, 0.0)
    if platform.unkept > known:
        most = max(20, -(-2 * platform.unkept // 2**30))  # at least the default
        best = setting(why, 0.0, START, pack_cache_bytes=most * 2**30)
    text = (
        f"The start took {platform.loading:.0f} s to read and pack {platform.unkept / 1e9:.2f} GB "
        f"of weights, and the next one will, too: their packed form is not kept (--pack-cache-bytes"
        f" is {known:,}). The running engine loses nothing."
    )
    # The floor keeps a change without a figure.
    return Suspect(text, 0.0, [best], Kind.START, floor=1e-9)
