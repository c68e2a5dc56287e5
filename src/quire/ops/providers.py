"""Who computes: the provider of operations, and the device, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from quire.core.config import ON_TORCH, EngineConfig, OpsProvider, PromptOps
from quire.core.errors import ConfigError
from quire.core.extras import require
from quire.ops.device import CPU, Device
from quire.ops.interface import Ops
from quire.ops.weights import LinearWeight
from quire.system import env

if TYPE_CHECKING:
    from quire.ops.packed_file import StoredLinear
    from quire.ops.rank_group import RankGroup
    from quire.ops.torch_ops.rank_group import TorchRankGroup


_OWN = PromptOps()


def open_device(name: str, card: int = 0) -> Device:
    """Return the device of an `EngineConfig`.

    Args:
        card: which of the GPUs that this process may use.

    Raises:
        ConfigError: torch does not have it.
    """
    if name == "cpu":
        return CPU
    if name == "mps":
        from quire.ops.torch_ops.metal import MetalDevice

        return MetalDevice()
    from quire.ops.torch_ops.cuda import CudaDevice

    return CudaDevice(card)


def engine_ops(
    config: EngineConfig, device: Device, group: RankGroup | TorchRankGroup | None
) -> Ops[Any]:
    """Return the operations of an engine; see `load_ops`."""
    return load_ops(
        config.ops, None, config.num_threads, config.packing, device, group, config.prompts
    )


def load_ops(
    provider: OpsProvider = "auto",
    isa: str | None = None,
    num_threads: int = 1,
    quantization: str | None = None,
    device: Device = CPU,
    group: RankGroup | TorchRankGroup | None = None,
    prompts: PromptOps = _OWN,
) -> Ops[Any]:
    """Return the operations of `provider`; its native kernels have `num_threads` threads.

    Args:
        provider: "cpu" has native kernels, "triton" has kernels for GPUs, "reference" is plain
            torch. "auto" is "reference" on a GPU, else "cpu".
        quantization: how `pack_linear` quantizes (`core.quantization`); native kernels alone can.
        isa: instruction set of the native kernels; `QUIRE_CPU_ISA`, else the most capable.
        device: where; native kernels run on the CPU alone.
        group: the processes that the model is split among, of the provider's kind.
        prompts: what computes prompts in place of ops on torch.

    Raises:
        ConfigError: the native module, the instruction set or torch is missing.
    """
    if provider in ON_TORCH or not device.is_host:
        if quantization is not None:
            raise ConfigError("ops on torch have no quantized products.", param="quantization")
        ops = _torch_ops(provider, device, prompts)
        return ops if group is None else cast("TorchRankGroup", group).bound(ops)
    isa = isa or env.cpu_isa()
    try:
        from quire.ops.cpu import CpuOps
    except ImportError as error:
        raise ConfigError(
            f"the native kernels cannot be imported: {error}.",
            fix="Install Quire with its native module, or use --ops reference.",
            param="--ops",
        ) from error
    try:
        return CpuOps(isa, num_threads, quantization, cast("RankGroup | None", group))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error), fix="Unset or change QUIRE_CPU_ISA.") from error


def _torch_ops(provider: OpsProvider, device: Device, prompts: PromptOps) -> Ops[Any]:
    """Return ops on torch, which is imported here, and nowhere on the way to other ops."""
    require("torch", "--ops reference", "--ops")
    if provider == "triton":
        require("triton", "--ops triton", "--ops")
        from quire.ops.triton.provider import TritonOps

        return TritonOps(device, prompts.attention_package)
    from quire.ops.torch_ops.provider import TorchOps

    return TorchOps(device, prompts.compile_backend)


def stored_linears(weights: Mapping[str, LinearWeight]) -> dict[str, StoredLinear]:
    """Return what can be stored in a file, by name; nothing if not all of them can."""
    stored = {name: weight.stored for name, weight in weights.items() if hasattr(weight, "stored")}
    return stored if len(stored) == len(weights) else {}
