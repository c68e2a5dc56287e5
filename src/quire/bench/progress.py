"""A progress bar on stderr, if that is a terminal."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def progress(total: int, unit: str) -> tqdm[Any]:
    """Return a tqdm bar that stays silent unless a person is watching."""
    return tqdm(total=total, unit=unit, file=sys.stderr, disable=not sys.stderr.isatty())
