"""Which drafts count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from quire.runner.drafts import synthetic


def test_synthetic_acceptance_has_its_rates_over_seeds() -> None:
    agrees = synthetic([0.8, 0.1])

    def accepted(number: int, position: int) -> list[bool]:
        states: list[Any] = [
            SimpleNamespace(params=SimpleNamespace(seed=seed), num_output_tokens=position)
            for seed in [None, *range(1, 400)]
        ]
        return [agrees(state, number, 5, 7) for state in states]

    first = accepted(0, 3)
    assert accepted(0, 3) == first != accepted(0, 4)
    assert abs(sum(first) - 320) < 40  # five standard deviations
    assert abs(sum(accepted(1, 3)) - 40) < 30
