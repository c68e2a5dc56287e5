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
    """Return `QUIRE_CPU_ISA`, which forces one native kernel table or fails.

    Least capable first: portable, avx2, avx512, avx512_vnni, amx; on ARM portable, neon, dotprod,
    i8mm.
    """
    return os.environ.get("QUIRE_CPU_ISA") or None


def triton_interprets() -> bool:
    """Return whether `TRITON_INTERPRET` has Triton interpret kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def visible_amd_gpus() -> str | None:
    """Return the numbers of the AMD GPUs that this process may use, the first named first; None for
    all."""
    names = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    return next((os.environ[name] for name in names if name in os.environ), None)


def cache_dir() -> Path:
    """Return `QUIRE_CACHE_DIR`, the folder for reproducible files; default `~/.cache/quire`."""
    if explicit := os.environ.get("QUIRE_CACHE_DIR"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "quire"


def trace_dir() -> Path:
    """Return the default folder for traces."""
    return cache_dir() / "traces"


def log_level() -> str:
    """Return `QUIRE_LOG_LEVEL`: DEBUG, INFO (default), WARNING or ERROR."""
    return os.environ.get("QUIRE_LOG_LEVEL", "INFO").upper()


def api_key() -> str | None:
    """Return `QUIRE_API_KEY` (alias `VLLM_API_KEY`), the key that HTTP clients must send."""
    return os.environ.get("QUIRE_API_KEY") or os.environ.get("VLLM_API_KEY") or None


def key_header() -> dict[str, str]:
    """Return the HTTP header that sends `api_key` to a server; empty without a key."""
    return {"Authorization": f"Bearer {key}"} if (key := api_key()) else {}


def cluster_key() -> str | None:
    """Return `QUIRE_CLUSTER_KEY`, which all machines of an engine know."""
    return os.environ.get("QUIRE_CLUSTER_KEY") or None


def cluster_tls() -> str | None:
    """Return `QUIRE_CLUSTER_TLS`, a PEM file: machines then encrypt what they send each other."""
    return os.environ.get("QUIRE_CLUSTER_TLS") or None


def hf_offline() -> bool:
    """Return `HF_HUB_OFFLINE`: use only the Hugging Face cache."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}


def use_hf_token(token: str) -> None:
    """Set `HF_TOKEN`, the key for downloads from the Hugging Face hub."""
    os.environ["HF_TOKEN"] = token


def layer_partition() -> str | None:
    """Return `VLLM_PP_LAYER_PARTITION`, the layers of each pipeline stage: "4,4,3"."""
    return os.environ.get("VLLM_PP_LAYER_PARTITION") or None


def attention_backend() -> str | None:
    """Return `VLLM_ATTENTION_BACKEND`, which has no effect, so that a start can say so."""
    return os.environ.get("VLLM_ATTENTION_BACKEND") or None


def profiler_fields() -> dict[str, str]:
    """Return `ProfilerConfig` fields from vLLM's `VLLM_TORCH_PROFILER_DIR` …, unparsed."""
    return {field: os.environ[name] for name, field in _PROFILER.items() if os.environ.get(name)}


def let_idle_threads_sleep() -> None:
    """Set `OMP_WAIT_POLICY=PASSIVE` unless it is set; only works before OpenMP is loaded.

    Threads that spin while they wait take cores that working threads need. With one busy neighbour
    on two cores, decoding fell to a tenth.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def given() -> dict[str, str]:
    """Return the set variables that affect Quire."""
    names = (
        *("QUIRE_CPU_ISA", "QUIRE_CACHE_DIR", "QUIRE_LOG_LEVEL", "QUIRE_API_KEY", "VLLM_API_KEY"),
        *("QUIRE_CLUSTER_KEY", "QUIRE_CLUSTER_TLS"),
        *("HF_HUB_OFFLINE", "OMP_WAIT_POLICY", "VLLM_PP_LAYER_PARTITION", *_PROFILER),
    )
    return {name: os.environ[name] for name in names if name in os.environ}


def quiet_torch_profiler() -> None:
    """Set `KINETO_LOG_LEVEL=6` unless it is set; otherwise torch logs every recording."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def of_child(**changes: str) -> dict[str, str]:
    """Return this process's environment with `changes`, for a child process."""
    return {**os.environ, **changes}


def set_defaults(**values: str) -> None:
    """Set unset variables, for a library that reads them at import."""
    for name, value in values.items():
        os.environ.setdefault(name, value)
