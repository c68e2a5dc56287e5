"""The limits of adapters, from the engine's flags."""

from __future__ import annotations

from quire.core.errors import ConfigError
from quire.core.lora import LoRAConfig
from quire.resolve.arguments import EngineArgs
from quire.resolve.flag_values import value_error

_LIMITS = ("max_loras", "max_lora_rank", "max_cpu_loras")


def lora_config(args: EngineArgs, *, pools: bool = False) -> LoRAConfig | None:
    """Return the limits; None if adapters are off.

    Args:
        pools: the model returns embeddings or scores.

    Raises:
        ConfigError: a limit is set without --enable-lora, memory could not hold a step's
            adapters, or the model generates no text.
    """
    if args.enable_lora and pools:
        what = "Adapters need a model that generates text, not a pooling model."
        raise ConfigError(what, param="enable_lora")
    if not args.enable_lora:
        for name in _LIMITS:
            if getattr(args, name) != getattr(EngineArgs(), name):
                raise ConfigError(f"{name} is set; it needs --enable-lora.", param=name)
        return None
    held = args.max_loras if args.max_cpu_loras is None else args.max_cpu_loras
    if held < args.max_loras:
        why = f"it must be at least --max-loras, {args.max_loras}."
        raise value_error(args, "max_cpu_loras", why)
    return LoRAConfig(args.max_loras, args.max_lora_rank, held)
