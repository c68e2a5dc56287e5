"""Draws by Gumbel noise: the noise's bits, its distribution and its independence."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from quire.ops.gumbel import _log, draw, gumbel, uniforms
from quire.sampling.rng import draw_key

Noise = dict[int, NDArray[np.float64]]
KEYS = 20_000
TOKENS = [0, 1, 2, 16, 256, 65_536, 151_935]


@pytest.fixture(scope="module")
def noise() -> Noise:
    """Return uniforms of some tokens along the positions of one seed."""
    rows = [uniforms(np.array(TOKENS), draw_key(7, position)) for position in range(KEYS)]
    return dict(zip(TOKENS, np.stack(rows).T, strict=True))


def test_a_key_gives_a_token_the_same_noise_for_ever() -> None:
    u = uniforms(np.array([0, 1, 2, 151_935]), 0x0123456789ABCDEF)
    assert [int(x * 2**53) for x in u] == [
        2704384200107093,
        5815080764493079,
        7916352694803551,
        6311312829241403,
    ]
    assert uniforms(np.array([151_935]), 0x0123456789ABCDEF) == u[3]


def test_the_logarithm_is_accurate() -> None:
    rng = np.random.default_rng(0)
    near_1 = 1.0 - 2.0**-53 * rng.integers(1, 2**20, 5_000)
    for x in (rng.random(20_000) + 2.0**-53, rng.random(20_000) * 40, near_1, [2.0**-53]):
        exact = np.array([math.log(value) for value in x])
        np.testing.assert_allclose(_log(np.asarray(x)), exact, rtol=8 * 2.0**-53)


def test_noise_is_finite_at_both_ends() -> None:
    ends = gumbel(np.array([2.0**-53, 1.0 - 2.0**-53]))
    np.testing.assert_allclose(ends, [53 * math.log(2), -math.log(53 * math.log(2))])


def test_noise_is_uniform_along_ids_and_along_keys(noise: Noise) -> None:
    for u in [uniforms(np.arange(KEYS), draw_key(3, 4)), *noise.values()]:
        counts = np.bincount((u * 64).astype(int), minlength=64)
        chi2 = ((counts - KEYS / 64) ** 2 / (KEYS / 64)).sum()
        assert 30 < chi2 < 110  # 63 degrees of freedom: 1 in 10,000 on either side
        assert len(np.unique(u)) == KEYS


@pytest.mark.parametrize("other", TOKENS[1:])
def test_noise_of_two_tokens_is_independent(noise: Noise, other: int) -> None:
    cells = (noise[0] * 16).astype(int) * 16 + (noise[other] * 16).astype(int)
    counts = np.bincount(cells, minlength=256)
    chi2 = ((counts - KEYS / 256) ** 2 / (KEYS / 256)).sum()
    assert 177 < chi2 < 348  # 255 degrees of freedom: 1 in 10,000 on either side


def test_the_best_of_any_shares_is_the_best_of_all() -> None:
    rng = np.random.default_rng(1)
    for key in range(200):
        scaled = rng.normal(0, 2, 300)
        cuts = [0, *np.sort(rng.integers(301, size=3)).tolist(), 300]
        best = []
        for begin, end in itertools.pairwise(cuts):
            if begin < end:
                ids = np.arange(begin, end)
                best.append(begin + draw(scaled[begin:end], ids, key))
        ids = np.array(best)
        assert best[draw(scaled[ids], ids, key)] == draw(scaled, None, key)


def test_the_first_of_equal_scores_wins_and_minus_infinity_never() -> None:
    same = np.zeros(6, dtype=np.int64)
    assert draw(np.array([-np.inf, -2.0, -1.0, -1.0, -2.0, -np.inf]), same, 5) == 2
    scaled = np.array([-np.inf, 0.0, -np.inf])
    assert {draw(scaled, None, key) for key in range(500)} == {1}
