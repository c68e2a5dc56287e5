"""Profiles of the built-in model: the times add up, and nothing that is computed changes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.profile.layerwise import layerwise_profile

PROMPTS = ["Once upon a time", "The little dog ran to"]
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def texts(llm: LLM) -> list[str]:
    return [o.outputs[0].text for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.mark.parametrize(
    "fields", [{}, {"enforce_eager": True}, {"async_scheduling": True}, {"num_scheduler_steps": 4}]
)
def test_an_engine_is_profiled(fields: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    config = {"profiler": "torch", "torch_profiler_dir": str(tmp_path), "delay_iterations": 2}
    with LLM(profiler_config=config, **fields) as llm:
        plain = texts(llm)
        llm.call("reset_prefix_cache")
        llm.start_profile()
        with layerwise_profile(llm) as profile:
            profiled = texts(llm)
        [trace] = llm.stop_profile()
        assert llm.stop_profile() == [trace]  # harmless, and says so again
    assert profiled == plain

    results = profile.results
    seen = results.profile
    assert seen.steps >= PARAMS.max_tokens
    assert seen.num_seqs >= 2 * PARAMS.max_tokens
    linears = [op for op in seen.ops if op.name == "linear"]
    assert len(linears) == 6 * 4  # layers
    assert len({op.calls for op in linears}) == 1
    assert all(op.flops > 0 and op.nbytes > 0 for op in linears)
    in_ops = sum(op.seconds for op in seen.ops)
    assert 0 < in_ops <= seen.model_seconds
    parts = sum(part.seconds for part in results.model.children.values())
    assert parts == pytest.approx(seen.wall_seconds, rel=0.05)

    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    steps = [e for e in events if e["ph"] == "X" and e["name"].startswith("step ")]
    native = [e for e in events if e.get("cat") == "native_op"]
    assert steps
    assert native
    # Both clocks are the same, to what a busy machine allows: every operation lies in a step.
    assert all(
        any(
            s["ts"] - 500 < n["ts"] and n["ts"] + n["dur"] < s["ts"] + s["dur"] + 500 for s in steps
        )
        for n in native
    )


def test_without_a_configuration_a_trace_has_steps_and_native_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    with LLM() as llm:
        llm.start_profile()
        texts(llm)
        [trace] = llm.stop_profile()
    assert trace.parent == tmp_path / "traces"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    steps = [e for e in events if e.get("cat") == "step"]
    native = [e for e in events if e.get("cat") == "native_op"]
    assert len(steps) >= PARAMS.max_tokens
    first, last = steps[0], steps[-1]
    assert all(first["ts"] <= n["ts"] <= last["ts"] + last["dur"] for n in native)
    assert sum(n["dur"] for n in native) <= sum(s["dur"] for s in steps)
    assert {s["tid"] for s in steps}.isdisjoint(n["tid"] for n in native)
