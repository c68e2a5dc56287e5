"""The device of the model, its memory budget, and weights outside of it."""

from __future__ import annotations

from dataclasses import replace

from quire.core.config import (
    ON_TORCH,
    AttentionPackage,
    DeviceType,
    EngineConfig,
    OpsProvider,
    PromptOps,
)
from quire.core.errors import ConfigError
from quire.core.extras import installed, require
from quire.models.weights.offload import last_weights, layer_weights
from quire.resolve.arguments import EngineArgs
from quire.resolve.capture import compile_backend
from quire.resolve.flag_values import value_error
from quire.system import env
from quire.system.gpu import first_gpu, why_unused
from quire.system.gpu_facts import AMD_SHARED, LEAST_CAPABILITY, Gpu
from quire.system.hardware import AVAILABLE_SHARE, Hardware

GIB = 2**30


def resolve_device(
    args: EngineArgs, hardware: Hardware, notes: list[str]
) -> tuple[EngineArgs, DeviceType]:
    """Return the arguments with the device's kernels, and the device.

    Raises:
        ConfigError: the device does not exist, cannot do what the flags ask for, or needs torch.
    """
    named = args.device in ("cuda", "mps")
    if named or args.ops in ON_TORCH:
        flag = f"--device {args.device}" if named else f"--ops {args.ops}"
        require("torch", flag, flag.split(maxsplit=1)[0].removeprefix("--"))
    if args.ops == "triton":
        require("triton", "--ops triton", "ops")
    gpu, ranks = hardware.gpu, args.tensor_parallel_size
    staged = args.pipeline_parallel_size > 1
    for_cpus = gpu is None or args.ops == "cpu" or staged or ranks > gpu.count
    if gpu is not None and gpu.kind != "cuda" and args.device == "auto":
        for_cpus = True
        notes.append(
            f"device cpu: {gpu.name} is not used, because Quire has never run on {gpu.maker}'s "
            f"GPUs; --device {gpu.device} tries it."
        )
    if args.device == "cpu" or (args.device == "auto" and for_cpus):
        there = first_gpu() if args.device == "auto" and gpu is None else None
        if there and (why := why_unused(there)):
            notes.append(f"device cpu: {there.name} is not used, because {why}.")
        return args, "cpu"
    if gpu is None or gpu.device != args.device != "auto":
        fix = "Install torch for CUDA and a driver for its version, or leave --device out."
        why = "the simulated machine has no GPU"
        if gpu is not None:
            why, fix = f"the GPU is {gpu.name}", f"Use --device {gpu.device}, or leave it out."
        elif args.device == "mps":
            why, fix = "this machine has no GPU of Apple's", "Leave --device out."
        else:
            why = why_unused(first_gpu()) or why
        raise value_error(args, "device", f"{why}.", fix)
    if args.ops == "cpu":
        why = "ops is 'cpu', and the native kernels run on CPUs."
        raise value_error(args, "device", why, "Leave --ops out, or use --device cpu.")
    ops, why = _metal_ops(args) if gpu.kind == "mps" else _gpu_ops(args, gpu)
    untried = "" if gpu.kind == "cuda" else f" Quire has never run on {gpu.maker}'s GPUs."
    notes.append(f"device {gpu.device}: {gpu.name}, by {why}.{untried}")
    return replace(args, ops=ops), gpu.device


def _metal_ops(args: EngineArgs) -> tuple[OpsProvider, str]:
    """Return what `_gpu_ops` does, for an Apple GPU."""
    for field, wrong, why in (
        ("ops", args.ops == "triton", "Triton has no kernels for Apple's GPUs."),
        ("cpu_offload_gb", bool(args.cpu_offload_gb), "an Apple GPU shares the CPU's memory."),
        ("kv_cache_dtype", args.kv_cache_dtype.startswith("fp8"),
         "Apple's GPUs have no 8-bit floats; int8 takes as little memory."),
    ):  # fmt: skip
        if wrong:
            raise value_error(args, field, why)
    return "reference", "the reference ops, in plain torch"


def _gpu_ops(args: EngineArgs, gpu: Gpu) -> tuple[OpsProvider, str]:
    """Return the provider of a GPU's ops, and what the start log says of it."""
    if args.ops == "reference":
        return "reference", "the reference ops, in plain torch"
    if args.cpu_offload_gb:
        if args.ops == "triton":
            raise ConfigError(
                "Triton's kernels do not read weights that lie in host memory.",
                fix="Use --ops reference, or leave --cpu-offload-gb out.",
                param="ops",
            )
        return "reference", "the reference ops in plain torch, because of --cpu-offload-gb"
    if args.ops == "auto" and env.triton_interprets():
        return "reference", "the reference ops in plain torch, because of TRITON_INTERPRET"
    if args.ops == "auto" and not installed("triton"):
        return "reference", "the reference ops in plain torch, because triton is not installed"
    if args.ops == "auto" and gpu.kind == "rocm" and gpu.arch not in AMD_SHARED:
        return "reference", (
            "the reference ops in plain torch, because Triton's kernels are compiled for "
            f"{', '.join(AMD_SHARED)} alone"
        )
    if args.ops == "auto" and (0, 0) < gpu.capability < LEAST_CAPABILITY:
        found, least = (".".join(map(str, each)) for each in (gpu.capability, LEAST_CAPABILITY))
        return "reference", (
            f"the reference ops in plain torch, because its compute capability is {found} and "
            f"Triton's kernels need {least}"
        )
    return "triton", "Triton's kernels"


