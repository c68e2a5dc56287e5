"""Read files of `/proc` and `/sys`; what cannot be read is empty."""

from __future__ import annotations

import os
from pathlib import Path

SYSTEM = Path("/")


def family(pid: int, root: Path = SYSTEM) -> list[int]:
    """Return a process and its descendants."""
    found, pending = [], [pid]
    while pending:
        process = pending.pop()
        tasks = listed(root / f"proc/{process}/task")
        if tasks:
            found.append(process)
        for task in tasks:
            pending += [int(child) for child in text(task / "children").split()]
    return found


def oom_kills() -> int:
    """Return how many processes the kernel has ended because memory ran out."""
    return fields(text(SYSTEM / "proc/vmstat")).get("oom_kill", 0)


def words(file: Path) -> list[str]:
    """Return the words of a file in which zero bytes end them, such as a command line."""
    try:
        return file.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def numbers(listed: str) -> set[int]:
    """Return the numbers of a list such as "0-3,8"."""
    found: set[int] = set()
    for part in listed.strip().split(","):
        low, _, high = part.strip().partition("-")
        if low.isdigit():
            found.update(range(int(low), int(high if high.isdigit() else low) + 1))
    return found


def fields(text: str) -> dict[str, int]:
    """Return the whole numbers of lines such as "name: 12 kB"."""
    words = (line.replace(":", " ").split() for line in text.splitlines())
    return {w[0]: int(w[1]) for w in words if len(w) > 1 and w[1].isdigit()}


def listed(folder: Path, pattern: str = "*") -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def quick(path: str) -> bytes:
    """Return the begin of a file without the cost of `Path`, for files that are read often."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(handle, 4096)
    except OSError:  # the process has just exited
        return b""
    finally:
        os.close(handle)


def text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
