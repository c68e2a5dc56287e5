"""The only place that reads environment variables."""

from __future__ import annotations

import os
from pathlib import Path

_PROFILER = {
    "VLLM_TORCH_PROFILER_DIR": "torch_profiler_dir",
    "VLLM_TORCH_PROFILER_RECORD_SHAPES": "torch_profiler_record_shapes",
    "VLLM_TORCH_PROFILER_WITH_PROFILE_MEMORY": "torch_profiler_with_memory",
    "VLLM_TORCH_PROFILER_WITH_STACK": "torch_profiler_with_stack",
    "VLLM_PROFILER_DELAY_ITERS": "delay_iterations",
    "VLLM_PROFILER_MAX_ITERS": "max_iterations",
}
"""vLLM's variables → fields of `ProfilerConfig`."""


def cpu_isa() -> str | None:
    """`QUIRE_CPU_ISA`: force one native kernel table; fails loudly.

    Least capable first: portable, avx2, avx512, avx512_vnni, amx.
    """
    return os.environ.get("QUIRE_CPU_ISA") or None


def cache_dir() -> Path:
    """`QUIRE_CACHE_DIR`: where Quire keeps what it can make again; `~/.cache/quire` if unset."""
    if explicit := os.environ.get("QUIRE_CACHE_DIR"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "quire"


def log_level() -> str:
    """`QUIRE_LOG_LEVEL`: DEBUG, INFO, WARNING or ERROR; INFO if unset."""
    return os.environ.get("QUIRE_LOG_LEVEL", "INFO").upper()


def api_key() -> str | None:
    """`QUIRE_API_KEY` (alias `VLLM_API_KEY`): the key that HTTP clients must present."""
    return os.environ.get("QUIRE_API_KEY") or os.environ.get("VLLM_API_KEY") or None


def hf_offline() -> bool:
    """`HF_HUB_OFFLINE`: use only what is already in the Hugging Face cache."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}


def profiler_fields() -> dict[str, str]:
    """Fields of `ProfilerConfig` that vLLM's variables (`VLLM_TORCH_PROFILER_DIR` …) set, as they
    are spelled there."""
    return {field: os.environ[name] for name, field in _PROFILER.items() if os.environ.get(name)}


def let_idle_threads_sleep() -> None:
    """Set `OMP_WAIT_POLICY=PASSIVE` unless it is set; heeded if OpenMP is not loaded yet.

    Threads that spin while they wait for the others take the core that those need: with one
    busy neighbour on two cores, decoding was seen to fall to a tenth.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def given() -> dict[str, str]:
    """The variables that change what Quire does, of those that are set."""
    names = (
        *("QUIRE_CPU_ISA", "QUIRE_CACHE_DIR", "QUIRE_LOG_LEVEL", "QUIRE_API_KEY", "VLLM_API_KEY"),
        *("HF_HUB_OFFLINE", "OMP_WAIT_POLICY", *_PROFILER),
    )
    return {name: os.environ[name] for name in names if name in os.environ}


def quiet_torch_profiler() -> None:
    """Set `KINETO_LOG_LEVEL=6` unless it is set, or torch announces every recording."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def of_child(**changes: str) -> dict[str, str]:
    """This process's environment with `changes`, for a process that it starts."""
    return {**os.environ, **changes}


def set_defaults(**values: str) -> None:
    """Set variables that are not set, for a library that reads them when it is imported."""
    for name, value in values.items():
        os.environ.setdefault(name, value)