def prompt_ops(args: EngineArgs, device: DeviceType, notes: list[str]) -> PromptOps:
    """Return what computes prompts in place of the provider's ops, with a note on each.

    Raises:
        ConfigError: a flag is wrong, or a package is not installed.
    """
    return PromptOps(compile_backend(args, notes), attention_package(args, device, notes))


_PACKAGES: dict[str, tuple[AttentionPackage, str]] = {
    "FLASH_ATTN": ("flash_attn", "flash-attn"),
    "FLASHINFER": ("flashinfer", "flashinfer-python"),
}
"""vLLM's name of a backend → module, and its package."""


def attention_package(
    args: EngineArgs, device: DeviceType, notes: list[str]
) -> AttentionPackage | None:
    """Return what computes the attention of prompts; None for Quire's own kernel.

    Raises:
        ConfigError: the package is not installed.
    """
    wanted = args.attention_backend
    if wanted is None:
        if (other := env.attention_backend()) is not None:
            notes.append(f"VLLM_ATTENTION_BACKEND={other} has no effect: use --attention-backend.")
        return None
    found = _PACKAGES.get(wanted.upper())
    if found is None or device != "cuda" or args.ops != "triton":
        why = "Quire chooses kernels for the machine"
        if found is not None:
            why = "it replaces Triton's kernels on a GPU, which are not used here"
        notes.append(f"--attention-backend {wanted} has no effect: {why}.")
        return None
    module, package = found
    if not installed(module):
        raise ConfigError(
            f"--attention-backend {wanted} needs the package {package}, which is not installed.",
            fix=f"Install it: pip install {package}. Or leave the flag out.",
            param="attention_backend",
        )
    notes.append(
        f"--attention-backend {wanted}: {package} computes the attention of prompts. Bits of their "
        "steps depend on what else is in the batch."
    )
    return module


def memory_budget(
    args: EngineArgs, hardware: Hardware, device: DeviceType, notes: list[str]
) -> int:
    """Return how many bytes of the device's memory weights and KV cache may use.

    On a CPU, the host tiers are subtracted.

    Raises:
        ConfigError: the host tiers need more memory than is free.
    """
    usable = int(AVAILABLE_SHARE * hardware.available_bytes)
    host = int((args.swap_space + args.kv_offloading_size) * GIB)
    if host >= usable:
        raise ConfigError(
            f"--swap-space and --kv-offloading-size ask for {gib(host)} of host memory; "
            f"{AVAILABLE_SHARE:.0%} of the free memory is {gib(usable)}, model included.",
            fix="Lower them, or free memory.",
            param="kv_offloading_size" if args.kv_offloading_size else "swap_space",
        )
    part = args.memory_share(device)
    if device != "cpu" and hardware.gpu is not None:
        there = hardware.gpu.memory_bytes
        budget = int(part * there)
        share = f"{part:.0%} of {gib(there)} on the GPU"
        notes.append(f"memory budget {gib(budget)}: {share}, including memory in use.")
        return budget
    budget = int(part * hardware.memory_bytes)
    usable -= host
    share = f"{part:.0%} of {gib(hardware.memory_bytes)}"
    if budget > usable:
        notes.append(
            f"memory budget {gib(usable)}: {share} would be {gib(budget)}, but "
            f"{AVAILABLE_SHARE:.0%} of the free {gib(hardware.available_bytes)}"
            + (f", minus {gib(host)} for the host tiers," if host else "")
            + " is less."
        )
        return usable
    notes.append(f"memory budget {gib(budget)}: {share}.")
    return budget


def offloaded_bytes(
    args: EngineArgs, config: EngineConfig, hardware: Hardware, notes: list[str]
) -> int:
    """Return the most bytes of weights to leave in a mapped file, or with a GPU in host memory.

    Raises:
        ConfigError: there are not so many, or no memory for them.
    """
    limit = int(args.cpu_offload_gb * GIB)
    if not args.cpu_offload_gb:
        return 0
    on_gpu = config.device == "cuda"
    if args.ops in ON_TORCH and not on_gpu:
        raise value_error(
            args, "cpu_offload_gb", "the reference ops cannot read weights from files."
        )
    weights = layer_weights(config)
    if limit > (most := sum(weights.values())):
        raise value_error(args, "cpu_offload_gb", f"the layers' weights take {gib(most)} in all.")
    if on_gpu and limit > (usable := int(AVAILABLE_SHARE * hardware.available_bytes)):
        raise value_error(
            args, "cpu_offload_gb",
            f"{AVAILABLE_SHARE:.0%} of the host memory that is free now are {gib(usable)}.",
        )  # fmt: skip
    chosen = last_weights(weights, limit)
    if not chosen:
        least = list(weights.values())[-1] / GIB
        raise value_error(
            args, "cpu_offload_gb", f"the last layer's last weight takes {least:.4f} GiB."
        )
    notes.append(
        f"cpu_offload_gb {args.cpu_offload_gb:g}: {len(chosen)} of the layers' {len(weights)} "
        f"weights, {gib(sum(chosen.values()))} of {gib(most)}, stay in "
        + ("host memory." if on_gpu else "a mapped file.")
    )
    return limit


def gib(num_bytes: int) -> str:
    """Return a size such as "1.5 GiB"."""
    return f"{num_bytes / GIB:.1f} GiB"
