"""hardware.py: what is served to measure this machine."""

from __future__ import annotations

from typing import Any

import pytest

from quire.resolve.arguments import EngineArgs
from quire.simulate import hardware


@pytest.mark.parametrize(("replicas", "prompts"), [(1, 6), (2, 12)])
def test_the_engine_that_is_simulated_is_served(
    monkeypatch: pytest.MonkeyPatch, replicas: int, prompts: int
) -> None:
    """With its layers, threads and replicas; each of these gets as many clients."""
    asked: list[str] = []

    def bench(name: str, *words: str) -> dict[str, Any]:
        asked.extend((name, *words))
        split = {"prepare": 0.1, "model": 0.5, "sample": 0.0, "idle": 0.25}
        tokens = 96.0 * replicas
        row = {"split": split, "itl_ms": {"p50": 10.0}, "output_tok_s": tokens}
        return row | {"min": {"output_tok_s": tokens / 2}, "max": {"output_tok_s": tokens}}

    monkeypatch.setattr(hardware, "_bench", bench)
    flags = {"hf_overrides": '{"num_hidden_layers": 2}', "num_threads": 2, "max_num_seqs": 9}
    engine = EngineArgs("opt-125m", data_parallel_size=replicas, **flags)
    found = hardware._Served.measure(engine, 3)
    assert found.model == pytest.approx(0.008)
    assert found.rest == pytest.approx(0.002)
    assert found.request == pytest.approx(1.0 - 0.32)
    assert found.spread == pytest.approx(2 / 3)
    wanted = ["serve", "--model=opt-125m", '--hf-overrides={"num_hidden_layers": 2}']
    assert [word for word in wanted if word not in asked] == []
    assert ("--data-parallel-size=2" in asked) == (replicas == 2)
    assert asked[-2:] == [f"--num-clients={3 * replicas}", f"--num-prompts={prompts}"]
    assert "--num-threads=2" in asked
