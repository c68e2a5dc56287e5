"""Low-rank adapters as all layers speak of them: which one a request wants, and their limits."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class LoRARequest(msgspec.Struct, array_like=True, frozen=True):
    """An adapter that a request is served with.

    Attributes:
        lora_name: what people call it.
        lora_int_id: what it is known by: positive, and another one for another adapter.
        lora_path: a folder as PEFT writes it.
        digest: of its content, from the engine once it has read it; two adapters share no prefix,
            and a folder that has changed since is not read again.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class LoRAConfig:
    """Limits of the adapters; see the fields of `EngineArgs`."""

    max_loras: int = 1
    max_lora_rank: int = 16
    max_cpu_loras: int = 1
