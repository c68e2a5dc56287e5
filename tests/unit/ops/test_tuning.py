"""What is tuned for a machine: kept, found, refused where it is damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from quire.ops.tuning import (
    AttentionTuning,
    GemmTuning,
    KernelTuning,
    TunedAttention,
    TunedGemm,
    load_tuning,
    read,
    save_tuning,
    untuned,
)

FEW, MANY = GemmTuning(ahead_bytes=-1), GemmTuning(pass_rows=5, group_bytes=1 << 16)


def product(rows: tuple[int, int], tuned: GemmTuning = FEW, n: int = 96) -> TunedGemm:
    return TunedGemm("u4", n, 64, 32, rows, tuned, 0.04)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    return tmp_path / "tuned"


def test_what_is_saved_is_loaded(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    attention = TunedAttention(16, 8, 128, "int8", AttentionTuning(tall_rows=8), 0.1)
    saved = untuned("avx2", 2).with_results([], [product((1, 8))], [attention])
    file = save_tuning(saved)
    assert file.parent == folder
    with caplog.at_level(logging.INFO):
        assert load_tuning("avx2", 2) == saved
    assert str(file) in caplog.text
    assert load_tuning("avx2", 3) == untuned("avx2", 3)
    assert load_tuning("portable", 2) == untuned("portable", 2)
    assert [path.name for path in folder.iterdir()] == [file.name]


def test_rows_between_the_ranges_keep_the_kernels_own_values() -> None:
    found = KernelTuning("cpu", "avx2", 1, [product((9, 32), MANY), product((1, 1))])
    assert found.of_gemm("u4", 96, 64, 32) == {1: FEW, 8: GemmTuning(), 32: MANY}
    assert found.of_gemm("u4", 96, 64, 128) == {}
    later = KernelTuning("cpu", "avx2", 1, [product((9, 32), MANY)])
    assert later.of_gemm("u4", 96, 64, 32) == {8: GemmTuning(), 32: MANY}
    assert found.of_attention(1, 1, 64, "bfloat16") == AttentionTuning()


def test_of_two_results_for_one_range_the_last_counts() -> None:
    """Two models may have weights of one shape."""
    twice = [product((1, 8), FEW), product((1, 8), MANY), product((9, 9))]
    found = untuned("avx2", 2).with_results([], twice, [])
    assert [(t.rows, t.tuning) for t in found.gemm] == [((1, 8), MANY), ((9, 9), FEW)]


def test_new_results_replace_those_of_their_shapes() -> None:
    old = untuned("avx2", 1).with_results([], [product((1, 1)), product((1, 8), n=32)], [])
    new = old.with_results([product((1, 1)).shape], [product((2, 9), MANY)], [])
    assert new.gemm == [product((1, 8), n=32), product((2, 9), MANY)]


def _with(**fields: object) -> Callable[[dict[str, object]], None]:
    return lambda entry: entry.update(fields)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_with(rows=[0, 4]), "overlap or are none"),
        (_with(rows=[9, 4]), "overlap or are none"),
        (_with(tuning={"pass_rows": -1}), ">= 0"),
        (_with(tuning={"thread_tasks": 4096}), "<= 1024"),
        (_with(tuning={"ahead_bytes": -2}), ">= -1"),
        (_with(tuning={"ahead": 1}), "unknown field `ahead`"),
        (_with(n="many"), "Expected `int`"),
    ],
)
def test_a_damaged_file_is_not_used_and_the_log_says_why(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[dict[str, object]], None],
    reason: str,
) -> None:
    file = save_tuning(untuned("avx2", 1).with_results([], [product((1, 8))], []))
    content = msgspec.json.decode(file.read_bytes())
    damage(content["gemm"][0])
    file.write_bytes(msgspec.json.encode(content))
    assert load_tuning("avx2", 1).gemm == []
    assert reason in caplog.text
    assert file.name in caplog.text


def test_ranges_that_overlap_and_other_versions_are_refused() -> None:
    twice = untuned("avx2", 1).with_results([], [product((1, 8)), product((8, 9))], [])
    with pytest.raises(ValueError, match="overlap"):
        read(msgspec.json.encode(twice))
    later = msgspec.structs.replace(untuned("avx2", 1), version=2)
    with pytest.raises(ValueError, match="version 2"):
        read(msgspec.json.encode(later))
