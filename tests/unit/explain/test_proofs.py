"""Proofs of gains: how `benchmarks/explain_served.py --prove` measures, and what it prints."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.explain_servers import tokens_per_second
from benchmarks.explain_tables import gains


def test_a_part_of_a_round_is_not_counted() -> None:
    """Four clients that began together end together, once per second."""
    ended = [(float(second), 10) for second in range(8) for _ in range(4)]
    for start in (0.5, 1.0, 1.9):
        assert tokens_per_second(ended, 4, start) == pytest.approx(40.0)
    assert tokens_per_second(ended, 4, 6.5) == 0.0


def proof(estimated: float, measured: float, **fields: Any) -> dict[str, Any]:
    row = {"fault": "seats", "causes": ["queueing"], "flag": "--max-num-seqs 8", "pairs": []}
    row |= {"metric": "output tokens/s", "uncertainty": 0.1, "spread": 0.0}
    return row | {"estimated_gain": estimated, "proven_gain": measured} | fields


def test_lower_ends_are_no_estimates() -> None:
    rows = [proof(0.3, 0.25), proof(0.2, 0.4), proof(0.5, 2.0, at_least=True), proof(0.0, 0.4)]
    text = list(gains([*rows, proof(0.1, 0.01), proof(9.0, 1.0, spread=1.0)]))
    assert text[-2].startswith("median error 50% of 3 estimates, 62% with 1 lower ends, of which 1")
    assert "1 of 4 above twice" in text[-2]
    assert text[-1] == "undecided: seats"
