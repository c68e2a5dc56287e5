"""What a number was measured on, and the memory it took. No paths, no host names."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import quire
from quire.system import hardware

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
"""CPU features that decide which kernels can run, under Linux's names; x86, then Arm."""


def describe_machine() -> dict[str, Any]:
    """CPU model, cores and bytes of memory this process may use, ISA features, versions."""
    cpu = _cpuinfo()
    found = hardware.detect()
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    return {
        "cpu": hardware.cpu_name(),
        "cores": found.cores,
        "isa": [flag for flag in _ISA_FLAGS if flag in flags],
        "memory_bytes": found.memory_bytes,
        "os": platform.system(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "quire": quire.__version__,
    }


def git_commit() -> str | None:
    """The commit Quire's sources stand at, `-dirty` if changed; None outside a checkout."""
    root = Path(quire.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None  # installed; a repository further up would be someone else's
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
    """What a row of results carries beside its figures: where, when and how they were measured.

    Args:
        program: what was started with this process's arguments, as anyone could type it.
    """
    return {
        "bench": bench,
        "machine": describe_machine(),
        "commit": git_commit(),
        "command": portable_command(sys.argv[1:], program),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def portable_command(argv: Sequence[str], program: str = "quire") -> str:
    """The command line as anyone could type it, absolute paths cut to their names."""
    return f"{program} {shlex.join(map(_portable_word, argv))}".strip()


def _portable_word(word: str) -> str:
    """`word`, its path cut: all of it, or what follows `=` in `--flag=PATH` and `NAME=PATH`."""
    if Path(word).is_absolute():
        return portable_name(word)
    name, equals, value = word.partition("=")
    return name + equals + portable_name(value)


def portable_name(word: str) -> str:
    """`word`, or its last component where it is an absolute path."""
    return Path(word).name if Path(word).is_absolute() else word


def peak_rss_bytes() -> int:
    """Peak resident bytes of this process plus those of its living descendants.

    Each process's own high-water mark (`VmHWM`); pages that processes share count in each. Without
    `/proc` it is this process's `ru_maxrss` alone.
    """
    if not Path("/proc/self/status").exists():
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if platform.system() == "Darwin" else peak * 1024
    total, pending = 0, [os.getpid()]
    while pending:
        pid = pending.pop()
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            threads = list(Path(f"/proc/{pid}/task").iterdir())
            for thread in threads:
                pending += [int(child) for child in (thread / "children").read_text().split()]
        except OSError:
            continue  # it has just exited
        marks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        total += sum(int(mark) * 1024 for mark in marks)
    return total


def _cpuinfo() -> dict[str, str]:
    """The first processor's lines of `/proc/cpuinfo`; empty where there is none."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _version(package: str) -> str | None:
    """The installed version, without importing the package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
