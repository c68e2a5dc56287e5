"""Native embedding: exact copies."""

import pytest
import torch

from tests.kernels.fused_common import (
    COLS,
    assert_same_bits,
    draw,
    each_dtype,
    each_isa,
    new_generator,
    new_kernels,
    pools,
)

pytestmark = pytest.mark.matrix


@each_isa
@each_dtype
def test_embedding(isa: str, dtype: torch.dtype) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    for cols in [*COLS, 768]:
        weight = draw(generator, dtype, 50, cols + 1)[:, 1:]
        weight[3, 0] = float("nan")
        ids = torch.randint(0, 50, (23,), generator=generator)
        if cols > 1:
            assert_same_bits(kernels.lookup(ids, weight), weight[ids])
        assert kernels.lookup(ids[:0], weight.contiguous()).shape == (0, cols)


@each_dtype
def test_threads_do_not_matter(dtype: torch.dtype) -> None:
    generator = new_generator()
    weight, ids = draw(generator, dtype, 50, 2048), torch.arange(300) % 50
    for kernels in pools():
        assert_same_bits(kernels.lookup(ids, weight), weight[ids])


def test_what_is_not_in_the_table_is_refused() -> None:
    kernels, weight, ids = new_kernels(), torch.ones(10, 8), torch.tensor([3, 4])
    for bad in (-1, 10):
        with pytest.raises(IndexError, match=f"token id {bad} of row 1"):
            kernels.lookup(torch.tensor([3, bad]), weight)
    with pytest.raises(ValueError, match="ids is"):
        kernels.lookup(ids.int(), weight)
    with pytest.raises(ValueError, match="weight is"):
        kernels.lookup(ids, weight.t())
