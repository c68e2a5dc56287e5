"""Errors of the operating system that a user can act on, in one line."""

from __future__ import annotations

import errno

_SPACE = "Free some space, or name another folder."
_FILES = "Close files, or raise the limit on open files (ulimit -n)."
_RIGHTS = "Name another file or folder, or change its permissions."
_TASKS = "Raise the limit on processes and threads (ulimit -u)."
_MEMORY = "Free some memory, or raise the limit on it (ulimit -v)."
_THREADS = "can't start new thread", "starting a kernel thread"
"""In messages of Python, and of Quire's native code."""
_FIXES = {
    errno.EACCES: _RIGHTS,
    errno.EAGAIN: _TASKS,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f).",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: _MEMORY,
    errno.ENOSPC: _SPACE,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
}


def refusal(error: BaseException) -> str | None:
    """Return what the system refused and what to change; None for any other error."""
    if isinstance(error, MemoryError):
        return f"The system refuses memory. {_MEMORY}"
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _THREADS):
        return f"The system refuses a thread. {_TASKS}"
    if not isinstance(error, OSError):
        return None
    if "temporary directory" in str(error.strerror):
        return f"{error.strerror}. Set TMPDIR to a folder with free space."
    if (fix := _FIXES.get(error.errno or 0)) is None:
        return None
    where = "" if error.filename is None else f": {error.filename}"
    return f"{error.strerror}{where}. {fix}"
