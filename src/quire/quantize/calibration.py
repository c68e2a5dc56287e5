"""Calibration: the inputs of each linear layer, one decoder layer at a time, on sample texts.

The model's own layers compute everything in float32. Linear layers use numpy, so they need no
packed copy of the weights; watched layers collect statistics of their inputs. An expert's inputs
are the rows that the router sends to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from quire.core.dtypes import FLOAT32, Floats, HostArray, converted
from quire.core.model_config import ModelConfig
from quire.core.quantized import QuantizedWeight
from quire.layers.embedding import Embedding
from quire.layers.layer import Tokens
from quire.models.builder import Builder
from quire.models.layout import Layout
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.system.records import dataclass

_BATCH_TOKENS = 2048
"""Tokens computed at once: some tens of MB of a wide feed-forward."""
_BLOCK_SIZE = 32
"""Tokens in a block of the KV cache."""
_ROWS = 1024
"""Rows of a product that are computed at once, to keep temporary arrays small."""


@dataclass(slots=True)
class InputStatistics:
    """Statistics of the inputs x of a linear layer, over all tokens.

    Attributes:
        hessian: Σ x xᵀ, float32 [K, K].
        magnitude: Σ |x|, float32 [K].
        tokens: their number.
    """

    hessian: Floats
    magnitude: Floats
    tokens: int = 0

    @classmethod
    def of_width(cls, columns: int) -> InputStatistics:
        return cls(np.zeros((columns, columns), np.float32), np.zeros(columns, np.float32))

    def add(self, x: Floats) -> None:
        """Count the rows of float32 [T, K]."""
        for first in range(0, x.shape[1], _ROWS):
            rows = slice(first, first + _ROWS)
            # The matrix is symmetric; the part left of the diagonal block is already computed.
            product = x[:, rows].T @ x[:, first:]
            self.hessian[rows, first:] += product
            self.hessian[first + _ROWS :, rows] += product[:, _ROWS:].T
        self.magnitude += np.abs(x).sum(0)
        self.tokens += len(x)


Statistics = Mapping[str, Sequence[InputStatistics]]
"""Linear weight → the inputs of each of its experts; of other weights it has one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Linear:
    """The linear layer [N, K] that `Builder` uses here; counts its inputs if it is watched.

    Attributes:
        inputs: of each expert, of whose rows the weight consists; of other layers one. Empty if
            they are not watched.
    """

    weight: Floats
    bias: Floats | None
    epilogue: Any
    experts: int
    inputs: Sequence[InputStatistics]

    def expert(self, index: int) -> _Linear:
        count = len(self.weight) // self.experts
        rows = slice(index * count, (index + 1) * count)
        bias = None if self.bias is None else self.bias[rows]
        return _Linear(self.weight[rows], bias, self.epilogue, 1, self.inputs[index : index + 1])

    def forward(self, ops: Ops, x: Array) -> Array:
        values = ops.numpy(x)
        for inputs in self.inputs:
            inputs.add(values)
        product = values @ self.weight.T
        if self.bias is not None:
            product += self.bias
        y = ops.array(product)
        return y if self.epilogue == "none" else ops.activation(y, self.epilogue)


@dataclass(slots=True)
class _Batch:
    """Sequences that are computed in one batch; `hidden` is the next layer's input."""

    positions: Array
    meta: AttentionMetadata
    hidden: Array


