"""Native argmax: comparisons only, so that every answer is exact."""

import math

import pytest
import torch

from tests.kernels.fused_common import each_isa, new_generator, new_kernels, pick

pytestmark = pytest.mark.matrix

PIECE = 16384  # columns that one task of argmax looks at
COLS = [1, 2, 5, 16, 31, 33, 100, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7]
INF = float("inf")


@each_isa
def test_argmax_is_torchs(isa: str) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    for cols in COLS:
        logits = torch.randn(4, cols + 3, generator=generator)[:, 1 : cols + 1]
        logits[1] = logits[1].round()  # ties, and zeros of both signs
        logits[2] = -INF
        logits[2, pick(generator, 0, cols - 1)] = -3.0
        logits[3] = 2.5
        tokens, peaks = kernels.argmax(logits)
        expected_peaks, expected = logits.max(dim=-1)
        assert tokens.tolist() == expected.tolist()
        assert tokens.tolist() == [int(row.argmax()) for row in logits.numpy()]
        assert peaks.tolist() == expected_peaks.tolist()


@each_isa
def test_sick_rows_are_told_from_sound_ones(isa: str) -> None:
    """Wherever the NaN or the infinity lies, and whatever the rest is."""
    kernels, generator = new_kernels(isa), new_generator()
    for cols in COLS:
        for _ in range(4):
            logits = torch.randn(5, cols, generator=generator)
            logits[1, pick(generator, 0, cols - 1)] = INF
            logits[2] = -INF
            logits[3, pick(generator, 0, cols - 1)] = INF
            logits[3, pick(generator, 0, cols - 1)] = math.nan
            tokens, peaks = kernels.argmax(logits)
            assert tokens.tolist() == [
                int(logits[0].argmax()), -1, -1, -1, int(logits[4].argmax())
            ]  # fmt: skip
            expected = logits.max(dim=-1).values
            found = torch.from_numpy(peaks)
            assert torch.equal(found.nan_to_num(99, 98, 97), expected.nan_to_num(99, 98, 97))


def test_threads_do_not_matter() -> None:
    logits = torch.randn(9, 50_000, generator=new_generator()).round(decimals=1)
    for threads in (1, 2, 3):
        tokens, _ = new_kernels(threads=threads).argmax(logits)
        assert tokens.tolist() == logits.argmax(-1).tolist()
    assert new_kernels().argmax(logits[:0])[0].size == 0


def test_what_does_not_fit_is_refused() -> None:
    kernels, logits = new_kernels(), torch.ones(2, 8)
    for bad in (logits.bfloat16(), logits.t(), logits[0]):
        with pytest.raises(ValueError, match="logits is"):
            kernels.argmax(bad)
