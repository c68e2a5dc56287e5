"""A step as a tree of modules whose times add up."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire.core.op_profile import OpProfile, OpTime
from quire.profile.layerwise import LayerwiseResults, Node, layerwise_profile


def op(name: str, module: str, seconds: float, nbytes: int = 1000, flops: int = 0) -> OpTime:
    return OpTime(name, module, 4, seconds, nbytes, flops, "avx2", "float32", 8)


PROFILE = OpProfile(
    steps=4,
    wall_seconds=1.0,
    model_seconds=0.8,
    tokens=16,
    num_seqs=4,
    context_tokens=100,
    ops=[
        op("embedding", "embed", 0.05),
        op("linear", "layers.0.attn.qkv", 0.2, 4000, 8000),
        op("paged_attention", "layers.0.attn", 0.1, 2000, 100),
        op("linear", "layers.1.attn.qkv", 0.25, 4000, 8000),
        op("logits", "lm_head", 0.1, 500, 8000),
    ],
    prepare_seconds=0.05,
    sample_seconds=0.1,
)


class Rates:
    """1e5 bytes a second with a thread, 1e5 operations."""

    def bandwidth_of(self, threads: int) -> float:
        return 1e5 * threads

    def flops_of(self, dtype: str, threads: int) -> float:
        assert dtype == "float32"
        return 1e5 * threads


@pytest.fixture
def results() -> LayerwiseResults:
    return LayerwiseResults(PROFILE, Rates(), threads=1)


def node(results: LayerwiseResults, path: str) -> Node:
    return next(n for names, n in results.model.walk() if "/".join(names) == path)


def test_parts_add_up_to_the_step(results: LayerwiseResults) -> None:
    assert results.model.seconds == 1.0
    for _, part in results.model.walk():
        inside = sum(child.seconds for child in part.children.values())
        # An operation beside submodules is a child of its own.
        assert not part.children or inside == pytest.approx(part.seconds)
    assert node(results, "step/model/python").seconds == pytest.approx(0.1)
    assert node(results, "step/other").seconds == pytest.approx(0.05)


def test_a_drafter_is_apart_from_the_model_that_verifies() -> None:
    drafting = [op("linear", "layers.0.attn.qkv", 0.04), op("logits", "lm_head", 0.02)]
    drafts = {"draft_ops": drafting, "num_draft_tokens": 40, "num_accepted_tokens": 30}
    # 0.01 seconds of the drafter's ops were within the model's time.
    profile = msgspec.structs.replace(PROFILE, wall_seconds=1.1, draft_seconds=0.05, **drafts)
    results, out = LayerwiseResults(profile), io.StringIO()
    assert list(results.model.children) == ["prepare", "draft", "model", "sample", "other"]
    assert node(results, "step/draft").seconds == pytest.approx(0.06)
    assert node(results, "step/draft/layers/0/attn/qkv/linear").seconds == 0.04
    assert node(results, "step/model").seconds == pytest.approx(0.79)
    assert sum(part.seconds for part in results.model.children.values()) == pytest.approx(1.1)
    assert node(results, "step/model/layers/0/attn/qkv/linear").seconds == 0.2
    results.print_drafts(out)
    assert out.getvalue() == "drafts: 40 tokens, 75.0% accepted\n"


def test_modules_sum_up_their_operations(results: LayerwiseResults) -> None:
    assert node(results, "step/model/layers").seconds == pytest.approx(0.55)
    attn = node(results, "step/model/layers/0/attn")
    assert (attn.nbytes, attn.flops) == (6000, 8100)
    assert list(attn.children) == ["qkv", "paged_attention"]
    linear = node(results, "step/model/layers/0/attn/qkv/linear")
    assert linear.calls == 4
    assert linear.of_limit == pytest.approx(0.08 / 0.2)


def test_a_part_that_is_no_operation_has_no_limit(results: LayerwiseResults) -> None:
    assert results.model.of_limit is None
    assert node(results, "step/sample").of_limit is None
    assert all(n.of_limit is None for _, n in LayerwiseResults(PROFILE).model.walk())


def test_the_summary_has_the_longest_first(results: LayerwiseResults) -> None:
    assert [(n.name, n.calls) for n in results.summary] == [
        ("linear (float32, avx2)", 8),
        ("paged_attention (float32, avx2)", 4),
        ("logits (float32, avx2)", 4),
        ("embedding (float32, avx2)", 4),
    ]


def test_tables(results: LayerwiseResults) -> None:
    out = io.StringIO()
    results.print_model_table(out)
    lines = out.getvalue().splitlines()
    assert lines[0].split() == [
        "name", "cpu", "µs", "time", "calls", "MB", "GB/s", "GFLOP/s", "of", "limit",
    ]  # fmt: skip
    assert lines[1].split()[:3] == ["step", "1,000,000", "100.0%"]
    assert lines[-1].startswith("  other")
    out = io.StringIO()
    results.print_summary_table(out)
    assert len(out.getvalue().splitlines()) == 1 + 4


def test_csv(results: LayerwiseResults, tmp_path: Path) -> None:
    results.export_model_stats_table_csv(tmp_path / "model.csv")
    rows = list(csv.DictReader((tmp_path / "model.csv").read_text().splitlines()))
    assert list(rows[0]) == ["name", "cpu_time_us", "cuda_time_us", "pct_time", "trace"]
    assert rows[0]["trace"] == "step"
    assert {r["trace"]: r["pct_time"] for r in rows}["step/model/layers/0/attn/qkv"] == "20.0"
    results.export_summary_stats_table_csv(tmp_path / "summary.csv")
    rows = list(csv.DictReader((tmp_path / "summary.csv").read_text().splitlines()))
    assert list(rows[0]) == ["name", "cpu_time_us", "cuda_time_us", "pct_time", "invocations"]
    assert rows[0]["invocations"] == "8"


def test_json(results: LayerwiseResults) -> None:
    content = json.loads(json.dumps(results.convert_stats_to_dict()))
    assert content["context"]["steps"] == 4
    assert content["summary_stats"][0]["invocations"] == 8
    model = content["model_stats"]
    assert model["entry"]["name"] == "step"
    assert [child["entry"]["name"] for child in model["children"]] == [
        "prepare", "model", "sample", "other",
    ]  # fmt: skip


def test_the_context_manager_counts_what_is_inside() -> None:
    class Engine:
        calls: list[str] = []  # noqa: RUF012

        def call(self, method: str, *args: Any) -> Any:
            self.calls.append(method)
            return msgspec.to_builtins(PROFILE) if method == "stop_op_profile" else None

    engine = Engine()
    with layerwise_profile(engine) as profile:
        assert engine.calls == ["start_op_profile"]
        assert profile.results.profile.steps == 0
    assert engine.calls[1:] == ["stop_op_profile"]
    assert profile.results.profile == PROFILE


def test_nothing_profiled_is_an_empty_table() -> None:
    out = io.StringIO()
    LayerwiseResults(OpProfile(0, 0.0, 0.0, 0, 0, 0, [])).print_model_table(out)
    assert "step" in out.getvalue()
