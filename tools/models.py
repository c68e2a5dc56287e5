"""Write the tables of docs/models.md: `python -m tools.models`.

The docstring of an architecture's module describes its classes.
"""

from __future__ import annotations

import re
from pathlib import Path

from quire.models.registry import ARCHITECTURES, HF_CLASSES

PATH = Path(__file__).parents[1] / "docs/models.md"
BEGIN = "<!-- tables: written by `python -m tools.models` -->"
TABLES = {"Decoders": ("ForCausalLM", "LMHeadModel"), "Encoders": ("ForMaskedLM",)}
"""Title → ends of the names of its classes."""


def page(text: str) -> str:
    """Return the page with its tables as they should be."""
    tables = "\n\n".join(_table(title, ends) for title, ends in TABLES.items())
    return f"{text.partition(BEGIN)[0]}{BEGIN}\n\n{tables}\n"


def _table(title: str, ends: tuple[str, ...]) -> str:
    rows = (
        f"| `{name}` | {_description(key)} |"
        for name, key in sorted(HF_CLASSES.items(), key=lambda pair: pair[0].lower())
        if name.endswith(ends)
    )
    return "\n".join([f"## {title}", "", "| class | model |", "|---|---|", *rows])


def _description(key: str) -> str:
    """Return the docstring of an architecture's module, as one line."""
    return re.sub(r"\s+", " ", ARCHITECTURES.load(key).__doc__).strip()


if __name__ == "__main__":
    PATH.write_text(page(PATH.read_text()))
