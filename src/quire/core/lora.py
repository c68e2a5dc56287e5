"""Low-rank adapters: the one of a request, and their limits."""

from __future__ import annotations

import msgspec

from quire.system.records import dataclass


class LoRARequest(msgspec.Struct, array_like=True, frozen=True):
    """A request's adapter.

    Attributes:
        lora_name: its name for users.
        lora_int_id: its id: positive and unique.
        lora_path: a folder written by PEFT.
        digest: of its content, set by the engine once it is loaded. Different adapters share no
            prefix, and a changed folder is not read again.
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
