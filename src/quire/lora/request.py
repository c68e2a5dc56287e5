"""vLLM's import path for `quire.core.lora`."""

from quire.core.lora import LoRARequest

__all__ = ["LoRARequest"]
