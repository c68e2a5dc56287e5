"""`--chat-template`, for the commands that render conversations."""

from __future__ import annotations

import argparse
from pathlib import Path

from quire.resolve.flags import Flags
from quire.text.files import read_text


def add_chat_template_flag(add: Flags) -> None:
    add("--chat-template", None, "Jinja template instead of the model's", type=Path)


def chat_template(namespace: argparse.Namespace) -> str | None:
    """Return the template's source; None for the model's own.

    Raises:
        ConfigError: the file cannot be read.
    """
    path: Path | None = namespace.chat_template
    if path is None:
        return None
    return read_text(path, f"--chat-template {path}", param="--chat-template")
