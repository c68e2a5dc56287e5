"""The two weights that latent attention makes of a checkpoint's `kv_b_proj`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from quire.core.dtypes import HostArray
from quire.core.layers import LatentConfig
from quire.models.parameters import ParameterSource
from quire.models.specs import LinearSpec
from quire.ops.interface import Ops
from quire.ops.weights import LinearWeight

if TYPE_CHECKING:
    from quire.ops.packed_file import StoredLinear


def head_weights(
    ops: Ops,
    source: ParameterSource,
    spec: LinearSpec,
    latent: LatentConfig,
    heads: int,
    stored: Mapping[str, StoredLinear],
) -> dict[str, LinearWeight]:
    """Return each head's key matrix, transposed, and its value matrix, packed in the model's dtype.

    Args:
        spec: of the stored weight, [heads · (nope + value), latent].
        stored: name → what was packed before.
    """
    rows = None
    packed: dict[str, LinearWeight] = {}
    for part in ("key", "value"):
        name = f"{spec.stem}.{part}"
        weight: HostArray | StoredLinear
        if name in stored:
            weight = stored[name]
        else:
            if rows is None:
                rows = source.tensor(spec.name).reshape(heads, spec.unit, latent.rank)
            nope = latent.nope_dim
            chosen = rows[:, :nope].transpose(0, 2, 1) if part == "key" else rows[:, nope:]
            weight = np.ascontiguousarray(chosen).reshape(-1, chosen.shape[2])
        packed[name] = ops.pack_linear(weight, exact=True, dtype=source.dtype, experts=heads)
    return packed
