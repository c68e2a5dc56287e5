"""Configurations of well-known models, for `--load-format dummy`: their shape without their files.

Each is a file in `assets/presets`. It holds what the model's own config.json says, less the fields
that only training reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import quire

_FOLDER = Path(quire.__file__).parent / "assets" / "presets"


def preset_names() -> list[str]:
    return sorted(file.stem for file in _FOLDER.glob("*.json"))


def preset_config(name: str) -> dict[str, Any] | None:
    """Return the config.json of preset `name` (any case), or None."""
    if name.lower() not in preset_names():
        return None
    config: dict[str, Any] = json.loads((_FOLDER / f"{name.lower()}.json").read_text())
    return config
