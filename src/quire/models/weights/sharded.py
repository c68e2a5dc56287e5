"""A rank's share of a model's parameters, cut out as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from quire.core.config import RankShare
from quire.core.dtypes import HostArray
from quire.core.errors import CheckpointError
from quire.core.quantized import QuantizedWeight, Weight, columns_of, dense, rows_of
from quire.models.layout import parameters
from quire.models.parameters import ParameterSource, Run
from quire.models.weights.shares import column_run, row_runs


class SharedParameters:
    """What `share` has of the parameters of the whole model, `source`: a `ParameterSource`.

    Rows and columns are those of the canonical form, so that every quantization is cut alike, and
    a rank's codes are those that one process would compute with.
    """

    def __init__(self, source: ParameterSource, share: RankShare) -> None:
        self.dtype = source.dtype
        self._source = source
        self._rank = share.rank
        cut = [p for p in parameters(share.model) if p.cut]
        self._rows = {p.name: runs for p in cut if (runs := row_runs(p, share))}
        self._columns = {p.name: run for p in cut if (run := column_run(p, share))}
        self._vectors = {p.name: p.shape for p in cut if p.kind in ("exact", "norm")}
        self._summed = {p.name for p in cut if p.cut == "columns" and p.kind == "bias"}

    def has(self, name: str) -> bool:
        """Return whether this rank has the parameter: only rank 0 adds the bias after a sum."""
        return self._source.has(name) and (self._rank == 0 or name not in self._summed)

    def parts(self, name: str) -> list[HostArray] | list[QuantizedWeight]:
        parts: Sequence[Weight] = self._source.parts(name)
        if name in self._rows:
            parts = [part for run in self._rows[name] for part in rows_of(parts, *run)]
        elif name in self._columns:
            parts = [_columns_of(name, part, self._columns[name]) for part in parts]
        return cast("list[HostArray] | list[QuantizedWeight]", parts)

    def tensor(self, name: str) -> HostArray:
        if name not in self._rows and name not in self._columns:
            return self._source.tensor(name)
        if name in self._vectors:  # of the source's dtype, not the model's
            values = self._source.tensor(name).reshape(self._vectors[name])
            return np.concatenate([values[at : at + count] for at, count in self._rows[name]])
        return np.concatenate([dense(part, self.dtype) for part in self.parts(name)])


def _columns_of(name: str, part: Weight, run: Run) -> Weight:
    """Return some columns of a part of a weight.

    Raises:
        CheckpointError: its form cannot be cut there.
    """
    try:
        return columns_of(part, *run)
    except ValueError as error:
        raise CheckpointError(
            f"{name} cannot be dealt out among ranks: {error}.", param="tensor_parallel_size"
        ) from None
