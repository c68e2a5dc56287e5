"""The text files that a user names."""

from __future__ import annotations

import zlib
from pathlib import Path

from quire.core.errors import ConfigError

_BETWEEN_DOCUMENTS = "\n---\n"


def read_text(path: Path, name: str, *, param: str | None = None, fix: str | None = None) -> str:
    """Return a file's text, unpacked if it ends in `.gz`.

    Args:
        name: of the file in errors.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        if path.suffix != ".gz":
            return path.read_text(encoding="utf-8")
        import gzip  # for these files alone

        with gzip.open(path, "rt", encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
    raise ConfigError(f"{name} cannot be read: {why}.", fix=fix, param=param)


def split_documents(text: str) -> list[str]:
    """Return the documents of a text, between lines of `---`."""
    return [part for part in text.split(_BETWEEN_DOCUMENTS) if part.strip()]
