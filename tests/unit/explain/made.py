"""Evidence made by hand: a healthy engine, of which a test changes what it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from quire.core.config import EngineConfig
from quire.core.op_profile import OpProfile, OpTime
from quire.explain.evidence import Evidence, Platform, Window
from quire.explain.host import HostUse
from quire.explain.limits import Limits
from quire.explain.surroundings import Surroundings
from quire.metrics.requests import RequestMix
from quire.metrics.times import CORE_PARTS, PARTS
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import Hardware

MACHINE = Hardware(cores=4, memory_bytes=64 << 30, available_bytes=60 << 30)
LIMITS = Limits(
    "a processor",
    4,
    {1: 15e9, 4: 40e9},
    {
        "float32": {1: 200e9, 4: 800e9},
        "bfloat16": {1: 400e9, 4: 1600e9},
        "int8": {1: 800e9, 4: 3200e9},
    },
)
ARGS = EngineArgs(model="opt-125m", load_format="dummy", dtype="bfloat16")


def config(args: EngineArgs) -> EngineConfig:
    return replace(resolve(args, MACHINE).config, prefix_caching_hash_seed=0)


def healthy(
    *,
    parts: dict[str, float] | None = None,
    args: dict[str, Any] | None = None,
    ops: OpProfile | None = None,
    host: HostUse | None = None,
    limits: Limits | None = LIMITS,
    offline: bool = False,
    around: dict[str, Any] | None = None,
    platform: Platform | None = None,
    mix: dict[str, int] | None = None,
    tls: bool = False,
    **window: Any,
) -> Evidence:
    """Ten seconds of eight streams that decode: 1,000 steps of which the model has 97 %.

    Args:
        parts: seconds, in place of those of the model or beside them.
        args: fields of `EngineArgs` that differ.
        around: fields of `Surroundings` that differ.
        mix: counts of requests; eight requests if only kinds are given.
        window: fields of `Window` that differ.
    """
    given = replace(ARGS, **(args or {}))
    seconds = dict.fromkeys(PARTS, 0.0) | {"schedule": 0.1, "prepare": 0.1, "update": 0.1}
    seconds |= parts or {}
    seconds["model"] = 0.0
    seconds["model"] = 10.0 - sum(seconds[name] for name in CORE_PARTS)
    shape: dict[str, Any] = {
        "seconds": 10.0,
        "parts": seconds,
        "steps": 1000,
        "step_sizes": [(8.0, 1000)],
        "computed_tokens": 8000,
        "requests": 8,
        "finished": 8,
        "prompt_tokens": 800,
        "generation_tokens": 8000,
        "running": 8.0,
        "kv_share": 0.1,
        "kv_peak": 0.2,
        "kv_blocks": 1000,
    }
    if mix is not None:
        shape["mix"] = RequestMix(**({"requests": 8, "sequences": 8} | mix))
    return Evidence(
        window=Window(**(shape | window)),
        args=given,
        config=config(given),
        cores=4,
        offline=offline,
        ops=ops,
        limits=limits,
        host=host,
        surroundings=Surroundings(**({"online": 4, "allowed": 4} | (around or {}))),
        platform=platform or Platform("avx512_vnni", "avx512_vnni"),
        tls=tls,
    )


def profile(*ops: tuple[str, str, float, float, float], model_seconds: float = 9.7) -> OpProfile:
    """Of (name, module, seconds, GB/s, GFLOP/s), over the healthy engine's 1,000 steps."""
    times = [
        OpTime(name, module, 1000, s, round(s * gb * 1e9), round(s * gf * 1e9), "x", "bfloat16", 8)
        for name, module, s, gb, gf in ops
    ]
    return OpProfile(1000, 9.9, model_seconds, 8000, 8000, 800_000, times)


def with_window(evidence: Evidence, **fields: Any) -> Evidence:
    window = msgspec.structs.replace(evidence.window, **fields)
    return msgspec.structs.replace(evidence, window=window)
