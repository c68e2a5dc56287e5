"""Causes in the kernels that compute the model."""

from __future__ import annotations

from quire.core.cost import together
from quire.explain.causes.case import CONFIDENCE, Case, Kind, Suspect, change, saving, suspect
from quire.explain.limits import profile_of
from quire.explain.report import START, THROUGHPUT, Change, Finding
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
    best = case.faster_model("--ops auto", "computes with native kernels", ratio, ops="auto")
    return suspect(
        "reference_ops",
        f"The model runs in plain torch (--ops reference), which takes {case.model:.0%} of the "
        f"time; native kernels usually take {ratio:.2f} times as long.",
        saving(best.estimated_gain),
        [best],
        Kind.PROVEN,
        model_share=case.model,
        usual_ratio=ratio,
    )


def forced_isa(case: Case) -> Suspect | None:
    """QUIRE_CPU_ISA forces less than the machine can do."""
    platform = case.evidence.platform
    if platform is None or not platform.isa or platform.isa.startswith("torch"):
        return None
    if not platform.best_isa or platform.isa == platform.best_isa:
        return None
    ratio = case.usual() if case.estimate.measured else WORST_ISA
    best = case.faster_model(
        "unset QUIRE_CPU_ISA", f"computes with {platform.best_isa}, which this machine has", ratio
    )
    return suspect(
        "forced_isa",
        f"The kernels use {platform.isa}, but this machine has {platform.best_isa} (QUIRE_CPU_ISA "
        f"is set), which usually saves {1 - ratio:.0%} of the model's time.",
        saving(best.estimated_gain),
        [best],
        Kind.PROVEN,
        isa=platform.isa,
        best_isa=platform.best_isa,
    )


def untuned_kernels(case: Case) -> Suspect | None:
    """Products are slow, and their tuning was found on another machine or for another load."""
    e, platform, profile = case.evidence, case.evidence.platform, case.evidence.ops
    if platform is None or not platform.tuned or platform.isa != platform.best_isa:
        return None
    if profile is None or e.limits is None or not e.limits.reads:
        return None
    product = product_type(e.config)
    known = profile_of(e.limits, min(e.config.num_threads, e.cores))
    reading = known.weight_bytes_per_second.get(product, known.bytes_per_second)
    rate, overlap = known.flops_of(product, e.config.dtype), known.overlaps.get(product, ())
    ops = [op for op in profile.ops if op.name == "linear" and op.seconds >= SHORT * op.calls]
    seconds = sum(op.seconds for op in ops) * (1.0 - case.waited)
    needed = sum(together(op.nbytes / reading, op.flops / rate, overlap) for op in ops)
    if not ops or needed >= MISTUNED * seconds:
        return None
    inside = min(1.0, seconds / max(1e-9, profile.model_seconds))
    saved = case.model * inside * (1.0 - needed / (TUNED * seconds))
    return suspect(
        "untuned_kernels",
        f"Products reach {needed / seconds:.0%} of the rates that kernels reached when this "
        f"machine was measured, and take {case.model * inside:.0%} of the time. The file of quire "
        f"tune kernels has values for {platform.tuned} shapes, which do not fit.",
        saved,
        [change(f"quire tune kernels --model {e.args.model}", "finds values that do", saved)],
        Kind.PROVEN,
        tuned_shapes=platform.tuned,
        reached=needed / seconds,
    )


def decoded_weights(case: Case) -> Suspect | None:
    """Weights in 8-bit floats, which kernels without instructions for them decode slowly."""
    e, platform = case.evidence, case.evidence.platform
    if (
        platform is None
        or platform.isa != "avx2"
        or not (e.config.quantization or "").startswith("fp8")
    ):
        return None
    ratio = case.estimate.model_ratio(quantization="int8")
    if e.args.quantization is not None:
        change = case.faster_model(
            "--quantization int8", "has as many bytes, and multiplies integers", ratio,
            quantization="int8",
        )  # fmt: skip
    else:
        change = case.faster_model("a checkpoint in int8", "multiplies integers", ratio)
    return suspect(
        "decoded_weights",
        f"The weights are {e.config.quantization}, which {platform.isa} kernels decode for each "
        f"step. The model takes {case.model:.0%} of the time; in int8 it usually takes {ratio:.2f} "
        "times as long.",
        saving(change.estimated_gain),
        [change],
        Kind.PROVEN,
        quantization=e.config.quantization or "",
        isa=platform.isa,
        model_share=case.model,
    )


def python_ops(case: Case) -> Suspect | None:
    """Ops without a native kernel run in Python."""
    platform, profile = case.evidence.platform, case.evidence.ops
    if platform is None or platform.isa.startswith("torch") or profile is None:
        return None
    slow = [op for op in profile.ops if op.isa == "torch" or op.name in platform.python_ops]
    inside = sum(op.seconds for op in slow) / max(1e-9, profile.model_seconds)
    share = case.model * min(1.0, inside)
    names = ", ".join(sorted({op.name for op in slow}))
    return suspect(
        "python_ops",
        f"{share:.0%} of the time goes to operations that have no native kernel: {names}.",
        share,
        [
            Change(
                "quire bug-report",
                f"report the model: {names} should have a kernel",
                THROUGHPUT,
                0.0,
            )
        ],
        operations=names,
        python_share=share,
    )


def cold_start(case: Case) -> Suspect | None:
    """Each start packs the weights again, because their packed form is not kept."""
    e, platform = case.evidence, case.evidence.platform
    if platform is None or not platform.unkept or platform.loading < COLD:
        return None
    known = e.config.pack_cache_bytes
    flag = "a QUIRE_CACHE_DIR that lasts, on a disk with room"
    fields: dict[str, bool | int | float | str | None] = {}
    if platform.unkept > known:
        most = max(20, -(-2 * platform.unkept // 2**30))  # at least the default
        flag, fields = f"--pack-cache-bytes {most}GiB", {"pack_cache_bytes": most * 2**30}
    best = Change(flag, "maps the packed weights that an earlier start kept", START, 0.0, fields)
    text = (
        f"The start took {platform.loading:.0f} s to read and pack {platform.unkept / 1e9:.2f} GB "
        f"of weights, and the next one will, too: their packed form is not kept (--pack-cache-bytes"
        f" is {known:,}). The running engine loses nothing."
    )
    figures: dict[str, float | int | str] = {
        "loading_s": round(platform.loading, 2),
        "weight_bytes": platform.unkept,
    }
    finding = Finding("cold_start", text, 0.0, figures, False, CONFIDENCE[Kind.START])
    return Suspect(finding, [best], Kind.START, floor=1e-9)  # which keeps a change without a figure
