"""Machine, version and command of a measurement, without paths and host names; peak memory."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import quire
from quire.core.extras import version_of
from quire.system import hardware
from quire.system.proc import family, fields, text

_ISA_FLAGS = (
    "avx2",
    "avx512f",
    "avx512vbmi",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimddp",
    "sve",
    "i8mm",
    "bf16",
)
"""CPU features that decide which kernels can run, with Linux's names."""


def describe_machine() -> dict[str, Any]:
    """Return CPU model, usable cores and memory, ISA features and versions."""
    cpu = hardware.cpu_facts()
    found = hardware.detect()
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    return {
        "cpu": hardware.cpu_name(),
        "cores": found.cores,
        "isa": [flag for flag in _ISA_FLAGS if flag in flags],
        "memory_bytes": found.memory_bytes,
        "os": platform.system(),
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "quire": quire.__version__,
    }


def git_commit() -> str | None:
    """Return the commit of Quire's sources, with `-dirty` if changed; None outside a checkout."""
    root = Path(quire.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None  # installed: a repository further up is not Quire's
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def circumstances(bench: str, program: str = "quire") -> dict[str, Any]:
    """Return where, when and how a row was measured.

    Args:
        program: the command that was started with this process's arguments.
    """
    return {
        "bench": bench,
        "machine": describe_machine(),
        "commit": git_commit(),
        "command": portable_command(sys.argv[1:], program),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def portable_command(argv: Sequence[str], program: str = "quire") -> str:
    """Return the command line, with absolute paths shortened to their names."""
    return f"{program} {shlex.join(map(_portable_word, argv))}".strip()


def _portable_word(word: str) -> str:
    """Return `word` with a shortened path, also after `=` in `--flag=PATH` and `NAME=PATH`."""
    if Path(word).is_absolute():
        return portable_name(word)
    name, equals, value = word.partition("=")
    return name + equals + portable_name(value)


def portable_name(word: str) -> str:
    """Return `word`, or the last component of an absolute path."""
    return Path(word).name if Path(word).is_absolute() else word


def peak_rss_bytes() -> int:
    """Return the sum of the peak resident bytes (`VmHWM`) of this process and its descendants.

    Shared pages count in each process. Without `/proc` it is this process's `ru_maxrss`.
    """
    if not Path("/proc/self/status").exists():
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if platform.system() == "Darwin" else peak * 1024
    each = (fields(text(Path(f"/proc/{pid}/status"))) for pid in family(os.getpid()))
    return sum(found.get("VmHWM", 0) * 1024 for found in each)
