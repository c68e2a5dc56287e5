"""docs/models.md lists all classes."""

from __future__ import annotations

from quire.models.registry import HF_CLASSES
from tools.models import PATH, page


def test_the_tables_are_up_to_date() -> None:
    text = PATH.read_text()
    assert page(text) == text, "run python -m tools.models"


def test_every_class_that_generates_is_there() -> None:
    text = PATH.read_text()
    causal = [name for name in HF_CLASSES if name.endswith(("ForCausalLM", "LMHeadModel"))]
    assert causal
    assert all(f"| `{name}` | " in text for name in causal)