class Calibration:
    """The hidden states of the sample texts, passed through the decoder layer by layer.

    Memory: their hidden states, float32 [tokens, hidden], and one layer.
    """

    def __init__(
        self, config: ModelConfig, samples: Sequence[Sequence[int]], embedding: Embedding, ops: Ops
    ) -> None:
        """Begin with the embeddings of `samples`, token ids.

        Args:
            embedding: its tables are arrays on the host; only the rows looked up are read.
            ops: the operations that compute the layers, on the host.
        """
        self._config = config
        self._layout = Layout(config)
        self._longest = max(map(len, samples))
        product = _product(ops)
        self._ops = ops.using(linear=product, logits=product, moe=_moe(ops))
        self._batches = [self._begin(batch, embedding) for batch in _batches(samples)]

    def watch(self, index: int, parameters: Mapping[str, Floats]) -> Statistics:
        """Compute layer `index` with its float32 `parameters`; keep its input as hidden state."""
        builder = self._builder(parameters, watched=True)
        layer = self._layer(builder, index)
        for batch in self._batches:
            layer(batch)
        packed: Mapping[str, Any] = builder.linear_weights
        return {name: linear.inputs for name, linear in packed.items() if linear.inputs}

    def advance(self, index: int, parameters: Mapping[str, Floats]) -> None:
        """Replace the hidden states by layer `index`'s output; `parameters` are float32."""
        layer = self._layer(self._builder(parameters), index)
        for batch in self._batches:
            batch.hidden = layer(batch)

    def watch_head(self, parameters: Mapping[str, Floats]) -> InputStatistics:
        """Return statistics of the output projection's inputs; `parameters` are the last norm's."""
        norm = self._builder(parameters).norm(self._layout.norm)
        found = InputStatistics.of_width(self._config.hidden_size)
        for batch in self._batches:
            found.add(self._ops.numpy(norm.forward(self._ops, batch.hidden)))
        return found

    def _builder(self, parameters: Mapping[str, Floats], *, watched: bool = False) -> Builder:
        def pack(
            weight: Any, bias: Any = None, *, epilogue: str, exact: bool, experts: int, **_: Any
        ) -> _Linear:
            [whole] = weight
            count = experts if watched and not exact else 0  # routers are not quantized
            inputs = [InputStatistics.of_width(whole.shape[1]) for _ in range(count)]
            return _Linear(whole, bias, epilogue, experts, inputs)

        ops = self._ops.using(pack_linear=pack)
        return Builder(self._config, _Given(parameters), self._longest, ops)

    def _begin(self, samples: Sequence[Sequence[int]], embedding: Embedding) -> _Batch:
        ids = np.array([token for sample in samples for token in sample])
        lengths = np.array([len(sample) for sample in samples])
        positions = np.concatenate([np.arange(length) for length in lengths])
        blocks = -(-int(lengths.max()) // _BLOCK_SIZE)
        tables = np.arange(len(samples) * blocks, dtype=np.int32).reshape(-1, blocks)
        first = np.repeat(tables[:, 0].astype(np.int64) * _BLOCK_SIZE, lengths)
        ops = self._ops
        meta = AttentionMetadata(
            query_start_loc=np.cumsum([0, *lengths], dtype=np.int32),
            seq_lens=lengths.astype(np.int32),
            block_tables=ops.array(tables),
            slot_mapping=ops.array(first + positions),
            num_seqs=len(samples),
            block_size=_BLOCK_SIZE,
        )

        def look_up(ids: Array, table: HostArray) -> Array:
            return ops.array(converted(table[ops.numpy(ids)], FLOAT32))

        at = ops.array(positions)
        hidden = embedding.forward(ops.using(embedding=look_up), ops.array(ids), at)
        return _Batch(at, meta, hidden)

    def _layer(self, builder: Builder, index: int) -> Callable[[_Batch], Array]:
        """Build a layer; calling it returns the next one's input."""
        config, spec, ops = self._config, self._layout.layers[index], self._ops
        first, layer = builder.norm(spec[0].before), builder.layer(spec, None)

        def forward(batch: _Batch) -> Array:
            blocks = batch.meta.block_tables.shape[0] * batch.meta.block_tables.shape[1]
            shape = blocks, config.num_key_value_heads, _BLOCK_SIZE, config.head_dim
            k, v = (ops.array(np.zeros(shape, np.float32)) for _ in range(2))
            tokens = Tokens(batch.positions, batch.meta)
            x = first.forward(ops, batch.hidden)
            _, residual = layer.forward(ops, x, batch.hidden, [KVCache(k, v)], tokens)
            return residual

        return forward


def _product(ops: Ops) -> Callable[..., Array]:
    """Return `Ops.linear` and `Ops.logits` of a `_Linear`."""
    return lambda x, packed: packed.forward(ops, x)


def _moe(ops: Ops) -> Callable[..., Array]:
    """Return `Ops.moe` of two `_Linear`."""

    def moe(
        x: Array, experts: Array, weights: Array, up: _Linear, down: _Linear,
        dtype: Any = None, weight_on_input: bool = False,
    ) -> Array:  # fmt: skip
        values, chosen, shares = ops.numpy(x), ops.numpy(experts), ops.numpy(weights)
        total = np.zeros_like(values)
        for index in np.unique(chosen).tolist():
            rows, choice = np.nonzero(chosen == index)
            share = shares[rows, choice][:, np.newaxis]
            inputs = values[rows] * share if weight_on_input else values[rows]
            inner = up.expert(index).forward(ops, ops.array(inputs))
            found = ops.numpy(down.expert(index).forward(ops, inner))
            total[rows] += found if weight_on_input else found * share
        return ops.array(total)

    return moe


class _Given:
    """A `ParameterSource` of arrays in memory."""

    dtype = FLOAT32

    def __init__(self, parameters: Mapping[str, Floats]) -> None:
        self._parameters = parameters

    def has(self, name: str) -> bool:
        return name in self._parameters

    def parts(self, name: str) -> list[HostArray] | list[QuantizedWeight]:
        return [self._parameters[name]]

    def tensor(self, name: str) -> HostArray:
        return self._parameters[name]


def _batches(samples: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    batches: list[list[Sequence[int]]] = []
    tokens = _BATCH_TOKENS
    for sample in samples:
        if tokens + len(sample) > _BATCH_TOKENS:
            batches.append([])
            tokens = 0
        batches[-1].append(sample)
        tokens += len(sample)
    return batches
