"""The files of a model that is split into several GGUF files."""

from __future__ import annotations

import re
from pathlib import Path

from quire.core.errors import CheckpointError

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII)


def split_files(path: Path) -> list[Path]:
    """Return the files of the model that starts with `path`, by name.

    Raises:
        CheckpointError: `path` is not the first one, or others are missing.
    """
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if int(match["number"]) != 1:
        raise CheckpointError(
            f"{path.name} is one of {count} files of a model.",
            fix="Name the first file (…-00001-of-….gguf), with the others in the same folder.",
        )
    names = split_names(path.name)
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of the {count} files of the model are missing: "
            f"{', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}.",
            fix="Download the others into the same folder.",
        )
    return [path.with_name(name) for name in names]


def split_names(first: str) -> list[str]:
    """Return the file names of the model that starts with `first`."""
    match = _SPLIT.fullmatch(first)
    if match is None or not int(match["count"]):
        return [first]
    count = int(match["count"])
    return [f"{match['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
