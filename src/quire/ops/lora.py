"""Low-rank adapters in plain torch: the oracle of `ops.native_lora`."""

from __future__ import annotations

from torch import Tensor

from quire.ops.reference import DenseWeight, linear


def lora_add(y: Tensor, x: Tensor, a: Tensor, b: Tensor, adapter: Tensor) -> Tensor:
    """y += B[i] @ (A[i] @ x), in place, each row with its own adapter i (Hu et al. 2021).

    Args:
        y: [T, N], what the layer gives without adapters, in the model's dtype.
        x: [T, K], what went into the layer.
        a: [adapters, R, K].
        b: [adapters, R, N]: B transposed, scaled by alpha / r. Adapters of a rank below R end in
            zeros.
        adapter: int64 [T]; a negative one leaves its row as it is.

    Returns:
        y. Sums are float32, and the result is rounded once.
    """
    for index in adapter[adapter >= 0].unique().tolist():
        rows = (adapter == index).nonzero()[:, 0]
        low = linear(x[rows].float(), DenseWeight(a[index].float(), None, "none"))
        high = linear(low, DenseWeight(b[index].float().t().contiguous(), None, "none"))
        y[rows] = (y[rows].float() + high).to(y.dtype)
    return y
